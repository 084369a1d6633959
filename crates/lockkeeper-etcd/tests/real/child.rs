//! Another process: this very test program, started again to hold a lock until it is killed.

use std::time::Duration;

use lockkeeper_core::{Clock, Locker};
use lockkeeper_etcd::Etcd;
use lockkeeper_testkit::process::{KitError, Launch, Process, eventually};
use tempfile::TempDir;

const URL: &str = "LOCKKEEPER_TEST_URL";

/// Whether this is the other process. It holds `name` and prints what happens to it.
pub(crate) async fn is_other_process(name: &str, ttl: Duration) -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let locker = Locker::builder(Etcd::connect(&url).await.unwrap()).ttl(ttl).build();
    let guard = locker.lock(name).await.unwrap();
    println!("holds with fence {}.", guard.fence());
    tokio::select! {
        _ = guard.lost() => println!("lost it."),
        () = Clock::boot().sleep(Duration::from_mins(2)) => {}
    }
    true
}

/// The other process, as its parent sees it.
pub(crate) struct Other {
    pub(crate) process: Process,
    log: std::path::PathBuf,
    _folder: TempDir,
}

impl Other {
    /// Start `test` of this program as another process.
    pub(crate) fn start(test: &str, url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let launch = Launch::new(program.to_str().unwrap(), "", folder.path())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(URL, url);
        let log = launch.log().to_owned();
        Other { process: launch.spawn().unwrap(), log, _folder: folder }
    }

    /// Wait until it has printed a line that begins with `what`, and answer the rest.
    pub(crate) async fn says(&self, what: &str) -> String {
        let said = eventually(Duration::from_secs(40), async || {
            let log = std::fs::read_to_string(&self.log)?;
            // Whole sentences only; the runner's own words may stand before them in the line.
            let said = log.split(what).nth(1).and_then(|it| it.split_once('.'));
            said.map(|it| it.0.trim().to_owned()).ok_or_else(|| KitError::new(format!("it said: {log}")))
        });
        said.await.unwrap()
    }
}
