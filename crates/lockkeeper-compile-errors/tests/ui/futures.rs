//! A function that only makes a future would hold the lock for nothing.
use std::future::Future;
use std::pin::Pin;

use lockkeeper::{Error, locked};

#[locked("x")]
fn an_impl() -> impl Future<Output = Result<(), Error>> {
    async { Ok(()) }
}

#[locked("x")]
fn a_box() -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
    Box::pin(async { Ok(()) })
}

type Hidden = Pin<Box<dyn Future<Output = ()>>>;

#[locked("x", or = Box::pin(async {}))]
fn behind_a_name() -> Hidden {
    Box::pin(async {})
}

fn main() {}
