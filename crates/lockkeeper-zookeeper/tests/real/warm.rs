//! Warm locks: what is idle goes when nobody could call for it.

use std::time::Duration;

use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::quorum::Quorum;
use lockkeeper_testkit::warm;
use lockkeeper_zookeeper::ZooKeeper;

use crate::common::Servers;

/// So long that nothing is due within a test.
const TTL: Duration = Duration::from_secs(60);

async fn process(servers: &Servers) -> ZooKeeper {
    ZooKeeper::connect(&servers.url_of_all(TTL)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_no_recall_and_nobody_is_idle_without_one() {
    let servers = Servers::start(1).await;
    let proxy = Proxy::start(servers.nodes()[0].port()).await.unwrap();
    let far = ZooKeeper::connect(&Servers::url(&[proxy.address()], TTL)).await.unwrap();
    let (cut, mend) = (
        async || {
            proxy.refuse().await.unwrap();
            proxy.cut();
        },
        async || proxy.accept().await.unwrap(),
    );
    warm::idle_goes_when_the_connection_breaks(&far, &process(&servers).await, TTL, cut, mend).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_gets_what_is_idle_and_waits_for_nothing_else() {
    let servers = Servers::start(1).await;
    warm::tried(&process(&servers).await, &process(&servers).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_is_answered_while_the_application_stands_still_and_many_of_its_callers_wait() {
    let server = Servers::start(1).await;
    let url = server.url_of_all(TTL);
    let connect = async move || ZooKeeper::connect(&url).await.unwrap();
    warm::recalled_while_its_application_stands_still(connect, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_readers_of_two_processes_go_for_a_writer() {
    let servers = Servers::start(1).await;
    warm::idle_readers_go_for_a_writer(&process(&servers).await, &process(&servers).await, TTL).await;
}
