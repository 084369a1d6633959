//! What the tests of this crate share: claims, a small driver of places, and children that are this same test.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses its own part, and may fail loudly")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Turn};
use lockkeeper_core::{Claim, Clock, Key, Load};
use lockkeeper_sqlite::{Sqlite, SqliteOptions, SqlitePlace};
use tempfile::TempDir;

/// No test waits longer than this for anything; only a hang is that slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("the test hangs") })
}

pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Fixture { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    pub(crate) fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.path())
    }

    pub(crate) async fn open(&self) -> Sqlite {
        Sqlite::with(self.options()).await.unwrap()
    }

    /// A look at the file past the backend.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn claims(&self) -> i64 {
        self.number("SELECT count(*) FROM lockkeeper_claim")
    }

    pub(crate) fn execute(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.execute_batch(sql).unwrap();
    }
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim::new(Key::new(key).unwrap(), 10 * SECOND).unwrap()
}

pub(crate) fn room(key: &str, weight: u32, capacity: u32) -> Claim {
    claim(key).load(Load::new(weight, capacity))
}

pub(crate) fn short(key: &str, ttl: Duration) -> Claim {
    claim(key).ttl(ttl)
}

pub(crate) fn impatient(key: &str) -> Claim {
    claim(key).impatient()
}

pub(crate) fn held(turn: Turn) -> Grant {
    match turn {
        Turn::Held(grant) => grant,
        Turn::Wait { .. } => panic!("told to wait: {turn:?}"),
    }
}

pub(crate) fn waits(turn: Turn) -> u64 {
    match turn {
        Turn::Wait { recheck, ahead, .. } => {
            assert!(recheck > Duration::ZERO);
            ahead.expect("this store can count")
        }
        Turn::Held(grant) => panic!("got it: {grant:?}"),
    }
}

/// Wait for our turn as the keeper does.
pub(crate) async fn acquire(place: &mut SqlitePlace) -> Grant {
    loop {
        match place.turn().await.expect("a verb fails") {
            Turn::Held(grant) => return grant,
            Turn::Wait { recheck, .. } => {
                tokio::select! {
                    () = place.changed() => {}
                    () = Clock::boot().sleep(recheck) => {}
                }
            }
        }
    }
}

/// Hold a key of a backend for as long as the place lives.
pub(crate) async fn hold(backend: &Sqlite, claim: Claim) -> (SqlitePlace, Grant) {
    let mut place = backend.enter(claim);
    let grant = held(place.turn().await.unwrap());
    (place, grant)
}

/// In a child: the path it was given.
pub(crate) fn role() -> Option<PathBuf> {
    std::env::var_os("LOCKKEEPER_TEST_CHILD").map(PathBuf::from)
}

/// This same test in another process, which finds `path` in [`role`].
pub(crate) fn child_command(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LOCKKEEPER_TEST_CHILD", path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn children(count: usize, test: &str, path: &Path) -> Vec<Child> {
    (0..count).map(|_| child_command(test, path).spawn().unwrap()).collect()
}

/// Wait for children; all must succeed. Answers what they said.
pub(crate) fn join(children: Vec<Child>) -> Vec<String> {
    children
        .into_iter()
        .map(|child| {
            let out = child.wait_with_output().unwrap();
            let said =
                String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "a child fails: {said}");
            said
        })
        .collect()
}

/// Wait until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::boot();
    let deadline = clock.now().after(PATIENCE / 2);
    while !is_so() {
        assert!(clock.now() < deadline, "never: {what}");
        clock.sleep(Duration::from_millis(5)).await;
    }
}

/// Counts what is written to a file. As long as it lives the write-ahead log only grows.
pub(crate) struct Commits {
    path: PathBuf,
    before: usize,
    /// In a transaction that reads.
    _reader: rusqlite::Connection,
}

impl Commits {
    pub(crate) fn of(fixture: &Fixture) -> Self {
        let reader = rusqlite::Connection::open(fixture.path()).unwrap();
        reader.execute_batch("BEGIN; SELECT 1 FROM lockkeeper_store").unwrap();
        let path = fixture.path().with_file_name("locks.db-wal");
        let before = commits(&path);
        Commits { path, before, _reader: reader }
    }

    /// The transactions since it was made.
    pub(crate) fn count(&self) -> usize {
        commits(&self.path) - self.before
    }
}

/// How many transactions a log holds: a commit marks its last frame with the file's size. Frames with another salt than the
/// log's are of an earlier one.
fn commits(path: &Path) -> usize {
    let log = std::fs::read(path).unwrap();
    let page = usize::try_from(u32::from_be_bytes(log[8..12].try_into().unwrap())).unwrap();
    let frames = log[32..].chunks_exact(24 + page);
    frames.filter(|frame| frame[4..8] != [0; 4] && frame[8..16] == log[16..24]).count()
}
