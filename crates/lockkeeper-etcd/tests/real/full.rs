//! A server whose quota is used up: what is held is kept and handed on, and nothing new is taken.

use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::quorum::{locker, soon, waits};
use lockkeeper_servers::{Etcd as Server, EtcdOptions};

const TTL: Duration = Duration::from_secs(3);

async fn alarm(server: &Server, action: &str) {
    let text = format!(r#"{{"action": "{action}", "memberID": "0", "alarm": "NOSPACE"}}"#);
    server.post("/v3/maintenance/alarm", &text).await.unwrap();
}

#[tokio::test]
async fn without_space_what_is_held_is_kept_and_handed_on_but_nothing_new_is_taken() {
    let server = Server::start(EtcdOptions::default()).await.unwrap();
    let url = format!("etcd://{}", server.address());
    let (here, there) = (Etcd::connect(&url).await.unwrap(), Etcd::connect(&url).await.unwrap());
    let (holder, next) = (locker(&here, TTL), locker(&there, TTL));
    let guard = holder.lock("job").await.unwrap();
    let waiter = tokio::spawn(async move { next.lock("job").await });
    waits(&here, "job", 1).await;
    alarm(&server, "ACTIVATE").await;
    let refused = soon("the refusal", holder.lock("new")).await.unwrap_err();
    assert!(refused.to_string().contains("quota is used up"), "{refused}");
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = soon("the hand-on", waiter).await.unwrap().unwrap();
    assert!(fence < guard.fence());
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    alarm(&server, "DEACTIVATE").await;
    soon("a new lock", holder.lock("new")).await.unwrap().release().await.unwrap();
}
