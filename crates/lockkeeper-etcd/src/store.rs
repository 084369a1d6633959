//! What all places of one process share: the connection, the leases, the watches, and the thread for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_core::{ClaimId, Clock};

use crate::channel::Driver;
use crate::connection::Connection;
use crate::fences::Fences;
use crate::options::Options;
use crate::session::Sessions;
use crate::wake::Wake;

/// How long the last one out tries to give the leases back.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) connection: Arc<Connection>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) wake: Wake,
    pub(crate) fences: Arc<Fences>,
    /// The grants of this process: the number in line and the counter. A claim that asks twice must hear the
    /// same counter twice.
    grants: Mutex<HashMap<ClaimId, (i64, u64)>>,
    _driver: Driver,
}

impl Store {
    /// Start the thread. Nothing is sent yet.
    pub(crate) fn new(options: Options) -> lockkeeper_core::Result<Self> {
        let sessions = Arc::<OnceLock<Arc<Sessions>>>::default();
        let leaving = sessions.clone();
        let driver = Driver::start(async move || {
            if let Some(sessions) = leaving.get() {
                sessions.end(FAREWELL_MAX).await;
            }
        })?;
        let fences = Arc::new(Fences::new(&options.prefix));
        let connection = Arc::new(Connection::new(options, Clock::boot(), driver.handle.clone())?);
        let wake = Wake::start(connection.clone(), &driver.handle);
        let sessions = sessions.get_or_init(|| Arc::new(Sessions::new(connection.clone()))).clone();
        Ok(Store { connection, sessions, wake, fences, grants: Mutex::default(), _driver: driver })
    }

    /// Find the cluster, and find out whether it serves us.
    pub(crate) async fn open(&self) -> lockkeeper_core::backend::Result<()> {
        let answer = self.connection.open(self.fences.look()).await?;
        self.fences.learn(&answer, self.connection.dials());
        Ok(())
    }

    /// A claim was let in.
    pub(crate) fn remember(&self, id: ClaimId, own: i64, counter: u64) {
        self.grants().insert(id, (own, counter));
    }

    /// The counter of a claim that was let in with this number in line.
    pub(crate) fn recall(&self, id: ClaimId, own: i64) -> Option<u64> {
        self.grants().get(&id).filter(|it| it.0 == own).map(|it| it.1)
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.grants().remove(&id);
    }

    fn grants(&self) -> MutexGuard<'_, HashMap<ClaimId, (i64, u64)>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.connection.options.prefix
    }
}
