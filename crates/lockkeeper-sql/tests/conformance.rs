//! The conformance suite on a real PostgreSQL, MariaDB and MySQL.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

#[path = "suites/mysql.rs"]
mod mysql;
#[path = "suites/mysql_sessions.rs"]
mod mysql_sessions;
#[path = "suites/postgres.rs"]
mod postgres;
#[path = "suites/postgres_sessions.rs"]
mod postgres_sessions;
mod shared;
