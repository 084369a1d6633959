//! Which event loop hears a connection's socket: our own thread's, or that of a caller who is alone.
//!
//! If only our own thread's did, each answer would cross from there to its caller, which costs more than the server's work.
//! So a caller that was alone a few times has the socket in its own event loop, until somebody else asks, our own thread for
//! its beats too, or nobody does. A loop that does not move any more holds it no longer than our own thread looks away.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

/// So often in a row a caller must have been alone: a program that takes one lock and ends need not begin.
const ALONE_BEFORE: u32 = 4;

/// The same at most, where the loop stood still again and again.
const ALONE_BEFORE_MAX: u32 = 1024;

/// How often our own thread looks whether the loop that has the socket is of use.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection's socket. It is moved only by whoever polls the connection's work at the moment.
pub(crate) trait Socket: Send + Sync + 'static {
    /// The caller's runtime whose event loop hears it; `None` if it is our own thread's.
    fn lent_to(&self) -> Option<Id>;

    /// Let the event loop of a caller hear it. `false` if that cannot be: then nothing has changed.
    fn lend(&self, to: &Handle) -> bool;

    /// Let our own thread's hear it.
    fn take_home(&self);

    /// Whether something has come that nobody has read.
    fn has_news(&self) -> bool;
}

/// When to lend a socket, and when to take it home.
pub(super) struct Lending {
    /// It is closed with the connection's work, which has it.
    socket: Weak<dyn Socket>,
    /// Whose callers were alone, and how often in a row.
    alone: (Option<Id>, u32),
    /// How often they must have been.
    needed: u32,
    /// How much had been asked when our own thread looked.
    seen: Option<u64>,
}

impl Lending {
    pub(super) fn new(socket: &Arc<dyn Socket>) -> Self {
        Lending { socket: Arc::downgrade(socket), alone: (None, 0), needed: ALONE_BEFORE, seen: None }
    }

    pub(super) fn is_lent(&self) -> bool {
        self.socket.upgrade().is_some_and(|it| it.lent_to().is_some())
    }

    /// Somebody asks: the only one, from a task of this runtime; or one of several, or our own thread. Whether the socket was lent
    /// just now, and our own thread must begin to look.
    pub(super) fn asked(&mut self, only_from: Option<&Handle>) -> bool {
        let from = only_from.map(Handle::id);
        if from.is_none() || from != self.alone.0 {
            self.alone = (from, 0);
        }
        self.alone.1 = self.alone.1.saturating_add(1);
        let (Some(to), Some(socket)) = (only_from, self.socket.upgrade()) else { return false };
        if self.alone.1 <= self.needed || from == socket.lent_to() {
            return false;
        }
        self.seen = None;
        let lent = socket.lend(to);
        if !lent {
            self.needed = ALONE_BEFORE_MAX;
            self.alone.1 = 0;
        }
        lent
    }

    /// These wait for answers, each polled from a task of such a runtime: the socket is heard by the loop of one who is alone.
    pub(super) fn serve(&self, mut askers: impl ExactSizeIterator<Item = Option<Id>>) {
        let Some((socket, lent_to)) = self.socket.upgrade().and_then(|it| it.lent_to().map(|to| (it, to)))
        else {
            return;
        };
        let stays = match askers.len() {
            0 => true,
            1 => askers.next().flatten() == Some(lent_to),
            _ => false,
        };
        if !stays {
            socket.take_home();
        }
    }

