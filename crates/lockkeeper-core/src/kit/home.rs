//! The thread where a locker lives, made before its store is opened: for programs that have no runtime.

use std::future::Future;
use std::sync::{Arc, mpsc};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::kit::driver::{Driver, Tasks};

/// The locker's own thread, started before there is a locker: a store that is opened on it needs no runtime of the program.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::kit::Home;
/// use lockkeeper_core::{Locker, Memory};
///
/// let home = Home::start()?;
/// let store = home.block_on(async { Memory::default() })?; // or one that connects to something
/// let locker = Locker::builder(store).home(home).build();
/// locker.lock("orders/42").blocking()?.release_blocking()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Home {
    pub(crate) driver: Driver,
    pub(crate) tasks: Arc<Tasks>,
}

impl Home {
    /// Whether the caller is in no runtime, so that a store that it opens needs a home.
    pub fn is_needed() -> bool {
        Handle::try_current().is_err()
    }

    /// Start the thread.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no thread or file handle left.
    pub fn start() -> Result<Self> {
        let tasks = Arc::<Tasks>::default();
        let open = tasks.clone();
        let driver = Driver::start("lockkeeper", async move || open.drained().await)?;
        Ok(Home { driver, tasks })
    }

    /// Run a future on the thread, with any executor.
    ///
    /// # Cancel safety
    /// Dropping it drops `future`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the future panics.
    pub async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let (mut say, heard) = oneshot::channel();
        self.driver.handle().spawn(async move {
            let done = tokio::select! {
                done = future => done,
                () = say.closed() => return,
            };
            let _ = say.send(done);
        });
        heard.await.map_err(|_| ended())
    }

    /// Run a future on the thread, and block this one until it ends. Also within a runtime, whose worker it then blocks.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the future panics.
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (say, heard) = mpsc::sync_channel(1);
        self.driver.handle().spawn(async move { drop(say.send(future.await)) });
        heard.recv().map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::unavailable("a thread of our own, lockkeeper,", std::io::Error::other("what ran on it panicked"))
}
