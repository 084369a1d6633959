//! Whether this process was forked since a moment that was noted before, and a call when it ends.
//!
//! A fork copies memory but not threads, and connections are shared by both sides. Whoever keeps either must
//! notice. Asking the system for the process id at every call costs more than an in-process lock; a handler that
//! the C library runs in each child costs nothing until then.
//!
//! Forks made by `fork` of the C library are seen (that is Python's, Ruby's, a daemon's and `nix`'s). A raw `clone`
//! system call that goes past the library is not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

/// How many forks lie between this process and the first that watched. Changed only in a child that has one
/// thread, and every other begins after that: Relaxed.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, as it was when this was made.
///
/// ```
/// use lockkeeper_fork::Origin;
///
/// let here = Origin::here();
/// assert!(here.is_here());
/// assert_eq!(here.pid(), std::process::id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pid: u32,
    forks: u32,
}

impl Origin {
    /// This process.
    pub fn here() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: `in_child` is a plain function that lives as long as the program and does nothing but one atomic
            // addition, which is allowed in a child between `fork` and whatever comes next. The call itself has no
            // other requirement; it fails only for lack of memory, and then forks are not seen, as without it.
            unsafe {
                libc::pthread_atfork(None, None, Some(in_child));
            }
        });
        Origin { pid: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether the present process is still that one, and not a fork of it. Costs one load of a number.
    #[inline]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// Its process id.
    pub const fn pid(self) -> u32 {
        self.pid
    }
}

/// How many forks lie between this process and the first that asked. Takes no lock, so that it can be asked anywhere.
///
/// ```
/// assert_eq!(lockkeeper_fork::forks(), 0);
/// ```
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// What is called when the process ends.
static AT_EXIT: OnceLock<fn()> = OnceLock::new();

/// Call this when the process ends normally: when `main` returns or panics, or at `std::process::exit`. Not when it is
/// killed or aborts. The first call counts; a fork inherits it. The thread-locals of the ending thread may be gone by then.
///
/// ```
/// lockkeeper_fork::at_exit(|| println!("goodbye"));
/// ```
pub fn at_exit(call: fn()) {
    if AT_EXIT.set(call).is_ok() {
        // SAFETY: `on_exit` is a plain function that lives as long as the program. The call has no other requirement; it
        // fails only for lack of memory, and then nothing is called, as without it.
        unsafe {
            libc::atexit(on_exit);
        }
    }
}

extern "C" fn on_exit() {
    if let Some(call) = AT_EXIT.get() {
        call();
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_not_its_parent() {
        let parent = Origin::here();
        // What the C library calls in a child; a real fork is tested where there are locks.
        in_child();
        assert!(!parent.is_here());
        assert!(Origin::here().is_here());
    }
}
