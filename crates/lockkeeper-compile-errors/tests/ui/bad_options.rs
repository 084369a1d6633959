//! Options that do not exist, or not like this.
use lockkeeper::{Error, locked};

#[locked("x", tll = "1s")]
async fn misspelt() -> Result<(), Error> {
    Ok(())
}

#[locked("x", colour = "red")]
async fn stranger() -> Result<(), Error> {
    Ok(())
}

#[locked("x", ttl = "1s", ttl = "2s")]
async fn twice() -> Result<(), Error> {
    Ok(())
}

#[locked("x", wait = 5)]
async fn no_unit() -> Result<(), Error> {
    Ok(())
}

#[locked("x", wait = "soon")]
async fn no_span() -> Result<(), Error> {
    Ok(())
}

#[locked("x", ttl = "0s")]
async fn no_time() -> Result<(), Error> {
    Ok(())
}

#[locked("x", try, wait = "1s")]
async fn try_and_wait() -> Result<(), Error> {
    Ok(())
}

#[locked("x", or = 1, or_else = |_| 2)]
async fn two_answers() -> u8 {
    3
}

#[locked("x", name = "y")]
async fn two_names() -> Result<(), Error> {
    Ok(())
}

#[locked("x", guard = order)]
async fn hides_an_argument(order: u64) -> Result<u64, Error> {
    Ok(order)
}

#[locked("x", locker = 7)]
async fn no_locker() -> Result<(), Error> {
    Ok(())
}

fn main() {}
