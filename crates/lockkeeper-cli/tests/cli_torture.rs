//! `lockkeeper torture` on deployments: what it tells, what it leaves behind, and what it refuses.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStderr, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Store, code, failed, finish, text};
use lockkeeper::spi::Clock;
use lockkeeper_servers::{Redis, RedisOptions, Value};
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
