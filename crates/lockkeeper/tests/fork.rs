//! A process that uses locks and forks: what it made does not work in the child and says so at once, nothing of it is
//! given back there, and what the child opens itself shares neither ids nor fences with anybody.
//!
//! A test's own process has threads of the harness. So each case runs in a process of its own, which is this same test.

#![cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fork::Fork;
use lockkeeper::{Error, Guard, Locker};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use tokio::runtime::Runtime;

const CHILDREN: usize = 3;
const ROUNDS: usize = 15;
/// Long enough that nothing expires while the machine is busy.
const TTL: Duration = Duration::from_secs(120);
/// Nothing in these tests takes nearly as long.
const HANG: Duration = Duration::from_secs(120);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What a process of its own is to do: the store's URL, and a folder that its children share.
fn role() -> Option<(String, PathBuf)> {
    let variable = |name| std::env::var(name).ok();
    Some((variable("LOCKKEEPER_TEST_FORK_URL")?, variable("LOCKKEEPER_TEST_FORK_FOLDER")?.into()))
}

/// Run this same test in a process of its own, with one thread.
fn in_a_process_of_its_own(test: &str, url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LOCKKEEPER_TEST_FORK_URL", url).env("LOCKKEEPER_TEST_FORK_FOLDER", folder.path());
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

/// Do something in a fork, which must end well.
fn forked(work: impl FnOnce()) -> i32 {
    match fork::fork().unwrap() {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            // Nobody of the harness may find itself in two processes.
            let ended = catch_unwind(AssertUnwindSafe(work));
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn ends_well(pid: i32) {
    assert_eq!(fork::waitpid(pid).unwrap(), 0, "a fork fails: see above");
}

async fn open(url: &str) -> Locker {
    lockkeeper::open(url).await.unwrap().locker.ttl(TTL).build()
}

/// A locker that has worked, and a guard that it holds.
fn begin(runtime: &Runtime, url: &str) -> (Locker, Guard) {
    runtime.block_on(async {
        let locker = open(url).await;
        locker.lock("shared").await.unwrap().release().await.unwrap();
        let kept = locker.lock("kept").await.unwrap();
        (locker, kept)
    })
}

/// In a fork: what came along answers at once, and never says yes.
fn what_came_along_is_refused(locker: Locker, kept: Guard) {
    assert!(!kept.is_valid() && kept.remaining() == Duration::ZERO);
    assert!(matches!(kept.check(), Err(Error::Forked { .. })));
    let error = locker.lock("other").blocking().unwrap_err();
    assert!(matches!(error, Error::Forked { .. }), "{error}");
    assert!(error.to_string().contains("fork"), "{error}");
    assert!(matches!(locker.lock("other").attempt().blocking(), Err(Error::Forked { .. })));
    assert!(matches!(kept.release_blocking(), Err(Error::Forked { .. })));
    drop(locker);
}

/// In a fork: take turns with the others, and write down what was got.
fn take_turns(url: &str, folder: &Path) {
    runtime().block_on(async {
        let own = open(url).await;
        for _ in 0..ROUNDS {
            let guard = own.lock("shared").wait_at_most(HANG).await.unwrap();
            let alone = OpenOptions::new().write(true).create_new(true).open(folder.join("inside"));
            alone.expect("somebody else is inside");
            let mut log = OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
            writeln!(log, "{}", guard.fence().get()).unwrap();
            fs::remove_file(folder.join("inside")).unwrap();
            assert!(guard.is_valid());
            guard.release().await.unwrap();
        }
    });
}

/// All fences were given once, and grew.
fn fences_grew(folder: &Path) {
    let log = fs::read_to_string(folder.join("log")).unwrap();
    let fences: Vec<u64> = log.lines().map(|it| it.parse().unwrap()).collect();
    assert_eq!(fences.len(), CHILDREN * ROUNDS);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

/// The parent's lock was not touched, and it works on.
fn the_parent_goes_on(runtime: &Runtime, url: &str, locker: &Locker, kept: Guard) {
    assert!(kept.is_valid());
    runtime.block_on(async {
        let stranger = open(url).await;
        assert!(stranger.try_lock("kept").await.unwrap().is_none(), "a fork gave it back");
        locker.lock("after").await.unwrap().release().await.unwrap();
        kept.release().await.unwrap();
        assert!(stranger.try_lock("kept").await.unwrap().is_some());
    });
}

/// On a server the children open lockers of their own while the parent's is open.
fn beside_a_server(url: &str, folder: &Path) {
    let runtime = runtime();
    let (locker, kept) = begin(&runtime, url);
    let mut came_along = Some((locker, kept));
    let children = (0..CHILDREN).map(|_| {
        forked(|| {
            let (locker, kept) = came_along.take().unwrap();
            what_came_along_is_refused(locker, kept);
            take_turns(url, folder);
        })
    });
    children.collect::<Vec<_>>().into_iter().for_each(ends_well);
    let (locker, kept) = came_along.unwrap();
    fences_grew(folder);
    the_parent_goes_on(&runtime, url, &locker, kept);
}

#[test]
fn on_postgres_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_a_server(&url, &folder);
    }
    let runtime = runtime();
    let server = runtime.block_on(Postgres::start(PostgresOptions::default())).unwrap();
    in_a_process_of_its_own("on_postgres_a_fork_shares_nothing_with_its_parent", &server.url());
}

#[test]
fn on_mariadb_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_a_server(&url, &folder);
    }
    let runtime = runtime();
    let server = runtime.block_on(MariaDb::start(MariaDbOptions::default())).unwrap();
    in_a_process_of_its_own("on_mariadb_a_fork_shares_nothing_with_its_parent", &server.url());
}

