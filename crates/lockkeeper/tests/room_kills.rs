//! Rooms when somebody is killed: a reader, the leader, the last to arrive at a barrier and at a latch, whoever runs a job, and
//! the store in between. On every store.
//!
//! Others are this same test in another process. It plays the part that stands in its environment, and is ended by SIGKILL.

#![cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and a child talks to its parent"
)]

use std::future::IntoFuture;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockkeeper::{Error, Fence, Leader, Leaders, Locker, Once};
use lockkeeper_core::Clock;
use lockkeeper_servers::{
    Daemon, Etcd, EtcdOptions, MariaDb, MariaDbOptions, Mysql, MysqlOptions, Postgres, PostgresOptions,
    Redis, RedisOptions, ZooKeeper, ZooKeeperOptions,
};

const PART: &str = "LOCKKEEPER_TEST_PART";
const URL: &str = "LOCKKEEPER_TEST_URL";
const WORD: &str = "child: ";
/// After so long without a sign of life whoever was killed is given up.
const TTL: Duration = Duration::from_secs(4);
/// Longer than that.
const KEPT: Duration = Duration::from_secs(8);
const HANG: Duration = Duration::from_secs(120);

async fn soon<T>(what: &str, answer: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(HANG, answer.into_future())
        .await
        .unwrap_or_else(|_| panic!("{what} does not happen"))
}

/// Where the locks are, and what can be killed of it.
struct Site {
    url: String,
    server: Server,
}

