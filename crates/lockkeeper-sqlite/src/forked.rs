//! Which files this process and its forebears have open, so that a fork does not open one of them again.
//!
//! The kernel's locks on a file belong to a process and are not inherited by a fork, but what SQLite remembers about them
//! is: a child that opens a file that its parent had open at the fork believes to have locks that it has not. When the
//! parent ends, somebody else may take away the log that the child still writes to, and two processes hold one lock.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_fork::Origin;

use crate::fault::{Result, Trouble};
use crate::file::Identity;

static OPEN: Mutex<Vec<(Identity, Origin)>> = Mutex::new(Vec::new());

/// Longer than anybody keeps the list, unless it was a thread that did not come along in a fork.
const PATIENCE: Duration = Duration::from_secs(1);

/// A note that a file is open. When it is dropped the note is removed.
#[derive(Debug)]
pub(crate) struct Opened {
    noted: Option<(Identity, Origin)>,
}

impl Opened {
    /// Refuse a file that was open when this process was forked.
    pub(crate) fn check(file: Option<Identity>) -> Result<Self> {
        let inherited = |(it, origin): &(Identity, Origin)| Some(*it) == file && !origin.is_here();
        if list()?.iter().any(inherited) {
            return Err(forked());
        }
        Ok(Opened { noted: None })
    }

    /// Note that it is open here.
    pub(crate) fn note(&mut self, file: Option<Identity>) -> Result<()> {
        if let Some(file) = file {
            let noted = (file, Origin::here());
            list()?.push(noted);
            self.noted = Some(noted);
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let (Some(noted), Ok(mut list)) = (self.noted, list())
            && let Some(at) = list.iter().position(|it| *it == noted)
        {
            list.swap_remove(at);
        }
    }
}

/// The list. Another thread may have had it when this process was forked; then it is never given back.
fn list() -> Result<MutexGuard<'static, Vec<(Identity, Origin)>>> {
    let clock = Clock::boot();
    let until = clock.now().after(PATIENCE);
    loop {
        match OPEN.try_lock() {
            Ok(list) => return Ok(list),
            Err(TryLockError::Poisoned(list)) => return Ok(list.into_inner()),
            Err(TryLockError::WouldBlock) if until <= clock.now() => return Err(forked()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

fn forked() -> Trouble {
    Trouble::permanent(
        "this process is a fork of one that had the file open, and SQLite would mistake that one's locks for its own; \
         fork before the file is opened, or drop the locker and its guards before the fork",
    )
}