    /// Our own thread looks: so much was asked so far, and somebody waits, or nobody. What has not changed since it looked
    /// before comes home: a socket of which nobody has a use, and one whose news nobody reads.
    pub(super) fn look(&mut self, asked: u64, waits: bool) {
        let stands = self.seen.replace(asked) == Some(asked);
        let Some(socket) = self.socket.upgrade().filter(|it| stands && it.lent_to().is_some()) else {
            return;
        };
        if !waits {
            socket.take_home();
        } else if socket.has_news() {
            // That runtime may be one that nobody moves.
            self.needed = self.needed.saturating_mul(2).min(ALONE_BEFORE_MAX);
            self.alone.1 = 0;
            socket.take_home();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use lockkeeper_core::kit::locked;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// A socket that only says where it is. Relaxed: on one thread.
    #[derive(Default)]
    struct Told {
        lent_to: Mutex<Option<Id>>,
        news: AtomicBool,
        refuses: AtomicBool,
    }

    impl Socket for Told {
        fn lent_to(&self) -> Option<Id> {
            *locked(&self.lent_to)
        }

        fn lend(&self, to: &Handle) -> bool {
            let refuses = self.refuses.load(Ordering::Relaxed);
            if !refuses {
                *locked(&self.lent_to) = Some(to.id());
            }
            !refuses
        }

        fn take_home(&self) {
            *locked(&self.lent_to) = None;
        }

        fn has_news(&self) -> bool {
            self.news.load(Ordering::Relaxed)
        }
    }

    fn site() -> (Arc<Told>, Lending, [Runtime; 2]) {
        let socket = Arc::<Told>::default();
        let shared: Arc<dyn Socket> = socket.clone();
        let runtime = || Builder::new_current_thread().build().unwrap();
        (socket, Lending::new(&shared), [runtime(), runtime()])
    }

    fn ask(lending: &mut Lending, from: Option<&Runtime>, times: u32) -> bool {
        (0..times).any(|_| lending.asked(from.map(Runtime::handle)))
    }

    #[test]
    fn a_caller_that_was_alone_a_few_times_in_a_row_has_the_socket() {
        let (socket, mut lending, [here, there]) = site();
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE));
        assert!(!ask(&mut lending, Some(&there), ALONE_BEFORE), "another was between");
        assert!(!ask(&mut lending, None, 1), "our own thread was between, or several");
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE));
        assert!(ask(&mut lending, Some(&here), 1));
        assert_eq!(socket.lent_to(), Some(here.handle().id()));
        assert!(!ask(&mut lending, Some(&here), 100), "it has it");
        assert!(ask(&mut lending, Some(&there), ALONE_BEFORE + 1), "a caller of another runtime has it next");
        assert_eq!(socket.lent_to(), Some(there.handle().id()));
    }

    #[test]
    fn a_runtime_that_cannot_have_it_is_not_asked_again_soon() {
        let (socket, mut lending, [here, _]) = site();
        socket.refuses.store(true, Ordering::Relaxed);
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE + 1));
        socket.refuses.store(false, Ordering::Relaxed);
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE_MAX));
        assert!(ask(&mut lending, Some(&here), 1));
    }

    #[test]
    fn it_comes_home_when_anybody_else_waits_for_an_answer() {
        let (socket, mut lending, [here, there]) = site();
        let (one, other) = (Some(here.handle().id()), Some(there.handle().id()));
        for (waiting, stays) in [
            (&[][..], true),
            (&[one], true),
            (&[other], false),
            (&[None], false),
            (&[one, one], false),
            (&[one, None], false),
        ] {
            assert!(socket.lend(here.handle()));
            lending.serve(waiting.iter().copied());
            assert_eq!(lending.is_lent(), stays, "{waiting:?}");
        }
        socket.take_home();
        assert!(ask(&mut lending, Some(&here), ALONE_BEFORE + 1));
    }

    #[test]
    fn it_comes_home_when_nobody_asks_or_nobody_reads() {
        let (socket, mut lending, [here, _]) = site();
        let lend = |lending: &mut Lending| assert!(ask(lending, Some(&here), ALONE_BEFORE_MAX + 1));
        lend(&mut lending);
        lending.look(7, false);
        assert!(lending.is_lent(), "it looks for the first time");
        lending.look(8, false);
        assert!(lending.is_lent(), "somebody has asked meanwhile");
        lending.look(8, false);
        assert!(!lending.is_lent(), "nobody has");

        lend(&mut lending);
        lending.look(9, true);
        lending.look(9, true);
        assert!(lending.is_lent(), "the server is slow");
        socket.news.store(true, Ordering::Relaxed);
        lending.look(10, true);
        assert!(lending.is_lent(), "this one has just asked");
        lending.look(10, true);
        assert!(!lending.is_lent(), "its answer is there, and it does not come");
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE * 2), "it has it later than before");
        assert!(ask(&mut lending, Some(&here), 1));
    }

    #[test]
    fn a_socket_that_is_closed_is_nobodys() {
        let (socket, mut lending, [here, _]) = site();
        drop(socket);
        assert!(!ask(&mut lending, Some(&here), ALONE_BEFORE + 1));
        lending.serve([None].into_iter());
        lending.look(1, true);
        assert!(!lending.is_lent());
    }
}
