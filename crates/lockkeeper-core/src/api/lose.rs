//! Losing what is shared, or several locks, now: for tests of what code does then.

use crate::api::guard::Guard;
use crate::api::multi::MultiGuard;
use crate::api::shared::SharedGuard;

impl SharedGuard {
    /// Lose it now, as if somebody had broken it. Readers of this process that share its place lose it, too. See
    /// [`Guard::lose_now`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, LostReason, Memory, SharedGuard};
    /// # let locker = Locker::new(Memory::default());
    /// let reader: SharedGuard = locker.read("prices").await?;
    /// reader.lose_now();
    /// assert_eq!(reader.lost().await, LostReason::Taken);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn lose_now(&self) {
        self.0.lose_now();
    }
}

impl MultiGuard {
    /// Lose all of them now, as if somebody had broken them. See [`Guard::lose_now`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory, MultiGuard};
    /// # let locker = Locker::new(Memory::default());
    /// let both: MultiGuard = locker.lock_all(["from", "to"]).await?;
    /// both.lose_now();
    /// assert!(!both.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    pub fn lose_now(&self) {
        self.guards().for_each(Guard::lose_now);
    }
}
