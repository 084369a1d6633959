//! Test kit of Lockkeeper.

pub mod process;
pub mod proxy;
pub mod servers;
