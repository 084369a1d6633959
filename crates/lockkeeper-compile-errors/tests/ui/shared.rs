//! Ways to share a lock that do not go together, and numbers that make no sense.
use lockkeeper::{Error, Fence, locked};

#[locked("x", shared, permits = "2/5")]
async fn both() -> Result<(), Error> {
    Ok(())
}

#[locked("x", shared = true)]
async fn with_a_value() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = 3)]
async fn of_how_many() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = "3")]
async fn of_how_many_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = "-1/5")]
async fn negative() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = "0/5")]
async fn nothing() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = "2/0")]
async fn of_nothing() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = (6, 5))]
async fn too_many() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permits = (1, "5"))]
async fn no_number() -> Result<(), Error> {
    Ok(())
}

#[locked("x", permit = "1/5")]
async fn misspelt() -> Result<(), Error> {
    Ok(())
}

#[locked("x", "y", shared)]
async fn which_of_them() -> Result<(), Error> {
    Ok(())
}

#[locked("x", shared, guard = lock)]
async fn a_readers_fence_is_not_a_writers() -> Result<Fence, Error> {
    Ok(lock.fence())
}

fn main() {}
