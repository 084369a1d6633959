//! Another process: the test program itself, started again to hold a lock until it is killed.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Clock, Locker};
use tempfile::TempDir;

use super::{PATIENCE, Quorum};
use crate::process::{KitError, Launch, Process, eventually};

const URL: &str = "LOCKKEEPER_TEST_URL";
const TTL: &str = "LOCKKEEPER_TEST_TTL_MS";
/// What the other process locks.
pub(super) const NAME: &str = "job";

/// Whether this is the other process. It has then held the lock, and printed what happened to it.
pub(super) async fn is_other_process<Q: Quorum>() -> bool {
    let (Ok(url), Ok(ttl)) = (std::env::var(URL), std::env::var(TTL)) else { return false };
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let locker = Locker::builder(Q::connect(&url).await).ttl(ttl).build();
    let guard = locker.lock(NAME).await.unwrap();
    say(&format!("holds with fence {}.", guard.fence()));
    tokio::select! {
        _ = guard.lost() => say("lost it."),
        () = Clock::boot().sleep(PATIENCE * 2) => {}
    }
    true
}

fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{what}").and_then(|()| out.flush()).unwrap();
}

/// The other process, as its parent sees it.
pub(super) struct Other {
    pub(super) process: Process,
    log: PathBuf,
    _folder: TempDir,
}

impl Other {
    /// Start the test with this full name as another process.
    pub(super) fn start(test: &str, url: &str, ttl: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        // The first part is the program's own name, which the runner does not use.
        let test = test.split_once("::").map_or(test, |it| it.1);
        let launch = Launch::new(program.to_str().unwrap(), "", folder.path())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(TTL, ttl.as_millis().to_string())
            .env(URL, url);
        let log = launch.log().to_owned();
        Other { process: launch.spawn().unwrap(), log, _folder: folder }
    }

    /// Wait until it has printed a sentence that begins with `what`, and answer the rest.
    pub(super) async fn says(&self, what: &str) -> String {
        let said = eventually(PATIENCE, async || {
            let log = std::fs::read_to_string(&self.log)?;
            // Whole sentences only; the runner's own words may stand before them in the line.
            let said = log.split(what).nth(1).and_then(|it| it.split_once('.'));
            said.map(|it| it.0.trim().to_owned()).ok_or_else(|| KitError::new(format!("it said: {log}")))
        });
        said.await.unwrap()
    }
}
