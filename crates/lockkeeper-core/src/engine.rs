//! What all parts of one locker share: the store, the clock, the queue, the settings, the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{DynBackend, Profile};
use crate::background::Background;
use crate::claim::Label;
use crate::clock::{Clock, Moment};
use crate::error::{Error, LostReason, Result};
use crate::fence::{COUNTER_MAX, Fence};
use crate::keeper;
use crate::observe::{Event, Observer};
use crate::queue::{Queue, Release};
use crate::rounds::Rounds;
use crate::tenure::{End, Tenure};

/// How a locker behaves; each has a setter on [`LockerBuilder`](crate::LockerBuilder).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) wait: Duration,
    pub(crate) outage_max: Duration,
    pub(crate) handoff_span_max: Duration,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) profile: Profile,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) queue: Queue,
    pub(crate) rounds: Rounds,
    pub(crate) background: Background,
    /// Nobody but this locker can reach the store: the local line is the whole lock.
    pub(crate) is_private: bool,
    /// The last counter given without asking the store.
    pub(crate) private_counter: AtomicU64,
    pub(crate) label: Arc<Label>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) closed: AtomicBool,
    /// Tells whoever waits at the store that the locker was closed.
    pub(crate) closing: Notify,
    #[cfg(feature = "mutants")]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl Engine {
    pub(crate) fn observe(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(event);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// When a grant asked for at `asked_at` ends for us: counted from before the request was sent, and a
    /// little earlier than for the store, because two clocks never run at quite the same rate.
    #[cfg_attr(not(feature = "mutants"), expect(clippy::unused_self, reason = "the mutants need it"))]
    pub(crate) fn deadline(&self, asked_at: Moment, valid_for: Duration) -> Moment {
        #[cfg(feature = "mutants")]
        let asked_at = match self.mutant {
            Some(crate::mutant::Mutant::DeadlineFromReply) => self.clock.now(),
            _ => asked_at,
        };
        let drift = valid_for / 100 + Duration::from_millis(1);
        asked_at.after(valid_for.saturating_sub(drift))
    }

    /// Refuse a counter that no fence can hold, rather than let fences go back.
    pub(crate) fn check_counter(&self, counter: u64) -> Result<()> {
        if counter <= COUNTER_MAX {
            return Ok(());
        }
        let what = format!("its counter {counter} is larger than the {COUNTER_MAX} a fence can hold");
        Err(Error::Unsupported { backend: self.profile.name, what })
    }

    pub(crate) fn too_deep(&self) -> Error {
        let depth_max = self.queue.depth_max();
        Error::invalid(format!(
            "this owner holds the lock {depth_max} times already; release it or raise `depth_max`"
        ))
    }

    /// A guard is given back without waiting for the store.
    pub(crate) fn release(self: &Arc<Self>, tenure: &Arc<Tenure>, fence: Fence) {
        if self.give_back(tenure, fence) {
            self.end(tenure);
        }
    }

    /// Give a guard back to the queue. `true` if the tenure is over and the store must be told.
    pub(crate) fn give_back(&self, tenure: &Arc<Tenure>, fence: Fence) -> bool {
        let (waker, handed_on) = match self.queue.release(tenure, &self.clock) {
            Release::StillHeld | Release::Stale => return false,
            Release::Over(waker) => (waker, false),
            Release::HandedOn(waker, held) => {
                self.rounds.ask_early(tenure, held.since, self.settings.handoff_span_max);
                self.rounds.expect_at(held.hold_until);
                (waker, true)
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        self.observe(&Event::Released { key: &tenure.key, fence, handed_on });
        !handed_on
    }

    /// End a tenure that no line holds any more, and leave the store in the background.
    pub(crate) fn end(self: &Arc<Self>, tenure: &Arc<Tenure>) {
        let End::Leave(mut place) = tenure.end() else { return };
        if place.leave_at_once_dyn() {
            self.observe(&Event::Left { key: &tenure.key });
            return;
        }
        let (engine, tenure) = (self.clone(), tenure.clone());
        self.background.spawn(async move { keeper::see_out(&engine, &tenure, place).await });
    }

    /// A tenure is lost: tell its holder first, then the queue, and only then the store.
    pub(crate) fn lose(self: &Arc<Self>, tenure: &Arc<Tenure>, reason: LostReason) {
        if !tenure.lose(reason) {
            return;
        }
        self.observe(&Event::Lost { key: &tenure.key, fence: tenure.fence(), reason });
        if let Some(waker) = self.queue.detach(tenure) {
            waker.wake();
        }
        self.end(tenure);
    }

    /// Refuse new requests, call off the waiting, take back what is held, and leave the store.
    pub(crate) fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        let (wakers, tenures) = self.queue.close();
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.closing.notify_waiters();
        for tenure in tenures {
            self.lose(&tenure, LostReason::Closed);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.rounds.stop();
    }
}
