//! The bare limit of a hand-off: processes that pass a token round, by the cheapest means that a store has for it.
//!
//! Nobody waits in a line of the store, nothing expires, nothing is fenced. What such a ring loses when it has more
//! processes is what the machine takes for them, whatever is passed on.

mod mariadb;
mod postgres;
mod redis;
mod sqlite;

pub(crate) use mariadb::MariaDbRing;
pub(crate) use postgres::PostgresRing;
pub(crate) use redis::RedisRing;
pub(crate) use sqlite::SqliteRing;

/// Which process of how many this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) at: u32,
    pub(crate) count: u32,
}

impl Member {
    /// Whom this one passes the token to.
    fn next(self) -> u32 {
        (self.at + 1) % self.count
    }

    /// The first one has the token.
    fn begins(self) -> bool {
        self.at == 0
    }
}
