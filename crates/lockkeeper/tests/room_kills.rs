//! Rooms when somebody is killed: a reader, the leader, the last to arrive at a barrier, and the store in between.
//!
//! Others are this same test in another process. It plays the part that stands in its environment, and is ended by SIGKILL.

#![cfg(all(feature = "redis", feature = "postgres", feature = "sqlite"))]
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

use lockkeeper::{Fence, Leader, Leaders, Locker};
use lockkeeper_servers::{Daemon, Postgres, PostgresOptions, Redis, RedisOptions};

const PART: &str = "LOCKKEEPER_TEST_PART";
const URL: &str = "LOCKKEEPER_TEST_URL";
const WORD: &str = "child: ";
/// After so long without a sign of life whoever was killed is given up.
const TTL: Duration = Duration::from_secs(4);
const HANG: Duration = Duration::from_secs(120);

async fn soon<T>(what: &str, answer: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(HANG, answer.into_future())
        .await
        .unwrap_or_else(|_| panic!("{what} does not happen"))
}

/// Where the locks are, and what can be killed of it.
enum Site {
    Redis(Redis),
    Postgres(Postgres),
    Sqlite(tempfile::TempDir),
}

impl Site {
    async fn redis() -> Self {
        let options = RedisOptions::default().append_only();
        Site::Redis(Redis::start(options).await.unwrap())
    }

    async fn postgres() -> Self {
        Site::Postgres(Postgres::start(PostgresOptions::default()).await.unwrap())
    }

    fn sqlite() -> Self {
        Site::Sqlite(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        match self {
            Site::Redis(it) => it.url(),
            Site::Postgres(it) => it.url(),
            Site::Sqlite(it) => format!("sqlite:{}", it.path().join("locks.db").display()),
        }
    }

    async fn locker(&self) -> Locker {
        connect(&self.url()).await
    }

    /// Kill the server, and start it again when `meanwhile` is over. A file has none.
    async fn killed_while(&self, meanwhile: impl FnOnce()) {
        let server: Option<&Daemon> = match self {
            Site::Redis(it) => Some(it),
            Site::Postgres(it) => Some(it),
            Site::Sqlite(_) => None,
        };
        if let Some(server) = server {
            server.kill().unwrap();
        }
        meanwhile();
        if let Some(server) = server {
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
            .env(URL, site.url())
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
    mine.release().await.unwrap();
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

macro_rules! kills {
    ($($name:ident: $scene:ident on $site:expr;)*) => {$(
        // Whoever waits for a word of a child holds up its thread.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if !is_child().await {
                $scene(&$site, stringify!($name)).await;
            }
        }
    )*};
}

kills! {
    a_reader_on_redis: a_reader on Site::redis().await;
    a_reader_on_postgres: a_reader on Site::postgres().await;
    a_reader_on_sqlite: a_reader on Site::sqlite();
    the_leader_on_redis: the_leader on Site::redis().await;
    the_leader_on_postgres: the_leader on Site::postgres().await;
    the_leader_on_sqlite: the_leader on Site::sqlite();
    the_last_to_arrive_on_redis: the_last_to_arrive on Site::redis().await;
    the_last_to_arrive_on_postgres: the_last_to_arrive on Site::postgres().await;
    the_last_to_arrive_on_sqlite: the_last_to_arrive on Site::sqlite();
}
