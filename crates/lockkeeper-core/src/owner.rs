//! Owners: logical callers, for reentrancy. An owner is a value, never a thread.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A logical caller. A request made by the owner that already holds the key gets the same lock again.
///
/// Pass it with [`LockRequest::owner`](crate::LockRequest::owner), or let a whole task have one:
///
/// ```
/// # use lockkeeper_core::{Locker, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let locker = Locker::new(Memory::default());
/// Owner::new("import").scope(async {
///     let outer = locker.lock("stock").await?;
///     let inner = locker.lock("stock").await?; // the same lock, depth 2
///     assert_eq!(inner.fence(), outer.fence());
///     Ok(())
/// })
/// .await
/// # }
/// ```
#[derive(Clone)]
pub struct Owner(Arc<Inner>);

struct Inner {
    id: u64,
    name: Cow<'static, str>,
}

tokio::task_local! {
    static CURRENT: Owner;
}

impl Owner {
    /// A new owner, different from every other, also from those of the same name.
    pub fn new(name: impl Into<String>) -> Self {
        Owner::named(Cow::Owned(name.into()))
    }

    /// The owner that `#[locked]` makes for each outermost call. The name is not copied, so that the attribute costs no
    /// more than the same calls by hand.
    #[doc(hidden)]
    pub fn of_function(path: &'static str) -> Self {
        Owner::named(Cow::Borrowed(path))
    }

    fn named(name: Cow<'static, str>) -> Self {
        // Only that each is given once matters: Relaxed.
        static MADE: AtomicU64 = AtomicU64::new(0);
        Owner(Arc::new(Inner { id: MADE.fetch_add(1, Ordering::Relaxed), name }))
    }

    /// Its number, which no other owner has.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Run a future whose requests are all this owner's, unless they say otherwise.
    ///
    /// The owner does not follow into tasks that the future spawns: they would hold the lock side by side.
    ///
    /// # Cancel safety
    /// As safe as `future`.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        CURRENT.scope(self.clone(), future).await
    }

    /// [`scope`](Owner::scope) for code that does not await: all requests within `work` are this owner's.
    ///
    /// ```
    /// # use lockkeeper_core::{Locker, Memory, Owner};
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # let locker = Locker::new(Memory::default());
    /// Owner::new("import").scope_blocking(|| {
    ///     let outer = locker.lock("stock").blocking()?;
    ///     let inner = locker.lock("stock").blocking()?;
    ///     assert_eq!(outer.fence(), inner.fence());
    ///     assert_eq!(Owner::current().expect("we are in its scope").name(), "import");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn scope_blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }

    /// The owner of the running task, if it runs in a [`scope`](Owner::scope).
    pub fn current() -> Option<Owner> {
        CURRENT.try_with(Owner::clone).ok()
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?}, {})", self.0.name, self.0.id)
    }
}
