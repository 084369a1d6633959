//! Locks for several holders do not exist yet.
use lockkeeper::{Error, locked};

#[locked("x", shared)]
async fn shared() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = 3)]
async fn permits() -> Result<(), Error> {
    Ok(())
}

fn main() {}
