//! `lockkeeper torture` on deployments: what it tells, what it leaves behind, and what it refuses.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStderr, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Store, code, failed, finish, send, text};
use lockkeeper::spi::Clock;
use lockkeeper_servers::{
    Etcd, EtcdOptions, Postgres, PostgresOptions, Redis, RedisOptions, Value, ZooKeeper, ZooKeeperOptions,
};
use rustix::process::Signal;
use tokio::sync::oneshot;

/// Nothing but processes of ours is broken, and locks are short: this takes a few seconds.
const SHORT: [&str; 7] = ["torture", "--your-turn", "0s", "--ttl", "2s", "--processes", "2"];

#[test]
fn a_file_keeps_its_promises_and_nothing_is_left_in_it() {
    let store = Store::new();
    let end = store.output(SHORT);
    let said = text(&end.stdout);
    assert_eq!(code(&end), 0, "{end:?}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("torture: sqlite:") && last.contains(" G=0 "), "{said}");
    assert!(last.ends_with(" F=0 orphans=0 late=0 mutant=none"), "{said}");
    let told = text(&end.stderr);
    assert!(told.contains("step 1 of 4") && told.contains("step 4 of 4"), "{told}");
    let left = store.output(["ls", "--json"]);
    assert!(text(&left.stdout).contains("\"locks\": []"), "{left:?}");
}

#[tokio::test]
async fn a_server_behind_a_password_is_tried_and_the_password_told_to_nobody() {
    let redis = Redis::start(RedisOptions::default().password("canary7")).await.unwrap();
    let store = Store::at(redis.url());
    let mut words = SHORT.to_vec();
    words.extend(["--tasks", "3", "--seed", "5"]);
    let end = tokio::task::spawn_blocking(move || store.output(words)).await.unwrap();
    assert_eq!(code(&end), 0, "{end:?}");
    let all = text(&end.stdout) + &text(&end.stderr);
    assert!(all.contains("torture: redis://") && !all.contains("canary7"), "{all}");
}

/// The user does as he is told, while everybody fights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_restarted_when_it_is_the_users_turn_keeps_its_promises_and_no_keys() {
    let redis = Redis::start(RedisOptions::default().append_only()).await.unwrap();
    let store = Store::at(redis.url());
    let mut words = SHORT.to_vec();
    (words[2], words[6]) = ("3s", "3");
    words.extend(["--tasks", "5", "--seed", "6"]);
    let mut run = store.lockkeeper(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, turn) = until_told(run.stderr.take().unwrap(), "your turn: for 3s");
    turn.await.expect("the user is told when it is his turn");
    redis.restart().await.unwrap();
    let end = tokio::task::spawn_blocking(move || finish(run)).await.unwrap();
    let told = said.join().unwrap();
    assert_eq!(code(&end), 0, "{told}{end:?}");
    assert!(told.contains("step 5 of 5") && told.contains("Restart the server"), "{told}");
    let figures = text(&end.stdout);
    assert!(figures.contains("\nyours ") && figures.contains(" G=0 "), "{figures}");
    // The last counter of each name stays for a while; then nothing but the mark of all of them.
    let left = async || {
        let keys = redis.command(&["KEYS", "*"]).await.unwrap();
        let keys = keys.items().iter().map(Value::text).filter(|it| !it.starts_with("lk:mark"));
        keys.collect::<Vec<_>>()
    };
    let clock = Clock::boot();
    let due = clock.now().after(common::HANG);
    while !left().await.is_empty() {
        assert!(clock.now() < due, "{:?} stay", left().await);
        clock.sleep(Duration::from_millis(50)).await;
    }
}

/// A store that was told to keep its promise, and forgets all the same: the torture is not worth its name if it stays silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_forgets_what_it_promised_to_keep_is_told_with_a_code_of_its_own() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let store = Store::at(format!("{}?restart_guard=1s", redis.url()));
    let mut words = SHORT.to_vec();
    (words[2], words[6]) = ("4s", "3");
    words.extend(["--seed", "7"]);
    let mut run = store.lockkeeper(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, turn) = until_told(run.stderr.take().unwrap(), "your turn: for 4s");
    turn.await.expect("the user is told when it is his turn");
    // Many times, so that somebody surely believes in what is forgotten.
    for _ in 0..100 {
        redis.command(&["FLUSHALL"]).await.unwrap();
        Clock::boot().sleep(Duration::from_millis(20)).await;
    }
    let end = tokio::task::spawn_blocking(move || finish(run)).await.unwrap();
    let told = said.join().unwrap();
    assert!(!told.contains("is not promised then"), "{told}");
    let figures = text(&end.stdout);
    assert_eq!(code(&end), 1, "{told}{figures}");
    assert!(figures.contains("\nG: lockkeeper-torture-0000000000000007/"), "{figures}");
    assert!(figures.contains("a promise was broken; --seed 7 leads back"), "{figures}");
    assert!(!figures.lines().last().unwrap().contains(" G=0 "), "{figures}");
}

