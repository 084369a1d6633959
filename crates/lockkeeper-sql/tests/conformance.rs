//! The conformance suite on a real PostgreSQL, MariaDB and MySQL.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

#[path = "suites/mysql.rs"]
mod mysql;
#[path = "suites/postgres.rs"]
mod postgres;
mod shared;
