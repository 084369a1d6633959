//! etcd on real servers: the conformance suite, then faults and prices, then what an operator does.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod admin_of;
mod common;
mod conformance;
mod faults;
mod fences;
mod leaving;
mod operator;
mod rights;
mod silence;
mod strangers;
