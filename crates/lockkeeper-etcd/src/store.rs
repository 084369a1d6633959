//! What all places of one process share: the connection, the leases, the watches, and the thread for them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::Driver;

use crate::connection::Connection;
use crate::fences::Fences;
use crate::grants::Grants;
use crate::options::EtcdOptions;
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
    pub(crate) grants: Arc<Grants>,
    /// Drives connections, heartbeats and watches while the application blocks its own threads.
    _driver: Driver,
}

impl Store {
    /// Start the thread. Nothing is sent yet.
    pub(crate) fn new(options: EtcdOptions) -> lockkeeper_core::Result<Self> {
        let sessions = Arc::<OnceLock<Arc<Sessions>>>::default();
        let leaving = sessions.clone();
        let driver = Driver::start("lockkeeper-etcd", async move || {
            if let Some(sessions) = leaving.get() {
                sessions.end(FAREWELL_MAX).await;
            }
        })?;
        let fences = Arc::new(Fences::new(&options.prefix));
        let connection = Arc::new(Connection::new(options, Clock::boot(), driver.handle().clone())?);
        let grants = Arc::<Grants>::default();
        let wake = Wake::start(connection.clone(), grants.clone());
        let sessions = sessions.get_or_init(|| Arc::new(Sessions::new(connection.clone()))).clone();
        Ok(Store { connection, sessions, wake, fences, grants, _driver: driver })
    }

    /// Find the cluster, and find out whether it serves us.
    pub(crate) async fn open(&self) -> lockkeeper_core::backend::Result<()> {
        let answer = self.connection.open(self.fences.look()).await?;
        self.fences.learn(&answer, self.connection.dials());
        Ok(())
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.connection.options.prefix
    }
}
