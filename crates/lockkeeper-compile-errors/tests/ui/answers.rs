//! The function must be able to say that the lock was not obtained.
use lockkeeper::{Error, locked};

struct Stranger;

#[locked("x")]
async fn nothing() {}

#[locked("x")]
async fn a_number() -> u64 {
    7
}

#[locked("x")]
async fn foreign_error() -> Result<u64, Stranger> {
    Ok(7)
}

#[locked("x", or = "none")]
async fn wrong_value() -> u64 {
    7
}

#[locked("x", or_else = |_| "none")]
fn wrong_function() -> u64 {
    7
}

#[locked("x", or = Ok(0))]
async fn loss_has_no_answer() -> Result<u64, Stranger> {
    Ok(7)
}

#[locked("x")]
async fn wrong_body() -> Result<u64, Error> {
    Ok("text")
}

fn main() {}
