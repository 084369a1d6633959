//! Servers behind proxies: every backend that connects has its own, so that it can be cut off alone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::inspect::DynInspect;

use super::Quorum;
use crate::proxy::{Proxy, Rule};
use lockkeeper_testkit::suite::Harness;

/// Servers and the proxies before them; a harness of the conformance suite.
pub struct Behind<Q: Quorum> {
    /// The servers.
    pub servers: Q,
    ttl: Duration,
    /// The proxies of each backend by what its `Debug` shows, which is their address.
    proxies: Mutex<Vec<(String, Arc<Vec<Proxy>>)>>,
}

impl<Q: Quorum> fmt::Debug for Behind<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behind").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl<Q: Quorum> Behind<Q> {
    /// One server or three, for locks of this ttl.
    pub async fn start(nodes: usize, ttl: Duration) -> Self {
        Behind { servers: Q::start(nodes).await, ttl, proxies: Mutex::default() }
    }

    /// A backend and the proxies between it and the servers.
    pub async fn join(&self) -> (Q::Backend, Arc<Vec<Proxy>>) {
        let mut proxies = Vec::new();
        for node in self.servers.nodes() {
            proxies.push(Proxy::start(node.port()).await.unwrap());
        }
        let hosts: Vec<String> = proxies.iter().map(Proxy::address).collect();
        let backend = Q::connect(&Q::url(&hosts, self.ttl)).await;
        (backend, Arc::new(proxies))
    }
}

/// The proxy that is in use.
pub(super) fn in_use(proxies: &[Proxy]) -> &Proxy {
    let used: Vec<&Proxy> = proxies.iter().filter(|it| it.counters().open != 0).collect();
    assert_eq!(used.len(), 1, "one node is in use at a time");
    used[0]
}

impl<Q: Quorum> Harness for Behind<Q> {
    type Backend = Q::Backend;

    async fn connect(&self) -> Q::Backend {
        let (backend, proxies) = self.join().await;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push((format!("{backend:?}"), proxies));
        backend
    }

    async fn crash(&self, backend: Q::Backend, places: Vec<<Q::Backend as Backend>::Place>) {
        let name = format!("{backend:?}");
        let proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, proxies) = proxies.iter().find(|it| it.0 == name).unwrap();
        // The heartbeat goes on, and nothing of it arrives any more.
        proxies.iter().for_each(|it| it.set_both(Rule::Drop));
        std::mem::forget((backend, places));
    }

    fn inspect<'b>(&self, backend: &'b Q::Backend) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }
}
