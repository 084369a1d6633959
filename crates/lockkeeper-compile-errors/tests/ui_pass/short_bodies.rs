//! Functions on one line, in a crate that denies every warning.
#![deny(warnings)]

use lockkeeper::spi::Memory;
use lockkeeper::{Error, Guard, Locker, Result, locked};

#[rustfmt::skip]
#[locked("one:{id}", locker = locker)]
async fn answers(locker: &Locker, id: u64) -> Result<u64> { Ok(id) }

#[rustfmt::skip]
#[locked("two", locker = locker, guard = guard)]
async fn answers_by_call(locker: &Locker) -> Result<u64> { fence_of(guard).await }

async fn fence_of(guard: &Guard) -> Result<u64> {
    Ok(guard.fence().get())
}

#[rustfmt::skip]
#[locked("three", locker = locker, or = ())]
async fn answers_nothing(locker: &Locker) { println!("done") }

#[locked("four", locker = locker, or = ())]
async fn does_nothing(locker: &Locker) {}

#[rustfmt::skip]
#[locked("five", locker = locker, or_else = |_| "none")]
async fn answers_something(locker: &Locker) -> impl std::fmt::Display { "some" }

#[rustfmt::skip]
#[locked("six", locker = locker)]
fn blocks(locker: &Locker) -> Result<u64> { Ok(6) }

#[rustfmt::skip]
#[locked("seven", locker = locker, try)]
async fn tries(locker: &Locker) -> Result<u64> { Err(Error::Closed) }

#[rustfmt::skip]
#[locked("eight", locker = locker, or_else = |_| "none")]
fn blocks_for_something(locker: &Locker) -> impl std::fmt::Display { "some" }

struct Shop(Locker);

impl Shop {
    #[rustfmt::skip]
    #[locked("nine", locker = self.0)]
    async fn sells(&self) -> Result<&'static str> { Ok("sold") }
}

fn main() {
    let locker = Locker::new(Memory::default());
    let shop = Shop(locker.clone());
    drop((answers(&locker, 1), answers_by_call(&locker), answers_nothing(&locker), does_nothing(&locker)));
    drop((answers_something(&locker), tries(&locker), shop.sells()));
    assert_eq!(blocks(&locker).unwrap(), 6);
    assert_eq!(blocks_for_something(&locker).to_string(), "some");
}
