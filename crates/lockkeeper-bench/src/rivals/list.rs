//! Who is measured, on which store, and by which program.

use crate::site::{Site, Store};

/// All of them, in the order of the page.
pub(super) const STORES: [Store; 6] =
    [Store::Redis, Store::ZooKeeper, Store::Etcd, Store::Postgres, Store::MariaDb, Store::Mysql];

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
    /// Added to the URL of the store; with a database of its own, if it begins with `/`.
    pub(super) settings: &'static str,
}

impl Contestant {
    /// Where it finds the server: a URL for ours and for drivers that read one, an address for the others.
    pub(super) fn place(&self, site: &Site) -> String {
        let bare = self.program != Program::Own || ["zookeeper-client", "etcd-lock"].contains(&self.lock);
        let url = site.url();
        match url.rsplit_once('/') {
            _ if bare => site.address(),
            Some((server, _)) if self.settings.starts_with('/') => format!("{server}{}", self.settings),
            _ => url + self.settings,
        }
    }
}

const fn one(name: &'static str, program: Program, lock: &'static str) -> Contestant {
    Contestant { name, program, lock, settings: "" }
}

const OURS: Contestant = one("**Lockkeeper**", Program::Own, "ours");
const SESSIONS: Contestant =
    Contestant { name: "**Lockkeeper**, session locks", settings: "?mode=session&schema=sessions", ..OURS };
/// The database that [`Site::second_database`] makes.
pub(super) const SECOND: &str = "sessions";
const MYSQL_SESSIONS: Contestant = Contestant { settings: "/sessions?mode=session", ..SESSIONS };

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
        Store::Postgres => vec![
            OURS,
            SESSIONS,
            one("`pg_advisory_lock` (tokio-postgres)", Program::Own, "pg-advisory"),
            one("sqlx 0.9, `PgAdvisoryLock`", Program::Own, "sqlx-advisory"),
        ],
        Store::MariaDb | Store::Mysql => {
            vec![OURS, MYSQL_SESSIONS, one("`GET_LOCK` (mysql_async)", Program::Own, "get-lock")]
        }
        Store::Sqlite => vec![OURS],
    }
}

/// The columns in which it is compared who is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Free,
    /// Hand-offs and guards of one process, or of four.
    Rate,
    Jain,
    Longest,
    Requests,
    /// From release to grant, between processes of one task.
    Latency,
    Crash,
}

/// What a rival does without, by the first word of its name that is found here.
const WITHOUT: &[(&str, &str)] = &[
    ("rslock", NO_LINE),
    ("redsync", NO_LINE),
    ("node-redlock", NO_LINE),
    ("redis-py", NO_LINE),
    (
        "python-redis-lock",
        "it has no fence and no line: a release wakes one of those who wait, and whoever comes may be quicker",
    ),
    ("Redisson, fair", "it has a line and no fence"),
    ("Redisson, fenced", QUICKEST),
    ("Redisson", "it has no fence and no line: a release wakes those who wait, and the quickest has it"),
    ("zookeeper-client", NO_FENCE),
    ("Curator", NO_FENCE),
    ("kazoo", NO_FENCE),
    ("etcd's own", "it has a line by revisions; whoever wants a fence must find one himself"),
    (
        "the server's `Lock`",
        "its line is asked for inside the server, without a message for each step, and it gives no fence",
    ),
    ("pg_advisory_lock", SERVER_MEMORY),
    ("sqlx", SERVER_MEMORY),
    ("GET_LOCK", SERVER_MEMORY),
];
const NO_FENCE: &str = "it has a line, and gives its callers no fence";
const QUICKEST: &str = "it has no line: a release wakes those who wait, and the quickest has it";
const NO_LINE: &str = "it has no fence and no line: whoever asks again at the right moment has it";
const SERVER_MEMORY: &str = "it has no lease, no fence and no names: the lock is a word in the server's memory and ends with the connection";

/// What this rival does without that ours has, as far as it is known.
pub(super) fn without(rival: &str) -> Option<&'static str> {
    WITHOUT.iter().find(|it| rival.contains(it.0)).map(|it| it.1)
}

/// Why ours is behind in a column. Every column of every store has a reason: what ours does there that others do not.
pub(super) fn reason(store: Store, column: Column) -> &'static str {
    use Column::{Crash, Free, Jain, Latency, Longest, Rate, Requests};
    let sql = matches!(store, Store::Postgres | Store::MariaDb | Store::Mysql);
    match column {
        Free | Requests if sql => {
            "a durable lock of ours writes and flushes a row for each guard, a session lock also draws a fence"
        }
        Rate | Latency if sql => {
            "the server wakes the next one itself, in its memory; ours also hands on a fence, which is stored before the next one hears"
        }
        Crash if sql => {
            "their lock ends with the connection, ours with its lease: it survives a cut connection"
        }
        Free if store == Store::Redis => {
            "two round trips on both sides; our scripts also keep a line and a fence, and the client shares one connection among tasks"
        }
        Free => {
            "a place in line is made and removed for each guard, and a fence is read; whoever keeps neither asks less"
        }
        Rate | Requests => {
            "every hand-off between processes goes by a line in the store, in order; whoever lets the quickest have it asks the store less"
        }
        Latency => {
            "the next in line is told by the store's message; whoever asks again and again may happen to ask at the right moment"
        }
        Jain => {
            "a process that holds the lock hands it on inside for some turns before the next process has it: more guards, less even within so short a run"
        }
        Longest => {
            "whoever waits, waits for all before it; without a line the longest wait of a short run is a matter of luck"
        }
        Crash => {
            "a dead holder's lock is free when its lease ends, 5 s here; whoever has a shorter one, or ends with the connection, is quicker"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_rival_it_is_known_what_it_does_without() {
        for store in STORES {
            for it in of(store).iter().filter(|it| !it.name.contains("Lockkeeper")) {
                assert!(without(it.name).is_some(), "{}", it.name);
            }
        }
        assert_eq!(
            without("Redisson, fenced"),
            WITHOUT.iter().find(|it| it.0.ends_with("fenced")).map(|it| it.1)
        );
        assert!(without("something else").is_none());
    }
}
