//! Connections that the network forgot: nothing arrives on them any more, and nobody says so; new ones work.

use std::time::Duration;

use lockkeeper_core::{Clock, Locker};

use super::{Behind, Quorum, soon};
use crate::proxy::{Proxy, Rule};

/// Swallow what is sent until something was; from then on every connection that sent it is dead for good.
async fn forget(proxy: &Proxy) {
    let before = proxy.counters().dropped;
    proxy.set_both(Rule::Drop);
    soon("something to swallow", async { while proxy.wait_for(|it| before < it.dropped).await.is_err() {} })
        .await;
    proxy.set_both(Rule::Pass);
}

/// A held lock outlives the connection that its heartbeat used.
pub async fn a_forgotten_connection_costs_no_lock<Q: Quorum>(ttl: Duration) {
    let behind = Behind::<Q>::start(1, ttl).await;
    let (backend, proxies) = behind.join().await;
    let here = Locker::builder(backend).ttl(ttl).build();
    let guard = here.lock("job").await.unwrap();
    for _ in 0..2 {
        forget(&proxies[0]).await;
        Clock::boot().sleep(ttl * 2).await;
        guard.check().unwrap();
    }
    guard.release().await.unwrap();
}

/// Taking and giving back go over to a new connection before the caller's patience ends, which is the default.
pub async fn a_forgotten_connection_costs_no_call<Q: Quorum>(ttl: Duration) {
    let behind = Behind::<Q>::start(1, ttl).await;
    let (backend, proxies) = behind.join().await;
    let here = Locker::builder(backend).ttl(ttl).build();
    // All ways have been used.
    here.lock("warm").await.unwrap().release().await.unwrap();
    let (guard, ()) = tokio::join!(here.lock("job"), forget(&proxies[0]));
    let guard = guard.unwrap();
    let (released, ()) = tokio::join!(guard.release(), forget(&proxies[0]));
    released.unwrap();
    let (guard, ()) = tokio::join!(here.lock("job"), forget(&proxies[0]));
    guard.unwrap().release().await.unwrap();
}
