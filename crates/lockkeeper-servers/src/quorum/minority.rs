//! A minority of the named servers is frozen, dead or swallows everything: new clients work, running ones keep on.

use std::time::Duration;

use lockkeeper_core::{Clock, Locker};

use super::{Quorum, locker, soon};
use crate::proxy::{Proxy, Rule};

const TTL: Duration = Duration::from_secs(12);
/// Three times this is more than the long ttl.
const FREEZE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(28);

/// A new client works, and a running one still holds and can take another.
async fn serves<Q: Quorum>(url: &str, running: &Locker, what: &str) {
    let backend = soon("a new client", Q::connect(url)).await;
    let fresh = locker(&backend, TTL);
    let guard = soon(what, fresh.lock("fresh")).await.unwrap();
    soon(what, guard.release()).await.unwrap();
    let guard = soon(what, running.lock("another")).await.unwrap();
    soon(what, guard.release()).await.unwrap();
}

/// Each of three servers is frozen in turn, the first of the URL first.
pub async fn any_frozen_node_keeps_nobody_out<Q: Quorum>() {
    let servers = Q::start(3).await;
    let (url, clock) = (servers.url_of_all(LONG), Clock::boot());
    let running = servers.locker(LONG).await;
    let guard = running.lock("held").await.unwrap();
    for node in servers.nodes() {
        node.pause().unwrap();
        serves::<Q>(&url, &running, "a lock while a node is frozen").await;
        // Through whichever node it goes, it is renewed. A leader that sleeps for a whole ttl is another matter: some
        // versions of some servers end living sessions when they wake.
        clock.sleep(FREEZE).await;
        guard.check().unwrap();
        node.resume().unwrap();
        node.wait_ready().await.unwrap();
    }
    guard.release().await.unwrap();
}

/// Each of three servers is killed in turn and started again.
pub async fn any_dead_node_keeps_nobody_out<Q: Quorum>() {
    let servers = Q::start(3).await;
    let url = servers.url_of_all(TTL);
    let running = servers.locker(TTL).await;
    let guard = running.lock("held").await.unwrap();
    for node in servers.nodes() {
        node.kill().unwrap();
        serves::<Q>(&url, &running, "a lock while a node is dead").await;
        guard.check().unwrap();
        node.start().await.unwrap();
    }
    guard.release().await.unwrap();
}

/// Each way to a server swallows everything in turn, as a firewall does that knows nothing of the connection.
pub async fn any_node_that_swallows_everything_keeps_nobody_out<Q: Quorum>() {
    let servers = Q::start(3).await;
    let mut proxies = Vec::new();
    for node in servers.nodes() {
        proxies.push(Proxy::start(node.port()).await.unwrap());
    }
    let url = Q::url(&proxies.iter().map(Proxy::address).collect::<Vec<_>>(), TTL);
    let running = locker(&Q::connect(&url).await, TTL);
    let guard = running.lock("held").await.unwrap();
    for proxy in &proxies {
        proxy.set_both(Rule::Drop);
        serves::<Q>(&url, &running, "a lock while a way is closed").await;
        Clock::boot().sleep(TTL).await;
        guard.check().unwrap();
        proxy.set_both(Rule::Pass);
    }
    guard.release().await.unwrap();
}

/// The way to the first server is gone without a word: who dials it is neither taken nor refused.
pub async fn a_node_that_vanishes_keeps_nobody_out<Q: Quorum>() {
    let servers = Q::start(3).await;
    let mut proxies = Vec::new();
    for node in servers.nodes() {
        proxies.push(Proxy::start(node.port()).await.unwrap());
    }
    let url = Q::url(&proxies.iter().map(Proxy::address).collect::<Vec<_>>(), TTL);
    let running = locker(&Q::connect(&url).await, TTL);
    let guard = running.lock("held").await.unwrap();
    proxies[0].vanish().await.unwrap();
    serves::<Q>(&url, &running, "a lock while a way is gone").await;
    Clock::boot().sleep(TTL).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Make a test of every case of this file: `quorum_minority!(Servers)`.
#[macro_export]
macro_rules! quorum_minority {
    ($quorum:ty) => {
        mod minority {
            use super::*;
            $crate::__quorum! { $quorum; minority;
                any_frozen_node_keeps_nobody_out
                any_dead_node_keeps_nobody_out
                any_node_that_swallows_everything_keeps_nobody_out
                a_node_that_vanishes_keeps_nobody_out
            }
        }
    };
}
