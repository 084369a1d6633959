//! Who is measured, on which store, and by which program.

use crate::site::{Site, Store};

/// All of them, in the order of the page.
pub(super) const STORES: [Store; 5] =
    [Store::Redis, Store::ZooKeeper, Store::Etcd, Store::Postgres, Store::MariaDb];

/// The program that speaks for a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// This one.
    Own,
    Python,
    Node,
    Go,
    Java,
}

/// One lock that people could take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contestant {
    /// On the page.
    pub(super) name: &'static str,
    pub(super) program: Program,
    /// Its first argument.
    pub(super) lock: &'static str,
    /// Added to the URL of the store.
    pub(super) settings: &'static str,
}

impl Contestant {
    /// Where it finds the server: a URL for ours and for drivers that read one, an address for the others.
    pub(super) fn place(&self, site: &Site) -> String {
        let bare = self.program != Program::Own || ["zookeeper-client", "etcd-lock"].contains(&self.lock);
        if bare { site.address() } else { site.url() + self.settings }
    }
}

const fn one(name: &'static str, program: Program, lock: &'static str) -> Contestant {
    Contestant { name, program, lock, settings: "" }
}

const OURS: Contestant = one("**Lockkeeper**", Program::Own, "ours");
const SESSIONS: Contestant =
    Contestant { name: "**Lockkeeper**, session locks", settings: "?mode=session&schema=sessions", ..OURS };

/// Everybody on one store, ours first.
pub(super) fn of(store: Store) -> Vec<Contestant> {
    match store {
        Store::Redis => vec![
            OURS,
            one("rslock 0.10 (Rust)", Program::Own, "rslock"),
            one("redsync 4.18 (Go)", Program::Go, "redsync"),
            one("Redisson 4.0 (Java)", Program::Java, "redisson"),
            one("Redisson, fair", Program::Java, "redisson-fair"),
            one("Redisson, fenced", Program::Java, "redisson-fenced"),
            one("redis-py 8.1 (Python)", Program::Python, "redis-py"),
            one("python-redis-lock 4.0", Program::Python, "python-redis-lock"),
            one("node-redlock 5 beta", Program::Node, "redlock"),
        ],
        Store::ZooKeeper => vec![
            OURS,
            one("zookeeper-client's own lock (Rust)", Program::Own, "zookeeper-client"),
            one("Curator 5.7 (Java)", Program::Java, "curator"),
            one("kazoo 2.11 (Python)", Program::Python, "kazoo"),
        ],
        Store::Etcd => vec![
            OURS,
            one("etcd's own concurrency package 3.7 (Go)", Program::Go, "etcd-concurrency"),
            one("the server's `Lock` call", Program::Own, "etcd-lock"),
        ],
        Store::Postgres => {
            vec![OURS, SESSIONS, one("`pg_advisory_lock`", Program::Own, "pg-advisory")]
        }
        Store::MariaDb => vec![OURS, one("`GET_LOCK`", Program::Own, "get-lock")],
        Store::Sqlite | Store::Mysql => vec![OURS],
    }
}

/// Why ours is behind somewhere, where it is known.
pub(super) fn reason(store: Store, column: &str) -> &'static str {
    match (store, column) {
        (Store::Redis, "free") => {
            "two round trips on both sides; our scripts also keep a line and a fence, and the client shares one connection among tasks"
        }
        (Store::Postgres | Store::MariaDb, "free" | "4 × 1") => {
            "a durable lock writes and flushes a row for each guard; the server's own locks live in its memory, end with the connection and have no fence"
        }
        (Store::Postgres | Store::MariaDb, "crash") => {
            "their lock ends with the connection, ours with its lease: it survives a cut connection"
        }
        _ => "no reason is known",
    }
}
