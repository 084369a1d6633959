//! Notes, warm and cold locks, and locks that are kept for a while, in a crate that denies every warning.
#![deny(warnings)]

use std::time::Duration;

use lockkeeper::spi::Memory;
use lockkeeper::{Locker, Result, locked};

#[rustfmt::skip]
#[locked("one:{id}", warm, note = "no brace", locker = locker)]
async fn stays(locker: &Locker, id: u64) -> Result<u64> { Ok(id) }

#[locked("two", cold, note = "order {id} of {{all}}", locker = locker, or = 0)]
async fn goes(locker: &Locker, id: u64) -> u64 {
    id
}

#[locked("three", shared, warm, note = note, locker = locker)]
async fn reads(locker: &Locker, note: String, id: u64) -> Result<u64> {
    Ok(id)
}

#[locked("four", "five", note = locker_name(locker), locker = locker)]
fn has_several(locker: &Locker) -> Result<()> {
    Ok(())
}

fn locker_name(_: &Locker) -> &'static str {
    "somebody"
}

#[locked("six", try, at_least = Duration::from_millis(1), note = "short", locker = locker, or = ())]
async fn kept(locker: &Locker) {}

#[locked("seven:{}", warm + 1, locker = locker)]
async fn a_name_that_is_an_option(locker: &Locker, warm: u64) -> Result<u64> {
    Ok(warm)
}

fn must_be_send<T: Send>(_: T) {}

fn main() {
    let locker = Locker::new(Memory::default());
    must_be_send((stays(&locker, 1), goes(&locker, 2), reads(&locker, String::new(), 3), kept(&locker)));
    must_be_send(a_name_that_is_an_option(&locker, 4));
    has_several(&locker).unwrap();
}
