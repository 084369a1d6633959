//! Everything a backend of Lockkeeper needs to prove itself: the conformance suite, chaos, checkers, simulation.
//!
//! A backend author writes a [`suite::Harness`] and one line, [`suite!`]; every line of the contract in
//! [`lockkeeper_core::backend`] becomes a test of its own. [`mod@chaos`] loses and delays the answers of any store,
//! [`history`] judges what callers saw, [`sim`] runs several processes and bad networks in virtual time.

pub mod barriers;
pub mod chance;
pub mod chaos;
pub mod history;
pub mod sim;
pub mod suite;
pub mod virtual_time;
pub mod warm;
