//! What all places of one process share: the sessions, the claims it knows, and the thread for them.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockkeeper_core::backend::Result;
use lockkeeper_core::kit::{Driver, locked};
use lockkeeper_core::{ClaimId, Clock};

use crate::fault;
use crate::options::ZooKeeperOptions;
use crate::session::{Session, Sessions};

/// How long the last one out tries to close the sessions.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// What this process knows of a claim that it sent to the ensemble.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The session in which it was sent.
    pub(crate) session: i64,
    /// Its counter, if it was told that it is inside. Who asks twice must hear the same twice.
    pub(crate) counter: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) options: ZooKeeperOptions,
    pub(crate) clock: Clock,
    pub(crate) sessions: Arc<Sessions>,
    /// How many nodes we watched have told us. Relaxed: only counted.
    pub(crate) events: Arc<AtomicU64>,
    known: Mutex<HashMap<ClaimId, Known>>,
    /// The largest counter that this process was ever given, of all names: numbers of writes order all of them.
    /// It only grows. `SeqCst` is more than enough: whoever asks after somebody of this process held knows of that by the queue.
    seen: AtomicU64,
    /// The largest counter that anybody can have been given by the ledgers that this process has read.
    /// `SeqCst` is more than enough: it only grows, and whoever reads a ledger counts what it has read itself.
    reach: AtomicU64,
    /// Drives the clients and their pulses while the application blocks its own threads.
    driver: Driver,
}

impl Store {
    /// Start the thread. Nothing is sent yet.
    pub(crate) fn new(options: ZooKeeperOptions) -> lockkeeper_core::Result<Self> {
        let sessions = Arc::<OnceLock<Arc<Sessions>>>::default();
        let leaving = sessions.clone();
        let driver = Driver::start("lockkeeper-zookeeper", async move || {
            if let Some(sessions) = leaving.get() {
                sessions.end(FAREWELL_MAX).await;
            }
        })?;
        let clock = Clock::boot();
        let made = || Arc::new(Sessions::new(options.clone(), clock.clone(), driver.handle().clone()));
        let sessions = sessions.get_or_init(made).clone();
        let (events, known) = (Arc::default(), Mutex::default());
        let (seen, reach) = (AtomicU64::default(), AtomicU64::default());
        Ok(Store { options, clock, sessions, events, known, seen, reach, driver })
    }

    /// Run a task on our own thread, as long as that lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.driver.handle().spawn(task);
    }

    /// The answer to a call, or a fault if it takes too long. The call itself goes on, in its order.
    pub(crate) async fn in_time<T>(&self, doing: &'static str, call: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            answer = call => Ok(answer),
            () = self.clock.sleep(self.options.timeout) => Err(fault::silent(doing)),
        }
    }

    /// The answer to a call, with the end of the session noted. `Ok(Err)` is what the ensemble decided.
    pub(crate) async fn call<T>(
        &self,
        session: &Session,
        doing: &'static str,
        call: impl Future<Output = std::result::Result<T, zookeeper_client::Error>>,
    ) -> Result<std::result::Result<T, zookeeper_client::Error>> {
        use zookeeper_client::Error::{NoNode, NodeExists, NotEmpty};

        match self.in_time(doing, call).await? {
            Err(error @ (NoNode | NodeExists | NotEmpty)) => Ok(Err(error)),
            Err(error) => {
                if fault::is_session_over(&error) {
                    session.proof.lose();
                }
                Err(fault::from_error(doing, error))
            }
            Ok(answer) => Ok(Ok(answer)),
        }
    }

    /// The largest counter so far. What is written from now on must be given a larger one.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    pub(crate) fn see(&self, counter: u64) {
        self.seen.fetch_max(counter, Ordering::SeqCst);
    }

    /// A ledger reaches this far. Returns how far any did that we have read.
    pub(crate) fn reach(&self, counter: u64) -> u64 {
        self.reach.fetch_max(counter, Ordering::SeqCst).max(counter)
    }

    pub(crate) fn remember(&self, id: ClaimId, known: Known) {
        locked(&self.known).insert(id, known);
    }

    /// What we know of a claim that was sent in this session.
    pub(crate) fn remembered(&self, id: ClaimId, session: i64) -> Option<Known> {
        locked(&self.known).get(&id).filter(|it| it.session == session).copied()
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        locked(&self.known).remove(&id);
    }
}
