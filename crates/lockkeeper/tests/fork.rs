//! A process that uses locks and forks: what it made does not work in the child and says so at once, nothing of it is
//! given back there, and what the child opens itself shares neither ids nor fences with anybody.
//!
//! A test's own process has threads of the harness. So each case runs in a process of its own, which is this same test.

#![cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "redlock",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]
#![allow(clippy::print_stderr, reason = "what is printed is shown when a test fails")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fork::Fork;
use lockkeeper::barrier::{Entry, Inside};
use lockkeeper::spi::DynInspect;
use lockkeeper::{Error, Guard, Key, Latch, Leaders, Leadership, Locker, LostReason, Result, Tick};
use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions, Redis,
    RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use tokio::runtime::Runtime;

const CHILDREN: usize = 3;
const ROUNDS: usize = 15;
/// Long enough that nothing expires while the machine is busy.
const TTL: Duration = Duration::from_secs(120);
/// Nothing in these tests takes nearly as long.
const HANG: Duration = Duration::from_secs(60);

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

/// What a process has when it forks: a locker that has worked, and something of every kind that it made.
struct Along {
    locker: Locker,
    kept: Guard,
    leadership: Leadership,
    deputy: Leadership,
    leaders: Leaders,
    tick: Tick,
    latch: Latch,
    inside: Box<Inside>,
    inspect: Arc<dyn DynInspect>,
}

fn begin(runtime: &Runtime, url: &str) -> Along {
    runtime.block_on(async {
        let store = lockkeeper::open(url).await.unwrap();
        let (locker, inspect) = (store.locker.ttl(TTL).build(), store.inspect);
        locker.lock("shared").await.unwrap().release().await.unwrap();
        let kept = locker.lock("kept").await.unwrap();
        let leadership = locker.campaign("role", "the parent").win().await.unwrap();
        let deputy = locker.campaign("deputy", "the parent").win().await.unwrap();
        let mut leaders = locker.leaders("role").unwrap();
        assert_eq!(leaders.next().await.unwrap().unwrap().value, "the parent");
        let tick = locker.once("job", "tick").tick().unwrap();
        let latch = locker.latch("latch", 2);
        latch.arrive("the parent").await.unwrap();
        let Entry::Inside(inside) = locker.barrier("double", 1).enter("the parent").await.unwrap() else {
            panic!("it was broken");
        };
        Along { locker, kept, leadership, deputy, leaders, tick, latch, inside, inspect }
    })
}

/// It answered that it does not work in a fork.
#[track_caller]
fn refused<T>(answer: Result<T>) {
    match answer {
        Err(error @ Error::Forked { .. }) => assert!(error.to_string().contains("fork"), "{error}"),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was answered"),
    }
}

/// Until it is dropped: a fork that hangs ends, and not well.
fn never_hangs() -> Sender<()> {
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        if is_over.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("what came along by a fork hangs");
            std::process::exit(9);
        }
    });
    over
}

/// In a fork: what came along answers at once, and never says yes.
fn what_came_along_is_refused(along: Along) {
    let _over = never_hangs();
    let Along { locker, kept, leadership, deputy, mut leaders, tick, latch, inside, inspect } = along;
    locks_are_refused(&locker, kept);
    memos_are_refused(&locker, &latch, &tick);
    refused(leaders.next_blocking());
    runtime().block_on(async {
        memos_are_refused_async(&locker, &latch, &tick).await;
        refused(leaders.next().await);
        a_role_is_refused(leadership).await;
        inspection_is_refused(&*inspect).await;
    });
    refused(deputy.resign_blocking());
    refused(inside.leave_blocking());
    drop(locker);
}

fn locks_are_refused(locker: &Locker, kept: Guard) {
    assert!(!kept.is_valid() && kept.remaining() == Duration::ZERO);
    refused(kept.check());
    refused(locker.lock("other").blocking());
    refused(locker.lock("other").attempt().blocking());
    refused(kept.release_blocking());
    assert_eq!(locker.cool(), 0);
}

/// Everything that stands on memos, on a thread without a runtime.
fn memos_are_refused(locker: &Locker, latch: &Latch, tick: &Tick) {
    refused(locker.leader_blocking("role"));
    refused(locker.leaders("role"));
    refused(locker.campaign("role", "a fork").win_blocking());
    refused(locker.latch("latch", 2).arrive_blocking("a fork"));
    refused(latch.arrive_blocking("a fork"));
    refused(latch.status_blocking());
    refused(latch.wait_blocking());
    refused(locker.barrier("double", 1).status_blocking());
    refused(locker.barrier("double", 1).wait_blocking("a fork"));
    refused(locker.barrier("double", 1).enter_blocking("a fork"));
    refused(tick.is_done_blocking());
    refused(tick.set_done_blocking());
    refused(locker.once("job", "tick").tick());
    refused(locker.once("job", "tick").run_blocking(|_| Ok::<_, Error>(())));
}

