//! Notes, warm and cold locks, and locks that are kept for a while, where they make no sense.
use lockkeeper::{Error, locked};

#[locked("x", warm, cold)]
async fn both() -> Result<(), Error> {
    Ok(())
}

#[locked("x", warm = true)]
async fn with_a_value() -> Result<(), Error> {
    Ok(())
}

#[locked("x", "y", warm)]
async fn several_stay() -> Result<(), Error> {
    Ok(())
}

#[locked("x", "y", at_least = "50s")]
async fn several_are_kept() -> Result<(), Error> {
    Ok(())
}

#[locked("x", shared, at_least = "50s")]
async fn shared_and_kept() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = "1/5", at_least = "50s")]
async fn permits_and_kept() -> Result<(), Error> {
    Ok(())
}

#[locked("x", at_least = "0s")]
async fn kept_for_no_time() -> Result<(), Error> {
    Ok(())
}

#[locked("x", at_least = 50)]
async fn no_unit() -> Result<(), Error> {
    Ok(())
}

#[locked("x", atleast = "50s")]
async fn misspelt() -> Result<(), Error> {
    Ok(())
}

#[locked("x", note = 7)]
async fn no_text() -> Result<(), Error> {
    Ok(())
}

fn main() {}