enum Server {
    /// A file has none.
    Sqlite(#[expect(dead_code, reason = "it is only kept")] tempfile::TempDir),
    Redis(Redis),
    Postgres(Postgres),
    MariaDb(MariaDb),
    Mysql(Mysql),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

impl Site {
    async fn redis() -> Self {
        let server = Redis::start(RedisOptions::default().append_only()).await.unwrap();
        Site { url: server.url(), server: Server::Redis(server) }
    }

    async fn postgres() -> Self {
        let server = Postgres::start(PostgresOptions::default()).await.unwrap();
        Site { url: server.url(), server: Server::Postgres(server) }
    }

    async fn mariadb() -> Self {
        let server = MariaDb::start(MariaDbOptions::default()).await.unwrap();
        Site { url: server.url(), server: Server::MariaDb(server) }
    }

    async fn mysql() -> Self {
        let server = Mysql::start(MysqlOptions::default()).await.unwrap();
        Site { url: server.url(), server: Server::Mysql(server) }
    }

    async fn etcd() -> Self {
        let server = Etcd::start(EtcdOptions::default()).await.unwrap();
        Site { url: format!("etcd://{}", server.address()), server: Server::Etcd(server) }
    }

    async fn zookeeper() -> Self {
        let server = ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap();
        let url = format!("zookeeper://{}?session={}ms&tick=100ms", server.address(), TTL.as_millis());
        Site { url, server: Server::ZooKeeper(server) }
    }

    #[expect(clippy::unused_async, reason = "as the others are called")]
    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Site {
            url: format!("sqlite:{}", folder.path().join("locks.db").display()),
            server: Server::Sqlite(folder),
        }
    }

    async fn locker(&self) -> Locker {
        connect(&self.url).await
    }

    fn daemon(&self) -> Option<&Daemon> {
        match &self.server {
            Server::Sqlite(_) => None,
            Server::Redis(it) => Some(it),
            Server::Postgres(it) => Some(it),
            Server::MariaDb(it) => Some(it),
            Server::Mysql(it) => Some(it),
            Server::Etcd(it) => Some(it),
            Server::ZooKeeper(it) => Some(it),
        }
    }

    /// Kill the server, and start it again when `meanwhile` is over.
    async fn killed_while(&self, meanwhile: impl FnOnce()) {
        if let Some(server) = self.daemon() {
            server.kill().unwrap();
        }
        meanwhile();
        if let Some(server) = self.daemon() {
            server.start().await.unwrap();
            server.wait_ready().await.unwrap();
        }
    }
}

async fn connect(url: &str) -> Locker {
    let store = lockkeeper::open(url).await.unwrap();
    store.locker.ttl(TTL).outage_max(HANG).build()
}

/// This test in another process, with a part of its own. Killed on drop.
struct Other {
    process: Child,
    says: Receiver<String>,
}

impl Other {
    fn start(site: &Site, test: &str, part: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(PART, part)
            .env(URL, &site.url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (tell, says) = channel();
        std::thread::spawn(move || {
            // The test runner's own words may stand before ours on the line.
            let lines = out.lines().map_while(Result::ok);
            for said in lines.filter_map(|it| it.split_once(WORD).map(|(_, said)| said.to_owned())) {
                let _ = tell.send(said);
            }
        });
        Other { process, says }
    }

    /// The next thing that it says.
    fn hear(&self) -> String {
        self.says.recv_timeout(HANG).unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(text: impl std::fmt::Display) {
    println!("{WORD}{text}");
}

/// What a child does, if this is one. It never ends by itself, but for the one that was met.
async fn is_child() -> bool {
    let (Ok(part), Ok(url)) = (std::env::var(PART), std::env::var(URL)) else { return false };
    let locker = connect(&url).await;
    match part.as_str() {
        "read" => {
            let guard = locker.read("prices").await.unwrap();
            say(guard.fence());
            std::future::pending::<()>().await;
        }
        "lead" => {
            let leads = locker.campaign("role", "child").win().await.unwrap();
            say(leads.term());
            std::future::pending::<()>().await;
        }
        "arrive" => {
            let barrier = locker.barrier("start", 2).ttl(TTL);
            say("arriving");
            let meeting = barrier.wait("child").await.unwrap();
            say(format_args!("{} {:?}", meeting.round, meeting.verdict));
            std::future::pending::<()>().await;
        }
        "count down" => {
            say("arriving");
            let status = locker.latch("imported", 2).arrive("child").await.unwrap();
            say(status.arrived.join(" "));
            std::future::pending::<()>().await;
        }
        "keep" => {
            let guard = locker.lock("report").hold_at_least(KEPT).await.unwrap();
            let fence = guard.fence();
            guard.release().await.unwrap();
            say(fence.get());
            std::future::pending::<()>().await;
        }
        "run" => {
            let job = locker.once("nightly", "2026-11-15").run(async |_| {
                say("running");
                std::future::pending::<Result<(), Error>>().await
            });
            job.await.unwrap();
        }
        other => panic!("no such part: {other}"),
    }
    true
}

fn fence(said: &str) -> u64 {
    said.parse().unwrap()
}

/// A reader is killed, and the store while it reads: whoever writes waits for the living reader and for the dead one's ttl,
/// no longer, and has a larger fence than both.
async fn a_reader(site: &Site, test: &str) {
    let (here, there) = (site.locker().await, site.locker().await);
    let mut reader = Other::start(site, test, "read");
    let theirs = fence(&reader.hear());
    let mine = here.read("prices").await.unwrap();
    assert!(there.write("prices").attempt().await.unwrap().is_none(), "two read");
    let writing = tokio::spawn(async move { there.write("prices").await.map(|it| it.fence()) });
    site.killed_while(|| reader.kill()).await;
    let shared = mine.fence().get();
    // A server may take longer to come back than ours is good for without it.
    let released = mine.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::Lost { .. })), "{released:?}");
    let wrote: Fence = soon("the writer's turn", writing).await.unwrap().unwrap();
    assert!(theirs < wrote.get() && shared < wrote.get(), "{theirs}, {shared}, {wrote}");
    // Nothing of the dead is in the way of anybody.
    let mine = soon("a reader's turn", here.read("prices")).await.unwrap();
    assert!(wrote.get() < mine.fence().get());
    mine.release().await.unwrap();
}

async fn next(leaders: &mut Leaders) -> Option<Leader> {
    soon("news of the leader", leaders.next()).await.unwrap()
}

/// The leader is killed, and the store beside it: nobody leads, which is told, and then the next one does, in a larger term.
async fn the_leader(site: &Site, test: &str) {
    let (here, there) = (site.locker().await, site.locker().await);
    let mut leaders = there.leaders("role").unwrap();
    assert_eq!(next(&mut leaders).await, None);
    let mut leader = Other::start(site, test, "lead");
    let term = fence(&leader.hear());
    let seen = next(&mut leaders).await.unwrap();
    assert_eq!((seen.term.get(), seen.value.as_str()), (term, "child"));
    let standing = tokio::spawn(async move { here.campaign("role", "parent").win().await });
    site.killed_while(|| leader.kill()).await;
    let leads = soon("the next election", standing).await.unwrap().unwrap();
    assert!(term < leads.term().get());
    assert_eq!(next(&mut leaders).await, None, "nobody led in between");
    let seen = next(&mut leaders).await.unwrap();
    assert_eq!((seen.term, seen.value.as_str()), (leads.term(), "parent"));
    leads.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
}

/// The last to arrive is killed while it arrives, and the store with it, again and again: its round opens with it, or with
/// whoever takes its place. What all hear of a round is the same.
async fn the_last_to_arrive(site: &Site, test: &str) {
    const KILLS: usize = 3;
    let locker = site.locker().await;
    let barrier = locker.barrier("start", 2).ttl(TTL);
    let (tell, mut met) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tokio::spawn(async move {
        loop {
            let meeting = barrier.wait("parent").await.unwrap();
            let _ = tell.send(format!("{} {:?}", meeting.round, meeting.verdict));
        }
    });
    for kill in 0..KILLS {
        let mut last = Other::start(site, test, "arrive");
        assert_eq!(last.hear(), "arriving");
        if kill == 0 {
            last.kill();
        } else {
            site.killed_while(|| last.kill()).await;
        }
        let next = Other::start(site, test, "arrive");
        assert_eq!(next.hear(), "arriving");
        let theirs = next.hear();
        assert!(theirs.ends_with("Open") || theirs.contains("Broken"), "{theirs}");
        // Rounds that the dead one opened or broke were heard of by us alone.
        while soon("the same round", met.recv()).await.unwrap() != theirs {}
    }
    waiting.abort();
}

/// The last to arrive at a latch is killed while it arrives, and the store with it: it arrives once more, and counts once.
async fn the_last_at_a_latch(site: &Site, test: &str) {
    let locker = site.locker().await;
    let latch = locker.latch("imported", 2);
    assert!(!latch.status().await.unwrap().is_open(), "a latch at which nobody has arrived is closed");
    latch.arrive("parent").await.unwrap();
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    let mut last = Other::start(site, test, "count down");
    assert_eq!(last.hear(), "arriving");
    site.killed_while(|| last.kill()).await;
    let again = Other::start(site, test, "count down");
    assert_eq!((again.hear().as_str(), again.hear().as_str()), ("arriving", "child parent"));
    let status = soon("the opening", waiting).await.unwrap().unwrap();
    assert_eq!(status.arrived, ["child", "parent"]);
    site.killed_while(|| ()).await;
    assert!(latch.status().await.unwrap().is_open(), "what opened stays open");
}

/// Whoever runs a job is killed, and the store with it: the tick is open again, another runs it, and then it is done.
async fn whoever_runs_a_job(site: &Site, test: &str) {
    let locker = site.locker().await;
    let job = || locker.once("nightly", "2026-11-15");
    let mut other = Other::start(site, test, "run");
    assert_eq!(other.hear(), "running");
    let ran = job().attempt().run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(ran, Once::Busy, "another is at it");
    site.killed_while(|| other.kill()).await;
    let ran = soon("the next run", job().run(async |_| Ok::<_, Error>("report"))).await.unwrap();
    assert_eq!(ran, Once::Ran("report"));
    site.killed_while(|| ()).await;
    let ran = soon("the answer", job().run(async |_| Ok::<_, Error>("once more"))).await.unwrap();
    assert_eq!(ran, Once::Done);
}

/// A process gives a lock back that is to be kept, and is killed: others find it taken until the time is over, and not before that.
async fn what_is_kept(site: &Site, test: &str) {
    let (locker, clock) = (site.locker().await, Clock::boot());
    // It is taken after this.
    let begun = clock.now();
    let mut other = Other::start(site, test, "keep");
    let kept = fence(&other.hear());
    other.kill();
    let tried = locker.try_lock("report").await.unwrap();
    assert!(tried.is_none() || begun.after(KEPT) <= clock.now(), "it is to be kept");
    drop(tried);
    let guard = soon("the next turn", locker.lock("report")).await.unwrap();
    assert!(begun.after(KEPT) <= clock.now(), "it was had before the time was over");
    assert!(kept < guard.fence().get());
    guard.release().await.unwrap();
}

/// Every scene on one store.
macro_rules! kills {
    ($($site:ident)*) => {$(
        mod $site {
            use super::*;

            kills!(
                @scenes $site:
                a_reader the_leader the_last_to_arrive the_last_at_a_latch whoever_runs_a_job what_is_kept
            );
        }
    )*};
    (@scenes $site:ident: $($scene:ident)*) => {$(
        // Whoever waits for a word of a child holds up its thread.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scene() {
            if !is_child().await {
                let test = concat!(stringify!($site), "::", stringify!($scene));
                super::$scene(&Site::$site().await, test).await;
            }
        }
    )*};
}

kills!(sqlite redis postgres mariadb mysql etcd zookeeper);
