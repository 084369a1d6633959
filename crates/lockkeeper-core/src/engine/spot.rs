//! Where a place is while its tenure lasts: at rest, listening to the store, or out for a verb.
//!
//! Whoever needs a place that listens calls it off and has it at once, on whatever thread that is: the one that polled it
//! is not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::spi::erased::{DynPlace, Listening};

#[derive(Default)]
pub(super) enum Spot {
    Resting(Box<dyn DynPlace>),
    Listening(Ear),
    /// A verb has it, or there is none.
    #[default]
    Out,
}

/// What ended the listening of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Asking the store is worthwhile. The place is at rest. `called` if somebody wants what it holds; else that is in doubt.
    Sign { called: bool },
    /// Somebody took the place for a verb.
    CalledOff,
}

/// A place that listens.
pub(super) struct Ear {
    listening: Listening,
    /// Written before the place is asked for, and read by the poll that gives it, on one thread: Relaxed is enough.
    called_off: Arc<AtomicBool>,
    waker: Option<Waker>,
}

/// A place that was taken, and who must be woken for it when no lock is held.
pub(super) struct Taken {
    pub(super) place: Option<Box<dyn DynPlace>>,
    pub(super) waker: Option<Waker>,
}

impl Spot {
    /// Take the place, wherever it is but in a verb.
    pub(super) fn take(&mut self) -> Taken {
        match std::mem::take(self) {
            Spot::Resting(place) => Taken { place: Some(place), waker: None },
            Spot::Listening(ear) => ear.call_off(),
            Spot::Out => Taken { place: None, waker: None },
        }
    }

    /// Begin to listen. `false` if the place is not at rest.
    pub(super) fn listen(&mut self) -> bool {
        // What is idle asks this each time it is given back, and listens already: it is not moved for that.
        if !matches!(self, Spot::Resting(_)) {
            return false;
        }
        let Spot::Resting(place) = std::mem::take(self) else { return false };
        let called_off = Arc::<AtomicBool>::default();
        let listening = place.listen_dyn(called_off.clone());
        *self = Spot::Listening(Ear { listening, called_off, waker: None });
        true
    }

    /// Resolve when the store has something to say, or when the place was taken.
    pub(super) fn poll_heard(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        let Spot::Listening(ear) = self else { return Poll::Ready(Heard::CalledOff) };
        ear.waker = Some(cx.waker().clone());
        let Poll::Ready(place) = ear.listening.as_mut().poll(cx) else { return Poll::Pending };
        let called = place.was_called_dyn();
        *self = Spot::Resting(place);
        Poll::Ready(Heard::Sign { called })
    }
}

impl Ear {
    fn call_off(mut self) -> Taken {
        self.called_off.store(true, Ordering::Relaxed);
        let answer = self.listening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(answer.is_ready(), "whoever is called off stops at once");
        let place = if let Poll::Ready(place) = answer { Some(place) } else { None };
        Taken { place, waker: self.waker }
    }
}

/// After the first sign that brought no news.
const DEAF_AT_FIRST: Duration = Duration::from_millis(5);

/// Signs of the store that brought no news, since the last renewal that was due. Written by the one renewal that is under way,
/// and read by it: Relaxed is enough.
#[derive(Default)]
pub(crate) struct Signs(AtomicU32);

impl Signs {
    /// One more without news, or none since a renewal was due or brought some.
    pub(crate) fn count(&self, brought_news: bool) {
        let signs = if brought_news { 0 } else { self.0.load(Ordering::Relaxed).saturating_add(1) };
        self.0.store(signs, Ordering::Relaxed);
    }

    /// For how long not to listen: signs that bring no news, one after the other, must not keep the store busy.
    pub(crate) fn deaf_for(&self, ttl: Duration) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            signs => DEAF_AT_FIRST.saturating_mul(2_u32.saturating_pow(signs - 1)).min(ttl / 10),
        }
    }
}