/// The same where there is one.
async fn memos_are_refused_async(locker: &Locker, latch: &Latch, tick: &Tick) {
    refused(locker.lock("other").await);
    refused(locker.leader("role").await);
    refused(locker.campaign("role", "a fork").win().await);
    refused(locker.campaign("role", "a fork").run(async |_| ()).await);
    refused(latch.arrive("a fork").await);
    refused(latch.status().await);
    refused(latch.wait().await);
    refused(locker.barrier("double", 1).status().await);
    refused(locker.barrier("double", 1).wait("a fork").await);
    refused(locker.barrier("double", 1).enter("a fork").await);
    refused(tick.is_done().await);
    refused(tick.set_done().await);
    refused(locker.once("job", "tick").run(async |_| Ok::<_, Error>(())).await);
    refused(locker.shutdown(HANG).await);
}

async fn a_role_is_refused(leadership: Leadership) {
    assert!(!leadership.is_valid() && leadership.remaining() == Duration::ZERO);
    assert_eq!(leadership.lost().unwrap().await, LostReason::Forked);
    refused(leadership.proclaim("a fork").await);
    refused(leadership.proclaim_blocking("a fork"));
    refused(leadership.resign().await);
}

async fn inspection_is_refused(inspect: &dyn DynInspect) {
    let key = Key::new("kept").unwrap();
    let answers = [
        inspect.list("").await.map(drop),
        inspect.show(&key).await.map(drop),
        inspect.break_lock(&key).await.map(drop),
        inspect.doctor().await.map(drop),
    ];
    for answer in answers {
        let fault = answer.expect_err("it was answered");
        assert!(fault.to_string().contains("came here by a fork"), "{fault}");
    }
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

/// What the parent has was not touched, and works on.
fn the_parent_goes_on(runtime: &Runtime, url: &str, along: Along) {
    let Along { locker, kept, leadership, deputy, mut leaders, tick, latch, inside, inspect } = along;
    assert!(kept.is_valid() && leadership.is_valid() && deputy.is_valid());
    runtime.block_on(async {
        let stranger = open(url).await;
        assert!(stranger.try_lock("kept").await.unwrap().is_none(), "a fork gave it back");
        assert_eq!(stranger.leader("role").await.unwrap().unwrap().value, "the parent");
        assert_eq!(stranger.leader("deputy").await.unwrap().unwrap().term, deputy.term());
        assert_eq!(latch.status().await.unwrap().arrived, ["the parent"]);
        assert!(!tick.is_done().await.unwrap(), "a fork said so");
        inside.leave().await.unwrap();
        leadership.resign().await.unwrap();
        assert_eq!(leaders.next().await.unwrap(), None);
        locker.lock("after").await.unwrap().release().await.unwrap();
        assert!(inspect.show(kept.key()).await.unwrap().is_some());
        kept.release().await.unwrap();
        assert!(stranger.try_lock("kept").await.unwrap().is_some());
    });
}

/// The same where the store keeps no memos: locks are all there is.
fn beside_servers_of_locks_alone(url: &str, folder: &Path) {
    let runtime = runtime();
    let (locker, kept, inspect) = runtime.block_on(async {
        let store = lockkeeper::open(url).await.unwrap();
        let locker = store.locker.ttl(TTL).build();
        locker.lock("shared").await.unwrap().release().await.unwrap();
        let kept = locker.lock("kept").await.unwrap();
        (locker, kept, store.inspect)
    });
    let mut along = Some((locker, kept, inspect));
    let children = (0..CHILDREN).map(|_| {
        forked(|| {
            let over = never_hangs();
            let (locker, kept, inspect) = along.take().unwrap();
            locks_are_refused(&locker, kept);
            self::runtime().block_on(inspection_is_refused(&*inspect));
            drop((locker, over));
            take_turns(url, folder);
        })
    });
    children.collect::<Vec<_>>().into_iter().for_each(ends_well);
    fences_grew(folder);
    let (locker, kept, inspect) = along.unwrap();
    assert!(kept.is_valid());
    runtime.block_on(async {
        let stranger = open(url).await;
        assert!(stranger.try_lock("kept").await.unwrap().is_none(), "a fork gave it back");
        locker.lock("after").await.unwrap().release().await.unwrap();
        assert!(inspect.show(kept.key()).await.unwrap().is_some());
        kept.release().await.unwrap();
        assert!(stranger.try_lock("kept").await.unwrap().is_some());
    });
}

/// On a server the children open lockers of their own while the parent's is open.
fn beside_a_server(url: &str, folder: &Path) {
    let runtime = runtime();
    let mut along = Some(begin(&runtime, url));
    let children = (0..CHILDREN).map(|_| {
        forked(|| {
            what_came_along_is_refused(along.take().unwrap());
            take_turns(url, folder);
        })
    });
    children.collect::<Vec<_>>().into_iter().for_each(ends_well);
    fences_grew(folder);
    the_parent_goes_on(&runtime, url, along.unwrap());
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
fn on_mysql_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_a_server(&url, &folder);
    }
    let runtime = runtime();
    let server = runtime.block_on(Mysql::start(MysqlOptions::default())).unwrap();
    in_a_process_of_its_own("on_mysql_a_fork_shares_nothing_with_its_parent", &server.url());
}

