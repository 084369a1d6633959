//! Only functions with a body can be locked.
use lockkeeper::{Error, locked};

#[locked("x")]
struct Thing;

trait Work {
    #[locked("x")]
    fn work(&self) -> Result<(), Error>;
}

#[locked("x")]
const fn constant() -> Result<(), Error> {
    Ok(())
}

fn main() {}
