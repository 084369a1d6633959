//! Functions that share a lock, take permits or several locks, in a crate that denies every warning.
#![deny(warnings)]

use lockkeeper::spi::Memory;
use lockkeeper::{Locker, MultiGuard, Result, SharedGuard, locked};

const MOST: u32 = 5;

#[rustfmt::skip]
#[locked("one:{id}", shared, locker = locker)]
async fn reads(locker: &Locker, id: u64) -> Result<u64> { Ok(id) }

#[locked("two", locker = locker, permits = "2/5", guard = guard, or = 0)]
async fn has_permits(locker: &Locker) -> u64 {
    number(guard)
}

fn number(guard: &SharedGuard) -> u64 {
    guard.fence().get()
}

#[rustfmt::skip]
#[locked("three", permits = (1, MOST), locker = locker, try, or = ())]
async fn tries(locker: &Locker) { println!("done") }

#[rustfmt::skip]
#[locked("four:{}", id + 1, "five:{id}", locker = locker, guard = all)]
fn has_several(locker: &Locker, id: u64) -> Result<usize> { Ok(count(all)) }

fn count(all: &MultiGuard) -> usize {
    all.keys().count()
}

#[rustfmt::skip]
#[locked("six", "seven", locker = locker, or_else = |_| "none")]
async fn answers_something(locker: &Locker) -> impl std::fmt::Display { "some" }

#[rustfmt::skip]
#[locked("eight", shared, locker = locker, try, or_else = |_| "none")]
fn blocks(locker: &Locker) -> impl std::fmt::Display { "some" }

fn must_be_send<T: Send>(_: T) {}

fn main() {
    let locker = Locker::new(Memory::default());
    must_be_send((reads(&locker, 1), has_permits(&locker), tries(&locker), answers_something(&locker)));
    assert_eq!(has_several(&locker, 7).unwrap(), 2);
    assert_eq!(blocks(&locker).to_string(), "some");
}
