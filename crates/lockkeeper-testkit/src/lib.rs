//! Everything a backend of Lockkeeper needs to prove itself: the conformance suite, chaos, checkers.
//!
//! A backend author writes a [`suite::Harness`] and one line, [`suite!`]; every line of the contract in
//! [`lockkeeper_core::backend`] becomes a test of its own. [`servers`] starts the real stores as child
//! processes, [`proxy`] stands between them and a client and breaks what passes. [`mod@quorum`] holds the faults and prices
//! that stores with a quorum share.

pub mod chance;
pub mod chaos;
pub mod history;
pub mod pace;
pub mod process;
pub mod proxy;
pub mod quorum;
pub mod runtime_drop;
pub mod servers;
pub mod sim;
pub mod suite;
