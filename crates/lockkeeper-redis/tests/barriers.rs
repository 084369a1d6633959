//! Barriers on a server: processes meet, some are killed, and what all heard of a round is the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::Command;
use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};
use lockkeeper_testkit::barriers::{Storm, wait_for_ever};

const URL: &str = "LOCKKEEPER_TEST_URL";
const PARTY: &str = "LOCKKEEPER_TEST_PARTY";

#[tokio::test]
async fn a_thousand_rounds_with_kills_have_one_verdict_each() {
    const STORM: Storm = Storm { parties: 4, barriers: 16, rounds: 1000, kills: 5 };
    if let Ok(url) = std::env::var(URL) {
        let locker = Locker::new(Redis::connect(&url).await.unwrap());
        let party = std::env::var(PARTY).unwrap();
        return wait_for_ever(locker, &party, STORM.barriers, Duration::from_secs(1)).await;
    }
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let url = server.url();
    let child = move |party: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["a_thousand_rounds_with_kills_have_one_verdict_each", "--exact", "--nocapture"]);
        command.env(URL, &url).env(PARTY, party);
        command
    };
    let seen = tokio::task::spawn_blocking(move || STORM.run(child)).await.unwrap().unwrap();
    assert!(0 < seen.opened && 0 < seen.died, "{seen:?}");
}
