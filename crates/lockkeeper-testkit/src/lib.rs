//! Test kit of Lockkeeper.

pub mod process;
pub mod servers;
