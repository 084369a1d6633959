//! `lockkeeper torture` on deployments: what it tells, what it leaves behind, and what it refuses.

mod common;

use common::{Store, code, failed, text};
use lockkeeper_servers::{Redis, RedisOptions};

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
    let long = store.output(["torture", "--ttl", "9000000days", "--your-turn", "0s"]);
    assert!(failed(&long, 64).contains("takes a ttl from"), "{long:?}");
    let nowhere = Store::at("redis://:canary7@127.0.0.1:1");
    let said = failed(&nowhere.output(SHORT), 69);
    assert!(!said.contains("canary7"), "{said}");
}
