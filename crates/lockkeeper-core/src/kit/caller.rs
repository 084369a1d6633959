//! For authors of backends: where a verb runs, and on whose runtime its connections may live.

use std::cell::RefCell;

use tokio::runtime::Handle;

thread_local! {
    static CALLER: RefCell<Caller> = const { RefCell::new(Caller::Unknown) };
}

/// Whose call is being polled on this thread.
#[derive(Clone)]
enum Caller {
    /// Nobody's: no verb is being polled, or the caller has no runtime.
    Unknown,
    /// That of a task of this runtime.
    Task(Handle),
    /// That of a thread which blocks until it is answered, whatever runtime it may be a worker of.
    Blocked,
}

/// The runtime of the caller in whose task a verb is being polled.
///
/// While a verb is polled, tokio's current runtime is the locker's own, which always runs; what the verb makes
/// survives its caller. A connection is quicker on the runtime of those who use it, though: open it there with
/// [`Handle::spawn`], wait for that within a bound, and open it on the current runtime if the caller's does not
/// move. `None` on the locker's own thread, for callers without a runtime, and for callers that block their thread.
///
/// ```
/// assert!(lockkeeper_core::kit::caller_runtime().is_none(), "no verb is being polled here");
/// ```
pub fn caller_runtime() -> Option<Handle> {
    CALLER.with_borrow(|it| match it {
        Caller::Task(handle) => Some(handle.clone()),
        Caller::Unknown | Caller::Blocked => None,
    })
}

/// Run `poll` as a call from the present runtime, if that is another than `own`.
pub(crate) fn called_from<T>(own: &Handle, poll: impl FnOnce() -> T) -> T {
    let _restore = CALLER.with_borrow_mut(|it| {
        let before = Restore(it.clone());
        match Handle::try_current() {
            _ if matches!(it, Caller::Blocked) => {}
            // A call within a call, or our own thread: whoever it came from has not changed.
            Ok(here) if here.id() == own.id() => {}
            Ok(here) => *it = Caller::Task(here),
            Err(_) => *it = Caller::Unknown,
        }
        before
    });
    poll()
}

/// Until it is dropped, calls from this thread have no runtime.
pub(crate) fn without_caller() -> impl Sized {
    CALLER.with_borrow_mut(|it| Restore(std::mem::replace(it, Caller::Blocked)))
}

/// Puts back who called before, also when a verb panics.
struct Restore(Caller);

impl Drop for Restore {
    fn drop(&mut self) {
        CALLER.with_borrow_mut(|it| *it = std::mem::replace(&mut self.0, Caller::Unknown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_knows_the_runtime_it_came_from_and_forgets_it_afterwards() {
        let make = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (own, user) = (make(), make());
        let from = |at: &Handle| at.block_on(async { called_from(own.handle(), caller_runtime) });
        assert_eq!(from(user.handle()).map(|it| it.id()), Some(user.handle().id()));
        assert!(from(own.handle()).is_none(), "our own thread is nobody's caller");
        let within = user.block_on(async {
            called_from(own.handle(), || {
                let _entered = own.enter();
                called_from(own.handle(), caller_runtime)
            })
        });
        assert!(within.is_some(), "a call within a call keeps its caller");
        assert!(called_from(own.handle(), caller_runtime).is_none(), "a thread without a runtime");
        assert!(caller_runtime().is_none(), "nothing is polled any more");
        let blocked = without_caller();
        assert!(from(user.handle()).is_none(), "a worker that blocks moves nothing");
        drop(blocked);
        assert!(from(user.handle()).is_some());
    }
}
