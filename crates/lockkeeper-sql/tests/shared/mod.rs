//! One server for all tests of a file that run at the same time; it ends with the last of them.

use std::future::Future;
use std::sync::{Arc, Weak};

use lockkeeper_servers::KitError;
use tokio::sync::Mutex;

/// A server that tests share.
pub(crate) struct Shared<S>(Mutex<Weak<S>>);

impl<S> Shared<S> {
    pub(crate) const fn new() -> Self {
        Shared(Mutex::const_new(Weak::new()))
    }

    /// The running server, or a new one.
    pub(crate) async fn get(&self, start: impl Future<Output = Result<S, KitError>>) -> Arc<S> {
        let mut weak = self.0.lock().await;
        if let Some(server) = weak.upgrade() {
            return server;
        }
        let server = Arc::new(start.await.unwrap());
        *weak = Arc::downgrade(&server);
        server
    }
}
