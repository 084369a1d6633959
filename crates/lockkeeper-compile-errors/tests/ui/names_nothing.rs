//! Nothing is named.
use lockkeeper::{Error, locked};

#[locked]
async fn bare() -> Result<(), Error> {
    Ok(())
}

#[locked(wait = "1s")]
async fn only_a_wait() -> Result<(), Error> {
    Ok(())
}

#[locked(key = 7)]
async fn only_a_key() -> Result<(), Error> {
    Ok(())
}

#[locked(product_id)]
async fn only_a_word(product_id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
