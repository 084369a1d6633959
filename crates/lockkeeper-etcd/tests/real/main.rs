//! etcd on real servers: faults and prices, then what an operator does.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod admin_of;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod fences;
mod full;
mod leaving;
mod listening;
mod operator;
mod rights;
mod silence;
mod strangers;
mod warm;
