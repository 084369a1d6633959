//! `run --at-least`, `once`, `elect` and `leader` by real processes on real servers: one story, told on each. And a server that
//! endangers locks.
#![cfg(all(feature = "redis", feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{Store, Talking, code, text};
use lockkeeper_servers as servers;
use rustix::process::Signal;

/// Tell the story while the server goes on.
async fn on(url: String, story: impl FnOnce(&Store) + Send + 'static) {
    tokio::task::spawn_blocking(move || story(&Store::at(url))).await.unwrap();
}

/// A job that is at work until its input is closed; it has told its fence.
fn at_work(store: &Store, args: &[&str]) -> Talking {
    let args = args.iter().chain(&["--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"]);
    let job = Talking::start(store.lockkeeper(args).stdin(Stdio::piped()));
    assert!(0 < job.fence());
    job
}

/// A short job keeps its lock for its time, also when its process has ended, and no longer.
fn keeps_at_least(store: &Store) {
    assert_eq!(store.code_of(&["--at-least", "1h", "poll"]), 0);
    assert_eq!(store.code_of(&["--try", "poll"]), 75, "the hour is not over");
    assert_eq!(store.shown("poll")["holders"].as_array().unwrap().len(), 1);
    assert_eq!(code(&store.output(["break", "--yes", "poll"])), 0);
    assert_eq!(store.code_of(&["--at-least", "300ms", "--ttl", "30s", "poll"]), 0);
    assert_eq!(store.code_of(&["--wait", "2m", "poll"]), 0, "its time is over");
    store.expect_empty();
}

/// A tick is run once, and again only after a failure or a kill.
fn runs_once(store: &Store) {
    let once = |args: &[&str], script: &str| {
        let output = store.output(["once"].iter().chain(args).chain(&["--", "sh", "-c", script]));
        (code(&output), text(&output.stdout))
    };
    assert_eq!(once(&["nightly", "1"], "exit 3"), (3, String::new()));
    let job = at_work(store, &["once", "--ttl", "5s", "nightly", "1"]);
    assert_eq!(once(&["nightly", "1"], "echo ran").0, 75, "another is at it");
    job.send(Signal::KILL);
    job.finish();
    assert_eq!(once(&["--wait", "2m", "nightly", "1"], "echo ran"), (0, "ran\n".into()));
    assert_eq!(once(&["nightly", "1"], "echo ran"), (0, String::new()), "it was done");
    assert_eq!(once(&["nightly", "2"], "echo ran"), (0, "ran\n".into()));
}

/// One leads, others see which, and the next follows.
fn elects(store: &Store) {
    let leader = || {
        let output = store.output(["leader", "--json", "index"]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (code(&output), said["leader"]["value"].as_str().map(str::to_owned))
    };
    assert_eq!(leader(), (75, None));
    let first = at_work(store, &["elect", "--value", "10.0.0.7", "index"]);
    assert_eq!(leader(), (0, Some("10.0.0.7".into())));
    let args =
        ["elect", "--value", "10.0.0.8", "index", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"];
    let second = Talking::start(store.lockkeeper(args).stdin(Stdio::piped()));
    store.await_waiters("index", 1);
    first.let_go();
    assert!(0 < second.fence());
    assert_eq!(leader(), (0, Some("10.0.0.8".into())));
    second.let_go();
    assert_eq!(leader().0, 75);
}

fn all(store: &Store) {
    keeps_at_least(store);
    runs_once(store);
    elects(store);
}

#[tokio::test]
async fn on_redis() {
    let server = servers::Redis::start(servers::RedisOptions::default()).await.unwrap();
    on(server.url(), all).await;
}

#[tokio::test]
async fn on_postgres() {
    let server = servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap();
    on(server.url(), all).await;
}

#[tokio::test]
async fn what_leads_to_a_page_leads_to_one_that_everybody_can_read() {
    let server = servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap();
    let separator = if server.url().contains('?') { '&' } else { '?' };
    for (settings, page) in [
        ("create=no", "backends/postgres.md"),
        ("mode=session&create=no", "guides/sql-durable-or-session.md"),
    ] {
        on(format!("{}{separator}{settings}", server.url()), move |store| {
            let said = common::failed(&store.output(["ls"]), 69);
            let address = format!(" https://github.com/lockkeeper/lockkeeper/blob/main/docs/{page}");
            assert!(said.contains(&address), "{said}");
        })
        .await;
    }
}

/// What operators do, with locks that live in sessions, and the store named by `lockkeeper.toml`.
fn by_session(store: &Store) {
    let file = store.path("lockkeeper.toml");
    let settings = format!("url = \"{}\"\nttl = \"4s\"\n[store]\nmode = \"session\"\n", store.url());
    std::fs::write(&file, settings).unwrap();
    let asked = |args: &[&str]| {
        let mut command = common::lockkeeper(args);
        common::output(command.env("LOCKKEEPER_CONFIG", &file))
    };
    let mut run = common::lockkeeper(["run", "import", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"]);
    let job = Talking::start(run.env("LOCKKEEPER_CONFIG", &file).stdin(Stdio::piped()));
    assert!(0 < job.fence());
    // A row of MySQL is written a moment later.
    let mut looks = std::iter::repeat_with(|| text(&asked(&["ls"]).stdout)).take(1000);
    assert!(looks.any(|it| it.contains("import")), "it is not listed");
    let shown = asked(&["show", "--json", "import"]);
    assert_eq!(code(&shown), 0, "{shown:?}");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{shown}");
    let told = text(&asked(&["doctor"]).stdout);
    assert!(told.contains("locks are session locks"), "the setting of the file was not heard: {told}");
    let broken = asked(&["break", "--yes", "import"]);
    assert_eq!(code(&broken), 0, "{broken:?}");
    assert_eq!(code(&asked(&["run", "--wait", "2m", "import", "--", "true"])), 0);
    assert_ne!(job.finish().0, 0, "it was not told");
}

#[tokio::test]
async fn session_locks_are_chosen_in_the_file_and_operated_on_postgres_and_mysql() {
    let server = servers::Postgres::start(servers::PostgresOptions::default()).await.unwrap();
    on(server.url(), by_session).await;
    let server = servers::Mysql::start(servers::MysqlOptions::default()).await.unwrap();
    on(server.url(), by_session).await;
}

#[tokio::test]
async fn on_mysql() {
    let server = servers::Mysql::start(servers::MysqlOptions::default()).await.unwrap();
    on(server.url(), all).await;
}

#[tokio::test]
async fn on_mariadb_a_short_job_keeps_its_lock() {
    let server = servers::MariaDb::start(servers::MariaDbOptions::default()).await.unwrap();
    on(server.url(), keeps_at_least).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn on_etcd() {
    let server = servers::Etcd::start(servers::EtcdOptions::default()).await.unwrap();
    on(server.url().replace("http://", "etcd://"), all).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn on_zookeeper() {
    let server = servers::ZooKeeper::start(servers::ZooKeeperOptions::default()).await.unwrap();
    on(server.url(), all).await;
}

/// A server that throws keys away when its memory is full throws locks away.
#[tokio::test]
async fn a_danger_fails_the_doctor() {
    let options = servers::RedisOptions::default().set("maxmemory", "100mb");
    let server = servers::Redis::start(options.set("maxmemory-policy", "allkeys-lru")).await.unwrap();
    on(server.url(), |store| {
        let said = store.output(["doctor"]);
        assert_eq!(code(&said), 1, "{said:?}");
        let said = text(&said.stdout);
        assert!(said.contains("allkeys-lru") && said.lines().any(|it| it.starts_with("danger ")), "{said}");
    })
    .await;
}
