//! ZooKeeper on real servers: the conformance suite, then faults and prices, then what an operator does.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod common;
mod conformance;
mod faults;
mod ghosts;
mod history;
mod numbers;
mod operator;
mod sessions;
