//! ZooKeeper on real servers: the conformance suite, then faults, then what waiting and holding cost.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]
#![allow(clippy::print_stdout, reason = "the other process of a test tells by it what happens")]

mod child;
mod cluster;
mod common;
mod conformance;
mod faults;
mod operator;
mod price;
