//! A thread of one's own: what runs on it goes on while the application blocks its runtime, and it ends with a farewell.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

use crate::error::{Error, Result};

/// A thread with a runtime, for connections, heartbeats and watches that must not stand still with their users.
///
/// The thread lives as long as the driver. Then it runs its farewell and ends, and with it whatever else runs on it.
/// Nobody waits for that: dropping a driver does not block. A driver is made with the store and dropped with the last
/// of those who use it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::mpsc::channel;
///
/// use lockkeeper_core::kit::Driver;
///
/// let (say, heard) = channel();
/// let goodbye = say.clone();
/// let driver = Driver::start("lockkeeper-mine", async move || drop(goodbye.send("goodbye")))?;
/// driver.handle().spawn(async move { say.send("connected") });
/// assert_eq!(heard.recv()?, "connected"); // this thread blocks, the driver does not
/// drop(driver);
/// assert_eq!(heard.recv()?, "goodbye");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driver {
    handle: Handle,
    /// Dropping it tells the thread to say goodbye and end.
    _alive: oneshot::Sender<()>,
}

impl Driver {
    /// Start a thread of this name. `farewell` is what it does last; it should end within a bound.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no thread or file handle left.
    pub fn start<F>(name: &str, farewell: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = ()>,
    {
        let unavailable = |it| Error::unavailable(format!("a thread of our own, {name},"), it);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        let main = move || {
            runtime.block_on(async {
                // The sender is never used: the channel ends when the driver is dropped.
                let _ = ended.await;
                farewell().await;
            });
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(main).map_err(unavailable)?;
        Ok(Driver { handle, _alive: alive })
    }

    /// Its runtime: spawn on it, or enter it to make what it shall drive.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Counts tasks, so that a farewell can wait for them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use lockkeeper_core::kit::{Driver, Tasks};
///
/// let tasks = Arc::<Tasks>::default();
/// let open = tasks.clone();
/// let driver = Driver::start("lockkeeper-mine", async move || open.drained().await)?;
/// let (done, told) = std::sync::mpsc::channel();
/// driver.handle().spawn(tasks.track(async move { drop(done.send("done")) }));
/// drop(driver); // the task is not cut off
/// assert_eq!(told.recv()?, "done");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Tasks {
    /// Acquire and Release, so that whoever finds no task open sees all that they did. That nobody sleeps through the end of the
    /// last one is what the lock inside of `all_done` sees to: it is entered before this is looked at, and after it is changed.
    open: AtomicUsize,
    all_done: Notify,
}

impl Tasks {
    /// The same task, which counts as open from now on until it ends or is dropped.
    pub fn track<F: Future>(self: &Arc<Self>, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.open.fetch_add(1, Ordering::AcqRel);
        let done = Done(self.clone());
        async move {
            let _done = done;
            task.await
        }
    }

    /// Resolves when no task is open.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn drained(&self) {
        loop {
            let mut notified = std::pin::pin!(self.all_done.notified());
            notified.as_mut().enable();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

struct Done(Arc<Tasks>);

impl Drop for Done {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.all_done.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_it_drives_goes_on_while_its_user_blocks_and_the_farewell_comes_last() {
        let (say, heard) = channel();
        let (task, goodbye) = (say.clone(), say);
        let driver = Driver::start("lockkeeper-test", async move || {
            goodbye.send(std::thread::current().name().map(str::to_owned)).unwrap();
        })
        .unwrap();
        let blocked = Builder::new_current_thread().build().unwrap();
        blocked.block_on(async {
            driver.handle().spawn(async move { task.send(Some("task".to_owned())) });
            assert_eq!(heard.recv().unwrap().as_deref(), Some("task"));
        });
        drop(driver);
        assert_eq!(heard.recv().unwrap().as_deref(), Some("lockkeeper-test"));
        assert!(heard.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn a_farewell_can_wait_for_tasks_and_a_task_that_is_dropped_is_not_waited_for() {
        let tasks = Arc::<Tasks>::default();
        let (open, (finish, finished), (say, heard)) = (tasks.clone(), oneshot::channel::<()>(), channel());
        let goodbye = say.clone();
        let driver = Driver::start("lockkeeper-test", async move || {
            open.drained().await;
            goodbye.send("goodbye").unwrap();
        })
        .unwrap();
        drop(tasks.track(std::future::pending::<()>()));
        driver.handle().spawn(tasks.track(async move {
            let _ = finished.await;
            say.send("done").unwrap();
        }));
        drop(driver);
        finish.send(()).unwrap();
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["done", "goodbye"]);
    }
}
