//! Lockkeeper on SQL servers: locks in a table of the database you already run.
//!
//! One crate for both dialects, because the table, the pace of waiting, the batching of renewals and the words
//! of errors are the same. Name the feature of your database: `postgres` or `mysql` (which is also MariaDB).
//!
//! Nothing here ever runs inside a transaction of yours: locks live on connections of their own.
//!
//! Row locks and fenced writes speak to connections of yours, so the drivers `tokio_postgres` and `mysql_async` are part
//! of this interface and re-exported. When one makes a breaking release, the next minor release of this crate (0.x)
//! follows, never a patch.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod ahead;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod fenced;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod finding;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod joint;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod load;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod name;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod options;
#[cfg(feature = "postgres")]
mod patience;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod retry;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod rowlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sessions;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod tls;

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;

/// What a failed handshake of TLS means and what to do, found among the causes of a driver's error.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub fn tls_advice(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    tls::advice(error)
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use lockkeeper_core::kit::tls::Tls;
#[cfg(feature = "mysql")]
pub use mysql::{Mysql, MysqlOptions, MysqlPlace, MysqlSessions, MysqlSessionsPlace};
#[cfg(feature = "mysql")]
pub use mysql_async;
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresOptions, PostgresPlace, PostgresSessions, PostgresSessionsPlace};
#[cfg(feature = "postgres")]
pub use tokio_postgres;
