//! The keeper's own thread: work that must go on when the caller's runtime is blocked or gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::engine::exit::{Ending, Open, end_with_process};
use crate::error::Result;
use crate::kit::{Driver, Home, Tasks, caller};

/// A task for the background.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where background work runs. Lockers start a thread of their own; simulations bring an executor.
///
/// ```
/// # use std::sync::Arc;
/// use lockkeeper_core::{Locker, Memory, Spawn, Task};
/// use tokio::runtime::Handle;
///
/// /// Everything on the application's runtime: then a blocked runtime cannot renew.
/// #[derive(Debug)]
/// struct OnRuntime(Handle);
///
/// impl Spawn for OnRuntime {
///     fn spawn(&self, task: Task) {
///         self.0.spawn(task);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let spawner = Arc::new(OnRuntime(Handle::current()));
/// let locker = Locker::builder(Memory::default()).spawner(spawner).build();
/// locker.lock("orders/42").await?.release().await?;
/// # Ok(())
/// # }
/// ```
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Run the task to its end, soon, without blocking the caller.
    fn spawn(&self, task: Task);
}

/// The background of one locker, started when first needed.
#[derive(Debug)]
pub(crate) struct Background {
    brought: Option<Arc<dyn Spawn>>,
    /// Dropped with the last locker and guard.
    own: OnceLock<Driver>,
    tasks: Arc<Tasks>,
    /// How long the end of the process waits for our tasks.
    exit_wait: Duration,
    /// The end of the process begins some itself. Relaxed: noted twice is harmless.
    ends_with_process: AtomicBool,
}

impl Background {
    pub(crate) fn new(brought: Option<Arc<dyn Spawn>>, home: Option<Home>, exit_wait: Duration) -> Self {
        let (own, tasks) = match home {
            Some(Home { driver, tasks }) => (OnceLock::from(driver), tasks),
            None => (OnceLock::new(), Arc::default()),
        };
        Background { brought, own, tasks, exit_wait, ends_with_process: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.brought.is_some() || self.own.get().is_some()
    }

    /// Start the thread if there is none. Fails only if the system has no thread or file handle left.
    pub(crate) fn start(&self) -> Result<()> {
        if self.is_started() {
            return Ok(());
        }
        let tasks = self.tasks.clone();
        let own = Driver::start("lockkeeper", async move || tasks.drained().await)?;
        // Two callers may race here; the loser's thread ends at once.
        let _ = self.own.set(own);
        Ok(())
    }

    /// Run a task that [`Background::drained`] waits for, and the end of the process for a while.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let open = self.is_waited_for().then(|| Open::new(self.exit_wait));
        self.spawn_untracked(Box::pin(self.tasks.track(async move {
            let _open = open;
            task.await;
        })));
    }

    /// Who brings an executor also ends it: nothing runs there when the process ends.
    fn is_waited_for(&self) -> bool {
        self.brought.is_none() && !self.exit_wait.is_zero()
    }

    /// The end of the process ends this, too, if it waits for our tasks. It is said again and again, and noted once.
    pub(crate) fn end_with_process(&self, ending: impl FnOnce() -> Weak<dyn Ending>) {
        if !self.ends_with_process.load(Ordering::Relaxed) && self.is_waited_for() {
            self.ends_with_process.store(end_with_process(ending(), self.exit_wait), Ordering::Relaxed);
        }
    }

    /// Run a task that nobody waits for.
    pub(crate) fn spawn_untracked(&self, task: Task) {
        if let Some(brought) = &self.brought {
            brought.spawn(task);
        } else if let Some(own) = self.own.get() {
            own.handle().spawn(task);
        }
    }

    /// Resolves when no tracked task is open.
    pub(crate) async fn drained(&self) {
        self.tasks.drained().await;
    }

    /// Poll a future inside our own runtime, so that any executor will do and a timer or socket that a verb makes
    /// is ours: the verb may move to our thread and outlive the runtime of its caller.
    pub(crate) fn with_runtime<T>(&self, poll: impl FnOnce() -> T) -> T {
        let Some(own) = self.own.get() else { return poll() };
        caller::called_from(own.handle(), || {
            let _entered = own.handle().enter();
            poll()
        })
    }

    /// Block this thread on a future. Nothing of it lives on a runtime whose worker we block: that might never
    /// move again.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _blocked = caller::without_caller();
        let _entered = self.own.get().map(|it| it.handle().enter());
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                return out;
            }
            std::thread::park();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A future polled with [`Background::with_runtime`].
pub(crate) struct InRuntime<'a, F> {
    background: &'a Background,
    future: Pin<Box<F>>,
}

impl<'a, F> InRuntime<'a, F> {
    pub(crate) fn new(background: &'a Background, future: F) -> Self {
        InRuntime { background, future: Box::pin(future) }
    }
}

impl<F: Future> Future for InRuntime<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let it = &mut *self;
        it.background.with_runtime(|| it.future.as_mut().poll(cx))
    }
}
