//! Everything a backend of Lockkeeper needs to prove itself: the conformance suite, chaos, checkers, servers.
//!
//! A backend author writes a [`suite::Harness`] and one line, [`suite!`]; every line of the contract in
//! [`lockkeeper_core::backend`] becomes a test of its own.
pub mod chance;
pub mod chaos;
pub mod history;
pub mod pace;
pub mod process;
pub mod proxy;
pub mod servers;
pub mod sim;
pub mod suite;
