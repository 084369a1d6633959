//! What the tests share: clusters behind proxies, so that a process can be cut off from its store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Claim, ClaimId, Clock, Key, Label, Locker};
use lockkeeper_etcd::{Etcd, EtcdPlace};
use lockkeeper_testkit::proxy::{Proxy, Rule};
use lockkeeper_testkit::servers::{Daemon, Etcd as Server, EtcdCluster, EtcdOptions};
use lockkeeper_testkit::suite::Harness;

/// The servers of a case.
pub(crate) enum Servers {
    One(Box<Server>),
    Three(EtcdCluster),
}

impl Servers {
    /// One server whose shortest lease is one second.
    pub(crate) async fn one() -> Self {
        let options = EtcdOptions::default().set("heartbeat-interval", "50").set("election-timeout", "250");
        Servers::One(Box::new(Server::start(options).await.unwrap()))
    }

    pub(crate) async fn three() -> Self {
        Servers::Three(Server::cluster().await.unwrap())
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        match self {
            Servers::One(it) => vec![it.port()],
            Servers::Three(it) => it.nodes().iter().map(|it| Daemon::port(it)).collect(),
        }
    }
}

/// A store; every backend that connects has proxies of its own.
pub(crate) struct Behind {
    pub(crate) servers: Servers,
    ttl: Duration,
    /// The proxies of each backend that is alive, in the order of connecting.
    proxies: Mutex<Vec<(Etcd, Arc<Vec<Proxy>>)>>,
}

impl Behind {
    pub(crate) fn new(servers: Servers, ttl: Duration) -> Self {
        Behind { servers, ttl, proxies: Mutex::default() }
    }

    /// A backend and the proxies between it and the nodes.
    pub(crate) async fn join(&self) -> (Etcd, Arc<Vec<Proxy>>) {
        let mut proxies = Vec::new();
        for port in self.servers.ports() {
            proxies.push(Proxy::start(port).await.unwrap());
        }
        let hosts: Vec<String> = proxies.iter().map(Proxy::address).collect();
        let url = format!("etcd://{}", hosts.join(","));
        let backend = Etcd::connect(&url).await.unwrap();
        (backend, Arc::new(proxies))
    }
}

impl Harness for Behind {
    type Backend = Etcd;

    async fn connect(&self) -> Etcd {
        let (backend, proxies) = self.join().await;
        self.proxies.lock().unwrap().push((backend.clone(), proxies));
        backend
    }

    async fn crash(&self, backend: Etcd, places: Vec<EtcdPlace>) {
        let url = format!("{backend:?}");
        let proxies = self.proxies.lock().unwrap();
        let (_, proxies) = proxies.iter().find(|it| format!("{:?}", it.0) == url).unwrap();
        // The heartbeat goes on, and nothing of it arrives any more.
        proxies.iter().for_each(|it| it.set_both(Rule::Drop));
        std::mem::forget((backend, places));
    }

    fn inspect<'b>(&self, backend: &'b Etcd) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// How long anything may take before it is called a hang.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A locker that bears outages for as long as a test does.
pub(crate) fn locker(backend: &Etcd, ttl: Duration) -> Locker {
    Locker::builder(backend.clone()).ttl(ttl).outage_max(PATIENCE).wait_at_most(PATIENCE).build()
}

/// The answer, unless it takes so long that it must be called a hang.
pub(crate) async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    tokio::select! {
        answer = answer => answer,
        () = Clock::boot().sleep(PATIENCE) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// A patient claim to a mutex.
pub(crate) fn claim(name: &str, ttl: Duration) -> Claim {
    Claim {
        key: Key::new(name).unwrap(),
        id: ClaimId::random().unwrap(),
        ttl,
        weight: 1,
        capacity: 1,
        patient: true,
        label: Arc::new(Label::of_this_process()),
    }
}