#[test]
fn on_sqlite_a_fork_is_refused_a_file_that_its_parent_has_open() {
    let test = "on_sqlite_a_fork_is_refused_a_file_that_its_parent_has_open";
    if let Some((url, _)) = role() {
        let runtime = runtime();
        let (locker, kept) = begin(&runtime, &url);
        let store = runtime.block_on(lockkeeper::open(&url)).unwrap();
        let mut came_along = Some((locker, kept));
        ends_well(forked(|| {
            let (locker, kept) = came_along.take().unwrap();
            what_came_along_is_refused(locker, kept);
            let own = self::runtime();
            let listed = own.block_on(store.inspect.list("")).unwrap_err();
            assert!(listed.to_string().contains("forked"), "{listed}");
            let error = own.block_on(lockkeeper::open(&url)).unwrap_err();
            assert!(error.to_string().contains("a fork of one that had the file open"), "{error}");
        }));
        let (locker, kept) = came_along.unwrap();
        return the_parent_goes_on(&runtime, &url, &locker, kept);
    }
    let folder = tempfile::tempdir().unwrap();
    in_a_process_of_its_own(test, &format!("sqlite:{}", folder.path().join("locks.db").display()));
}

#[test]
fn on_sqlite_forks_take_turns_once_their_parent_has_closed_the_file() {
    if let Some((url, folder)) = role() {
        let runtime = runtime();
        let (locker, kept) = begin(&runtime, &url);
        runtime.block_on(kept.release()).unwrap();
        drop(locker);
        // The locker's threads close the file after it is dropped.
        while has_open(url.strip_prefix("sqlite:").unwrap()) {
            std::thread::yield_now();
        }
        let children = (0..CHILDREN).map(|_| forked(|| take_turns(&url, &folder)));
        children.collect::<Vec<_>>().into_iter().for_each(ends_well);
        return fences_grew(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "on_sqlite_forks_take_turns_once_their_parent_has_closed_the_file";
    in_a_process_of_its_own(test, &format!("sqlite:{}", folder.path().join("locks.db").display()));
}

/// Whether this process has a file open, or its thread that would.
fn has_open(path: &str) -> bool {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|it| fs::read_link(it.ok()?.path()).ok());
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("comm")).ok());
    let open = links.into_iter().any(|it| it.to_string_lossy().starts_with(path));
    open || names.into_iter().any(|it| it.trim() == "lockkeeper-sql")
}
