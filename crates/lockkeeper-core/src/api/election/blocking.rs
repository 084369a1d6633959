//! Elections for threads without a runtime.

use crate::api::election::{Campaign, Leader, Leaders, Leadership};
use crate::error::Result;

impl Campaign {
    /// [`win`](Campaign::win) on this thread.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let mut leaders = locker.leaders("scheduler")?;
    /// let leadership = locker.campaign("scheduler", "starting").win_blocking()?;
    /// leadership.proclaim_blocking("10.0.0.7:8080")?;
    /// assert_eq!(leaders.next_blocking()?.expect("we lead").value, "10.0.0.7:8080");
    /// leadership.resign_blocking()?;
    /// assert!(locker.leader_blocking("scheduler")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`win`](Campaign::win).
    pub fn win_blocking(&self) -> Result<Leadership> {
        self.engine.background.start()?;
        self.engine.background.block_on(self.win())
    }
}

impl Leadership {
    /// [`proclaim`](Leadership::proclaim) on this thread.
    ///
    /// # Errors
    /// As for [`proclaim`](Leadership::proclaim).
    pub fn proclaim_blocking(&self, value: impl Into<String>) -> Result<()> {
        self.engine.background.block_on(self.proclaim(value))
    }

    /// [`resign`](Leadership::resign) on this thread.
    ///
    /// # Errors
    /// As for [`resign`](Leadership::resign).
    pub fn resign_blocking(self) -> Result<()> {
        let engine = self.engine.clone();
        engine.background.block_on(self.resign())
    }
}

impl Leaders {
    /// [`next`](Leaders::next) on this thread.
    ///
    /// # Errors
    /// As for [`next`](Leaders::next).
    pub fn next_blocking(&mut self) -> Result<Option<Leader>> {
        let engine = self.engine.clone();
        engine.background.block_on(self.next())
    }
}
