//! From writing to reading without letting go: nobody who writes gets in between.

use std::fmt;

use crate::api::guard::Guard;
use crate::api::shared::SharedGuard;
use crate::engine::background::InRuntime;
use crate::engine::lower;
use crate::error::{Error, Result};

impl Guard {
    /// Go on as a reader: others may read beside us from now on, and nobody can write in between. What was written is what
    /// they read.
    ///
    /// Those who waited to read before the next writer enter at once, of this process and of others. The fence is a new
    /// one, a reader's. There is no way back: release, and write again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let writer = locker.write("prices").await?;
    /// // … write …
    /// let reader = writer.downgrade().await?;
    /// assert!(locker.read("prices").attempt().await?.is_some()); // beside us
    /// assert!(locker.write("prices").attempt().await?.is_none());
    /// reader.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back, as dropping the guard would.
    ///
    /// # Errors
    /// [`NotDowngraded`], with the guard as it was: [`Error::Unsupported`] on a store that cannot make what is held weigh
    /// less, [`Error::Invalid`] if its owner holds it more than once, [`Error::Lost`]. A store that gives no usable answer is
    /// no error: we read, and it is asked again in the background; until then others wait.
    pub async fn downgrade(mut self) -> Result<SharedGuard, NotDowngraded> {
        if let Err(error) = self.check() {
            return Err(NotDowngraded::new(self, error));
        }
        let engine = self.engine().clone();
        let answered = match lower::begin(&engine, self.held()) {
            Ok(it) => it,
            Err(error) => return Err(NotDowngraded::new(self, error)),
        };
        if let Some(answered) = answered {
            let until = engine.clock.now().after(engine.settings.outage_max);
            let answer = async { engine.clock.within(until, std::pin::pin!(answered)).await };
            if InRuntime::new(&engine.background, answer).await.is_none() {
                lower::share(&engine, &self.held().tenure);
            }
        }
        self.renumber();
        match self.check() {
            Ok(()) => Ok(SharedGuard::of(self)),
            Err(error) => Err(NotDowngraded::new(self, error)),
        }
    }

    /// [`downgrade`](Guard::downgrade) for threads without a runtime.
    ///
    /// # Errors
    /// As for [`downgrade`](Guard::downgrade).
    pub fn downgrade_blocking(self) -> Result<SharedGuard, NotDowngraded> {
        let engine = self.engine().clone();
        engine.background.block_on(self.downgrade())
    }
}

/// A guard that could not be downgraded, and why. With `?` it becomes the error, and the lock is given back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory, NotDowngraded, Owner};
/// # let locker = Locker::new(Memory::default());
/// let owner = Owner::new("import");
/// let outer = locker.write("prices").owner(&owner).await?;
/// let inner = locker.write("prices").owner(&owner).await?;
/// let NotDowngraded { guard, error, .. } = outer.downgrade().await.expect_err("there is an inner guard");
/// assert!(guard.is_valid(), "{error}");
/// # drop(inner);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct NotDowngraded {
    /// The guard, as it was.
    pub guard: Guard,
    /// Why.
    pub error: Error,
}

impl NotDowngraded {
    fn new(guard: Guard, error: Error) -> Self {
        NotDowngraded { guard, error }
    }
}

impl From<NotDowngraded> for Error {
    fn from(it: NotDowngraded) -> Self {
        it.error
    }
}

/// As `Display`, because that is what a `main` that returns an error prints.
impl fmt::Debug for NotDowngraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for NotDowngraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock is still held alone: {}", self.error)
    }
}

impl std::error::Error for NotDowngraded {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
