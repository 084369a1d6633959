//! ZooKeeper on real servers: faults and prices, numbers and sessions, then what an operator does.
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod alone;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod ghosts;
mod history;
mod late;
mod lingering;
mod listening;
mod memos;
mod numbers;
mod operator;
mod sessions;
mod warm;