/// A deployment that promises nothing for a restart, as the default of Redis: what its user does by our advice is no broken
/// promise, and the report says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_by_our_own_advice_breaks_no_promise() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let store = Store::at(redis.url());
    let mut words = SHORT.to_vec();
    (words[2], words[6]) = ("4s", "3");
    words.extend(["--seed", "8"]);
    let mut run = store.lockkeeper(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, turn) = until_told(run.stderr.take().unwrap(), "your turn: for 4s");
    turn.await.expect("the user is told when it is his turn");
    for _ in 0..50 {
        redis.command(&["FLUSHALL"]).await.unwrap();
        Clock::boot().sleep(Duration::from_millis(20)).await;
    }
    redis.restart_empty().await.unwrap();
    let end = tokio::task::spawn_blocking(move || finish(run)).await.unwrap();
    let (told, figures) = (said.join().unwrap(), text(&end.stdout));
    assert!(told.contains("is not promised then: a server that comes back"), "{told}");
    assert_eq!(code(&end), 0, "{told}{figures}");
    assert!(figures.contains("yours: a G breaks no promise there: "), "{figures}");
    assert!(figures.lines().last().unwrap().contains(" G=0 "), "{figures}");
}

/// Raw rows, keys and nodes are looked at: our own list might leave out what was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_on_postgresql() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    tried_and_kept(server.url()).await;
    let left = server.sql("SELECT count(*) FROM lockkeeper.lockkeeper_claim").await.unwrap();
    assert_eq!(left, "0", "claims of nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_on_etcd() {
    let server = Etcd::start(EtcdOptions::default()).await.unwrap();
    tried_and_kept(format!("etcd://{}", server.address())).await;
    let left = server.keys("lockkeeper/locks/").await.unwrap();
    assert!(left.is_empty(), "keys of nobody: {left:?}");
    let leases = async || server.post("/v3/lease/leases", "{}").await.unwrap();
    go(leases, |it| !it.contains("\"ID\"")).await;
}

/// What hangs on a worker that was killed outlives it for its ttl, and nobody keeps it alive.
async fn go(left: impl AsyncFn() -> String, is_gone: impl Fn(&str) -> bool) {
    let clock = Clock::boot();
    let due = clock.now().after(common::HANG);
    loop {
        let left = left().await;
        if is_gone(&left) {
            return;
        }
        assert!(clock.now() < due, "they are nobody's: {left}");
        clock.sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_on_zookeeper() {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap();
    tried_and_kept(server.url()).await;
    let sessions = async || server.word("dump").await.unwrap();
    go(sessions, |it| it.contains("Sessions with Ephemerals (0)")).await;
}

async fn tried_and_kept(url: String) {
    let store = Store::at(url);
    let end = tokio::task::spawn_blocking(move || store.output(SHORT)).await.expect("it does not panic");
    assert_eq!(code(&end), 0, "{end:?}");
    let figures = text(&end.stdout);
    assert!(figures.lines().last().is_some_and(|it| it.contains(" orphans=0 ")), "{figures}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ends_it_by_hand_finds_no_folder_and_no_process() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let store = Store::new();
        let temporary = store.path("tmp");
        std::fs::create_dir(&temporary).unwrap();
        let mut command = store.lockkeeper(SHORT);
        command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let (said, begun) = until_told(run.stderr.take().unwrap(), "step 1 of 4");
        begun.await.expect("it begins");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "the folder of the histories");
        send(run.id(), signal);
        // The workers have our standard error: it ends when all of them have.
        let end = tokio::task::spawn_blocking(move || finish(run)).await.unwrap();
        let told = said.join().unwrap();
        assert_eq!(code(&end), expected, "{told}{end:?}");
        assert!(told.contains("ended by hand: what was held or waited for goes with its ttl, in "), "{told}");
        assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "something is left");
    }
}

/// Read all that is said; the second hears when these words were said.
fn until_told(from: ChildStderr, words: &'static str) -> (JoinHandle<String>, oneshot::Receiver<()>) {
    let (tell, told) = oneshot::channel();
    let mut tell = Some(tell);
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        for line in BufReader::new(from).lines().map_while(std::result::Result::ok) {
            if let Some(tell) = tell.take_if(|_| line.contains(words)) {
                let _ = tell.send(());
            }
            said = said + &line + "\n";
        }
        said
    });
    (said, told)
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = Store::new();
    for words in [
        &["--processes", "1"][..],
        &["--processes", "17"],
        &["--tasks", "0"],
        &["--tasks", "65"],
        &["--ttl", "0s"],
        &["--ttl", "-1s"],
        &["--your-turn", "2h"],
        &["--your-turn", "soon"],
        &["--seed", "-1"],
    ] {
        failed(&store.output([&["torture"], words].concat()), 64);
    }
    // Whoever tortures for long does so on purpose: a run is bounded by its ttl, too.
    for ttl in ["61s", "2h", "9000000days"] {
        let long = store.output(["torture", "--ttl", ttl, "--your-turn", "0s"]);
        assert!(failed(&long, 64).contains("it is at most 60s"), "{long:?}");
    }
    let brief = store.output(["torture", "--ttl", "1ms", "--your-turn", "0s"]);
    assert!(failed(&brief, 64).contains("takes a ttl from"), "{brief:?}");
    let nowhere = Store::at("redis://:canary7@127.0.0.1:1");
    let said = failed(&nowhere.output(SHORT), 69);
    assert!(!said.contains("canary7"), "{said}");
}
