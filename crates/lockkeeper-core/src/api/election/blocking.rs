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
        self.engine.start()?;
        self.engine.background.block_on(self.win())
    }

    /// [`run`](Campaign::run) on this thread, for work that does not await. It is not stopped when the role is lost: ask
    /// [`is_valid`](Leadership::is_valid) now and then, and send the term along with every write. What it answers after a loss is
    /// refused; then we stand again and it is called anew.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// let term = locker.campaign("scheduler", "10.0.0.7:8080").run_blocking(|leadership| leadership.term())?;
    /// println!("led in term {term}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`run`](Campaign::run).
    pub fn run_blocking<T>(&self, mut work: impl FnMut(&Leadership) -> T) -> Result<T> {
        self.engine.start()?;
        self.engine.background.block_on(self.run(async |leadership| work(leadership)))
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
