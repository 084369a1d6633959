//! Locks in an SQLite file, for the processes of one host. Nothing to install, nothing to run.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockkeeper_core::Error> {
//! use lockkeeper_sqlite::{SqliteBackend, SqliteOptions};
//! let options = SqliteOptions::from_url("sqlite:/var/lib/shop/locks.db")?;
//! let backend = SqliteBackend::open(options).await?;
//! # Ok(()) }
//! ```
//!
//! Time is the kernel's boot clock and counts only within one boot, whose id is kept in the file: a claim
//! of an earlier boot is void. The wall clock never decides about a lock.
//!
//! The walk of a verb: `place` sends it by its `wire` to the thread of `connection`, which runs it (`verb`) together
//! with all others that wait in one transaction on the key's `line`; `bell` tells those of other processes whom that let
//! in, and `wake` those who wait here.

mod admin;
mod bell;
mod connection;
mod doctor;
mod fault;
mod fenced;
mod file;
mod forked;
mod host;
mod line;
mod options;
mod pace;
mod place;
mod schema;
mod verb;
mod wake;
mod wire;

pub use fenced::SqliteFences;
pub use options::{Durability, SqliteOptions};
pub use place::{SqliteBackend, SqlitePlace};

/// The backend's name in profiles, errors and events.
const NAME: &str = "sqlite";
