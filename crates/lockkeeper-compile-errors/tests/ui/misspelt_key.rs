//! A name in the format string that no argument has.
use lockkeeper::{Error, locked};

#[locked("product:{prodct_id}")]
async fn misspelt(product_id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
