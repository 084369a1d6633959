//! Two-phase commit over PostgreSQL, MariaDB and MySQL: all databases commit, or none does, also when the coordinator dies.
//!
//! ```no_run
//! # use lockkeeper_core::{Locker, Memory};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper_twophase::Result<()> {
//! # let locker = Locker::new(Memory::default());
//! use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
//! use lockkeeper_twophase::tokio_postgres::Client;
//! use lockkeeper_twophase::{Participant, TwoPhase};
//!
//! let office = TwoPhase::open("sqlite:/var/lib/shop/2pc.db", &locker) // the log, and the locker that guards its seats
//!     .await?
//!     .participant("orders", Participant::postgres("postgres://shop@db-1/orders")?)
//!     .participant("stock", Participant::mysql("mysql://shop@db-2/stock")?)
//!     .start() // takes a seat, and finishes what its last holder left
//!     .await?;
//! let done = office
//!     .transaction()
//!     .note("checkout 42")
//!     .on("orders", async |db: &Client| {
//!         db.execute("INSERT INTO orders VALUES (42, 7)", &[]).await?;
//!         Ok(())
//!     })
//!     .on("stock", async |db: &mut Conn| {
//!         db.query_drop("UPDATE stock SET amount = amount - 1 WHERE id = 7").await?;
//!         Ok(())
//!     })
//!     .commit()
//!     .await?;
//! println!("{} is committed", done.id);
//! # Ok(())
//! # }
//! ```
//!
//! Think first whether you need it: an outbox table, an idempotent retry or a saga is better in most cases, because from a
//! participant's promise until it hears the decision its rows stay locked, and because readers may see one database changed
//! and the other not yet. The guide `docs/guides/two-phase-commit.md` begins with that.
//!
//! # How it stays together
//!
//! The role of coordinator is a *seat*: a lock of Lockkeeper. The decision to commit is one row of the log, forced to the disk,
//! and written only if the seat's fence is still the newest. No row means abort. So a coordinator that was paused, replaced and
//! continued cannot decide any more; and whoever takes its seat reads the log and knows what to do with every branch that it
//! finds prepared. Branches with other names are never touched, and nothing is decided by age.
//!
//! # Drivers
//!
//! Work is done on the drivers' own connections, so `tokio_postgres`, `mysql_async` and `rusqlite` are part of this
//! interface and re-exported. When one makes a breaking release, the next minor release of this crate (0.x) follows, never a patch.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod dial;
mod error;
mod id;
mod log;
mod meet;
mod observe;
mod office;
mod orphans;
mod participant;
mod phases;
mod recover;
mod rollback;
mod survey;
mod sweep;
mod transaction;
mod witnesses;
mod work;

pub use error::{BoxError, Error, Result};
pub use id::TransactionId;
pub use lockkeeper_core::inspect::{Finding, Severity};
pub use lockkeeper_sql::{mysql_async, tokio_postgres};
pub use log::{BranchRecord, Damage, Decision, ParticipantRecord, Ruling};
pub use observe::{Outcome, Point, Step};
pub use office::{Office, TwoPhase, Verdict};
pub use orphans::{Fate, Orphan};
pub use participant::Participant;
pub use recover::Left;
pub use rusqlite;
pub use survey::{InDoubt, Survey};
pub use transaction::{Committed, Isolation, Transaction};
pub use work::{Link, OnMysql, OnPostgres, Work, WorkError};
