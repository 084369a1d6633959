//! A server whose quota is used up: what is held is kept and given back, and nobody is let in until there is space.

use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::quorum::{claim, locker, soon, waits};
use lockkeeper_servers::{Etcd as Server, EtcdOptions};

const TTL: Duration = Duration::from_secs(3);

async fn alarm(server: &Server, action: &str) {
    let text = format!(r#"{{"action": "{action}", "memberID": "0", "alarm": "NOSPACE"}}"#);
    server.post("/v3/maintenance/alarm", &text).await.unwrap();
}

#[tokio::test]
async fn without_space_what_is_held_is_kept_and_those_in_line_get_it_when_there_is_some() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let url = format!("etcd://{}", server.address());
    let (here, there) = (Etcd::connect(&url).await.unwrap(), Etcd::connect(&url).await.unwrap());
    let (holder, next) = (locker(&here, TTL), locker(&there, TTL));
    let guard = holder.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { next.lock("job").await });
    waits(&here, "job", 1).await;
    alarm(&server, "ACTIVATE").await;
    let refused = soon("the refusal", here.enter(claim("new", TTL)).turn()).await.unwrap_err();
    assert!(refused.is_transient() && refused.message.contains("quota is used up"), "{refused}");
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    // A grant is a write, whose number is its fence: those in line keep their places, and get it when there is space.
    Clock::boot().sleep(TTL).await;
    assert!(!waiter.is_finished());
    alarm(&server, "DEACTIVATE").await;
    let guard = soon("the hand-on", waiter).await.unwrap().unwrap();
    assert!(fence < guard.fence());
    guard.release().await.unwrap();
    soon("a new lock", holder.lock("new")).await.unwrap().release().await.unwrap();
}
