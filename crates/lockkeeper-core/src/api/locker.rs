//! The locker: where requests begin. One per store and process; clones share everything.

use std::sync::Arc;
use std::time::Duration;

use crate::api::barrier::Barrier;
use crate::api::election::{Campaign, Leader, Leaders};
use crate::api::guard::Guard;
use crate::api::latch::Latch;
use crate::api::multi::{MultiRequest, Wish};
use crate::api::once::OnceRequest;
use crate::api::request::{Attempt, LockRequest};
use crate::api::shared::SharedRequest;
use crate::engine::background::InRuntime;
use crate::engine::leave;
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::observe::CooledBy;
use crate::spi::backend::Profile;
use crate::spi::claim::Load;

/// Takes locks in one store. Cheap to clone; make one per process and store, and share it.
///
/// ```
/// # use std::time::Duration;
/// # use lockkeeper_core::{Locker, Memory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let locker = Locker::new(Memory::default());
/// let guard = locker.lock("orders/42").wait_at_most(Duration::from_secs(3)).await?;
/// assert!(locker.try_lock("orders/42").await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locker(pub(super) Arc<Engine>);

impl Locker {
    /// Ask for a lock and wait for it. See [`LockRequest`] for the options.
    #[expect(
        clippy::inline_always,
        reason = "a request that is made elsewhere and moved here costs a quarter of an in-process lock"
    )]
    #[inline(always)]
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        self.lock_key(Key::new(name.as_ref()))
    }

    /// Ask for a lock without waiting. See [`Attempt`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// if let Some(guard) = locker.try_lock("nightly-report").await? {
    ///     guard.run_and_release(async { /* nobody else builds it */ }).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&self, name: impl AsRef<str>) -> Attempt {
        self.lock(name).attempt()
    }

    /// Wait for a lock, do something while it is held, and give it back. The work is stopped where it awaits if the lock is
    /// lost. For a bound on the wait and other options: `locker.lock(name)…` [`.with(work)`](LockRequest::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let sum = locker.with("orders/42", async |guard| {
    ///     println!("send {} along with every write", guard.fence());
    ///     2 + 2
    /// });
    /// assert_eq!(sum.await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As for [`LockRequest::with`].
    ///
    /// # Errors
    /// As for [`LockRequest::with`].
    pub async fn with<T>(&self, name: impl AsRef<str>, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.lock(name).with(work).await
    }

    /// [`with`](Locker::with) for threads without a runtime. Plain code cannot be stopped: if the lock is lost meanwhile, the work
    /// goes on to its end, and its result is dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let sum = locker.with_blocking("orders/42", |guard| {
    ///     println!("send {} along with every write", guard.fence());
    ///     2 + 2
    /// });
    /// assert_eq!(sum?, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`LockRequest::with_blocking`].
    pub fn with_blocking<T>(&self, name: impl AsRef<str>, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.lock(name).with_blocking(work)
    }

    /// Ask to read: beside other readers, never beside somebody who writes. A plain [`lock`](Locker::lock) of the same name
    /// is a writer to readers. Readers of one process share one place at the store and join it without a trip.
    ///
    /// An owner that reads may read again; if it asks to write, it is refused at once, because it would wait for itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let price = locker.read("prices").await?;
    /// let tax = locker.read("prices").await?; // at the same time
    /// # drop((price, tax));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, name: impl AsRef<str>) -> SharedRequest {
        SharedRequest::new(self.lock(name), Load::READER)
    }

    /// Ask to write: beside nobody, of any kind. The same as [`lock`](Locker::lock) to everybody else, and the word
    /// that goes with [`read`](Locker::read).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let writer = locker.write("prices").await?;
    /// assert!(locker.read("prices").attempt().await?.is_none());
    /// # drop(writer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, name: impl AsRef<str>) -> LockRequest {
        self.lock(name).load(Load::WRITER)
    }

    /// Ask for `count` permits `of` so many that may be out at a time, over all processes. All of them or none; who
    /// asks for many is not passed by those who ask for few. If claims disagree about `of`, the smallest counts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let permits = locker.permits("mail-server", 2, 5).await?; // two of five connections
    /// permits.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(&self, name: impl AsRef<str>, count: u32, of: u32) -> SharedRequest {
        SharedRequest::new(self.lock(name), Load::new(count, of))
    }

    /// Ask for several locks at once: all of them, or none, always taken in the order of their names. Plain names are locks;
    /// a [`Wish`] also reads, writes or takes permits. See [`MultiRequest`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let transfer = locker.lock_all(["accounts/7", "accounts/3"]).await?;
    /// transfer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_all<W: Into<Wish>>(&self, wishes: impl IntoIterator<Item = W>) -> MultiRequest {
        MultiRequest::new(self.0.clone(), wishes.into_iter().map(W::into))
    }

    /// A job that runs once for each tick of its schedule, over all instances. See [`OnceRequest`].
    pub fn once(&self, name: impl AsRef<str>, tick: impl AsRef<str>) -> OnceRequest {
        let name = name.as_ref();
        // Two runs in one owner's scope are two: one runs the job, the other waits and finds it done.
        OnceRequest::new(self.lock(name).cold().not_reentrant(), name, tick.as_ref())
    }

    /// Stand for the role of this name, with a value that everybody can read while we lead. See [`Campaign`].
    pub fn campaign(&self, name: impl AsRef<str>, value: impl Into<String>) -> Campaign {
        Campaign::new(self.0.clone(), name.as_ref(), value.into())
    }

    /// Who leads, or `None` if nobody does.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`], [`Error::Unsupported`] on a store that keeps nothing but
    /// locks.
    pub async fn leader(&self, name: impl AsRef<str>) -> Result<Option<Leader>> {
        self.leaders(name)?.look().await
    }

    /// [`leader`](Locker::leader) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`leader`](Locker::leader).
    pub fn leader_blocking(&self, name: impl AsRef<str>) -> Result<Option<Leader>> {
        self.0.start()?;
        self.0.background.block_on(self.leader(name))
    }

    /// See who leads, and every change of it. See [`Leaders`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::Unsupported`] on a store that keeps nothing but locks.
    pub fn leaders(&self, name: impl AsRef<str>) -> Result<Leaders> {
        Leaders::new(self.0.clone(), name.as_ref())
    }

    /// A latch that opens when so many have arrived, over all processes. See [`Latch`].
    pub fn latch(&self, name: impl AsRef<str>, parties: u32) -> Latch {
        Latch::new(self.0.clone(), name.as_ref(), parties)
    }

    /// A barrier at which so many wait for each other, round after round, over all processes. See [`Barrier`].
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        Barrier::new(self.0.clone(), name.as_ref(), parties)
    }

    /// As [`Locker::lock`], for a key that was checked before, or for the error of that check.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Key, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let key = Key::new("orders/42")?; // checked and hashed once
    /// for _ in 0..3 {
    ///     locker.lock_key(Ok(key.clone())).await?.release().await?;
    /// }
    /// assert_eq!(locker.lines(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        clippy::inline_always,
        reason = "a request that is made elsewhere and moved here costs a quarter of an in-process lock"
    )]
    #[inline(always)]
    pub fn lock_key(&self, key: Result<Key>) -> LockRequest {
        LockRequest::new(self.0.clone(), key)
    }

    /// What the store promises.
    pub fn profile(&self) -> Profile {
        self.0.profile
    }

    /// The ttl of requests that name none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lockkeeper_core::{Locker, Memory};
    ///
    /// assert_eq!(Locker::new(Memory::default()).ttl(), Duration::from_secs(10));
    /// ```
    pub fn ttl(&self) -> Duration {
        self.0.settings.ttl
    }

    /// How many keys of this process are held, idle or waited for right now.
    pub fn lines(&self) -> usize {
        self.0.queue.len()
    }

    /// For which keys callers of this process wait in its own line, and how many. No store knows of them: whoever represents this
    /// process at the store is not among them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// use lockkeeper_core::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::default());
    /// let held = locker.lock("orders/42").await?;
    /// assert!(locker.waiting().is_empty());
    /// let waits = tokio::spawn(locker.lock("orders/42"));
    /// tokio::task::yield_now().await;
    /// let waiting = locker.waiting();
    /// assert_eq!((waiting.len(), waiting[0].0.as_str(), waiting[0].1), (1, "orders/42", 1));
    /// # drop((held, waits));
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiting(&self) -> Vec<(Key, usize)> {
        self.0.queue.waiting()
    }

    /// Give back everything that is idle here, in the background: see [`LockerBuilder::warm`](crate::LockerBuilder::warm). How many
    /// locks that were.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// let store = Memory::default();
    /// let locker = Locker::builder(store.clone()).warm(true).build();
    /// locker.lock("orders/42").await?.release().await?;
    /// assert_eq!((locker.lines(), locker.cool(), locker.lines()), (1, 1, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cool(&self) -> usize {
        let engine = &self.0;
        // What a process that forked keeps is not ours to give back.
        if !engine.is_here() {
            return 0;
        }
        engine.queue.idle().iter().filter(|it| leave::cool(engine, it, CooledBy::Hand)).count()
    }

    /// End everything: refuse new requests, call off the waiting, take back what is held (its guards are
    /// lost), and wait until the store has confirmed, at most `bound`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Error, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// locker.shutdown(Duration::from_secs(5)).await?;
    /// assert!(matches!(locker.lock("orders/42").await, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// The end goes on in the background if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if something was not confirmed in time. It is freed by its ttl.
    pub async fn shutdown(&self, bound: Duration) -> Result<()> {
        let engine = &self.0;
        engine.check_process()?;
        leave::close(engine);
        let until = engine.clock.now().after(bound);
        let drained = async { engine.clock.within(until, std::pin::pin!(engine.background.drained())).await };
        if InRuntime::new(&engine.background, drained).await.is_some() {
            return Ok(());
        }
        let text = format!("not everything was given back within {bound:?}; the ttl frees the rest");
        Err(Error::unavailable(format!("the {} store", engine.profile.name), std::io::Error::other(text)))
    }

    /// [`shutdown`](Locker::shutdown) for threads without a runtime: it blocks this thread for at most `bound`.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use std::time::Duration;
    /// # use lockkeeper_core::{Error, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// locker.shutdown_blocking(Duration::from_secs(5))?;
    /// assert!(matches!(locker.lock("orders/42").blocking(), Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`shutdown`](Locker::shutdown).
    pub fn shutdown_blocking(&self, bound: Duration) -> Result<()> {
        self.0.background.block_on(self.shutdown(bound))
    }
}