/// A server whose sessions last as long as the ttl, and how to reach it.
fn zookeeper(runtime: &Runtime) -> (ZooKeeper, String) {
    let longest = TTL.as_millis().to_string();
    let options = ZooKeeperOptions::default().set("maxSessionTimeout", &longest);
    let server = runtime.block_on(ZooKeeper::start(options)).unwrap();
    let url = format!("zookeeper://{}?session={}s", server.address(), TTL.as_secs());
    (server, url)
}

#[test]
fn on_zookeeper_a_fork_is_refused_after_its_parent_used_it() {
    if let Some((url, _)) = role() {
        let runtime = runtime();
        let mut along = Some(begin(&runtime, &url));
        ends_well(forked(|| {
            what_came_along_is_refused(along.take().unwrap());
            let _over = never_hangs();
            let error = self::runtime().block_on(lockkeeper::open(&url)).unwrap_err();
            assert!(error.to_string().contains("a fork of one that used ZooKeeper"), "{error}");
        }));
        return the_parent_goes_on(&runtime, &url, along.unwrap());
    }
    let runtime = runtime();
    let (_server, url) = zookeeper(&runtime);
    in_a_process_of_its_own("on_zookeeper_a_fork_is_refused_after_its_parent_used_it", &url);
}

#[test]
fn on_zookeeper_forks_take_turns_if_their_parent_has_not_used_it() {
    if let Some((url, folder)) = role() {
        let children = (0..CHILDREN).map(|_| forked(|| take_turns(&url, &folder)));
        children.collect::<Vec<_>>().into_iter().for_each(ends_well);
        return fences_grew(&folder);
    }
    let runtime = runtime();
    let (_server, url) = zookeeper(&runtime);
    in_a_process_of_its_own("on_zookeeper_forks_take_turns_if_their_parent_has_not_used_it", &url);
}

#[test]
fn on_redlock_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_servers_of_locks_alone(&url, &folder);
    }
    let runtime = runtime();
    let start = || runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    let servers = [start(), start(), start()];
    // These servers have just begun and remember nobody; and the machine may be slow.
    let nodes = servers.each_ref().map(|it| it.address()).join(",");
    let url = format!("redlock://{nodes}?restart_guard=off&node_timeout=2s");
    in_a_process_of_its_own("on_redlock_a_fork_shares_nothing_with_its_parent", &url);
}

#[test]
fn on_redis_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_a_server(&url, &folder);
    }
    let runtime = runtime();
    let server = runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    in_a_process_of_its_own("on_redis_a_fork_shares_nothing_with_its_parent", &server.url());
}

#[test]
fn on_etcd_a_fork_shares_nothing_with_its_parent() {
    if let Some((url, folder)) = role() {
        return beside_a_server(&url, &folder);
    }
    let runtime = runtime();
    let server = runtime.block_on(Etcd::start(EtcdOptions::default())).unwrap();
    let url = server.url().replace("http://", "etcd://");
    in_a_process_of_its_own("on_etcd_a_fork_shares_nothing_with_its_parent", &url);
}

#[test]
fn on_sqlite_a_fork_is_refused_a_file_that_its_parent_has_open() {
    let test = "on_sqlite_a_fork_is_refused_a_file_that_its_parent_has_open";
    if let Some((url, _)) = role() {
        let runtime = runtime();
        let mut along = Some(begin(&runtime, &url));
        ends_well(forked(|| {
            what_came_along_is_refused(along.take().unwrap());
            let error = self::runtime().block_on(lockkeeper::open(&url)).unwrap_err();
            assert!(error.to_string().contains("a fork of one that had the file open"), "{error}");
        }));
        return the_parent_goes_on(&runtime, &url, along.unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    in_a_process_of_its_own(test, &format!("sqlite:{}", folder.path().join("locks.db").display()));
}

#[test]
fn on_sqlite_forks_take_turns_once_their_parent_has_closed_the_file() {
    if let Some((url, folder)) = role() {
        let runtime = runtime();
        runtime.block_on(async {
            let locker = open(&url).await;
            locker.lock("shared").await.unwrap().release().await.unwrap();
        });
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
