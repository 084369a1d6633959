//! A tenure: the time this process holds one key, from the store's grant to the leave or the loss.
//!
//! Guards share it, the queue hands it on, the rounds renew it. Whoever holds the place does the next verb: at rest, or
//! listening, it lies in the tenure; a renewal or a release takes it out.
//!
//! ```text
//!             grant                  release, nobody next          leave confirmed
//!   (keeper) ───────▶ held, at rest ────────────────────▶ leaving ───────────────▶ gone
//!                        │   ▲                               ▲
//!                 renew  ▼   │ confirmed                     │
//!                     renewing ── deadline passed, or ─▶ lost ┘
//!                                 store says no
//! ```

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::engine::ask::Ask;
use crate::engine::listeners::Listeners;
use crate::engine::since::{Began, Since};
use crate::engine::spot::{Heard, Signs, Spot};
use crate::engine::stay::Stay;
use crate::error::LostReason;
use crate::fence::{Fence, HAND_ON_MAX};
use crate::key::Key;
use crate::kit::locked;
use crate::spi::backend::{self, Grant};
use crate::spi::claim::Load;
use crate::spi::erased::DynPlace;

/// What the numbers in `lost` mean, from 1 on.
const REASONS: [LostReason; 6] = [
    LostReason::Expired,
    LostReason::Taken,
    LostReason::MaxHold,
    LostReason::Closed,
    LostReason::Released,
    LostReason::Forked,
];

pub(crate) struct Tenure {
    pub(crate) key: Key,
    pub(crate) ttl: Duration,
    /// What it weighs, of what. Changed only by the queue, under its lock, and read there, or by who has not shared it yet: Relaxed.
    weight: AtomicU32,
    capacity: AtomicU32,
    /// It is about to become one of readers. Under the queue's lock, too: Relaxed.
    lowering: AtomicBool,
    /// Whether it may stay when it is given back.
    pub(crate) stay: Stay,
    /// No store knows of it.
    pub(crate) is_private: bool,
    counter: u64,
    /// How often it was handed on. Changed only by the queue, under its lock, which orders it for the queue. Listeners
    /// read it without that lock, in one order with `listened`: `SeqCst`, as is told there.
    hand_ons: AtomicU64,
    /// Only ever moved forward, by the one renewal that is under way. Whoever reads it acts on this number alone, so
    /// Acquire and Release are more than enough; an old value errs on the safe side.
    valid_until: AtomicU64,
    /// Written and read by the rounds, except that a renewal may write it too. A plan, not a promise: an old value
    /// costs a renewal that comes early. Relaxed is enough.
    renew_at: AtomicU64,
    /// When to ask, before it must be renewed, whether somebody outside waits. A plan, too: Relaxed.
    ask_at: AtomicU64,
    /// When we learnt that somebody outside waits; `NEVER` while we know of nobody. It and `wanted_from` are written in two steps by
    /// the renewal that is under way; a reader between them hands on a little more or less than the bounds say, once: Relaxed.
    wanted_since: AtomicU64,
    /// `hand_ons` at that time. Relaxed, as is told there.
    wanted_from: AtomicU64,
    /// Not to be given back before. Only moved forward, before the guard that asked for it exists, which orders the two: Relaxed.
    kept_until: AtomicU64,
    /// When the present hold began, for observers.
    pub(crate) since: Began,
    /// Written once. Release, so that whoever reads it (Acquire) also sees what the loser did before.
    lost: AtomicU8,
    /// Somebody was told that the deadline has passed; no renewal may make that untrue. Only ever set; the renewal looks
    /// at it after its answer came, with Acquire, to see what was told before.
    over: AtomicBool,
    /// Somebody awaits the loss, or the end of its guard. Written before the number of hand-ons is read, and read after it is
    /// written, all in one order (`SeqCst`): either the listener sees that its guard is over, or whoever ended it sees the listener.
    listened: AtomicBool,
    pub(crate) signs: Signs,
    /// Boxed, because a tenure that no store knows of has nothing at rest, and is made with every in-process lock.
    rest: Mutex<Option<Box<Rest>>>,
}

#[derive(Default)]
struct Rest {
    place: Spot,
    ended: bool,
    /// Who takes the place when it comes back.
    awaited_by: Option<oneshot::Sender<Box<dyn DynPlace>>>,
    /// Who wants to know the answer to the leave.
    on_left: Option<oneshot::Sender<backend::Result<()>>>,
    listeners: Listeners,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("key", &self.key).field("fence", &self.fence()).finish_non_exhaustive()
    }
}

/// What is left to do when a tenure ends.
pub(crate) enum End {
    /// Leave the store with this place.
    Leave(Box<dyn DynPlace>),
    /// The place is out for a renewal and leaves when it returns.
    Out,
    /// The store was never asked.
    Nothing,
}

/// What a place found when it came back to rest.
pub(crate) enum Returned {
    /// It lies at rest again.
    Resting,
    /// The tenure ended meanwhile: the bringer must leave with it.
    Ended(Box<dyn DynPlace>),
}

impl Tenure {
    pub(crate) fn new(
        key: Key,
        ttl: Duration,
        load: Load,
        place: Box<dyn DynPlace>,
        grant: &Grant,
        asked_at: Moment,
        valid_until: Moment,
    ) -> Self {
        let wanted_since = if grant.wanted { asked_at } else { Moment::NEVER };
        Tenure {
            key,
            ttl,
            weight: AtomicU32::new(load.weight),
            capacity: AtomicU32::new(load.capacity),
            lowering: AtomicBool::new(false),
            stay: Stay::default(),
            is_private: false,
            counter: grant.counter,
            hand_ons: AtomicU64::new(0),
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            renew_at: AtomicU64::new(asked_at.after(ttl / 3).as_nanos()),
            ask_at: AtomicU64::new(u64::MAX),
            wanted_since: AtomicU64::new(wanted_since.as_nanos()),
            wanted_from: AtomicU64::new(0),
            kept_until: AtomicU64::new(0),
            since: Began::default(),
            lost: AtomicU8::new(0),
            over: AtomicBool::new(false),
            listened: AtomicBool::new(false),
            signs: Signs::default(),
            rest: Mutex::new(Some(Box::new(Rest { place: Spot::Resting(place), ..Rest::default() }))),
        }
    }

    /// A tenure in a store that nobody else can reach: it has no place there and never expires.
    pub(crate) fn private(key: Key, ttl: Duration, load: Load, counter: u64) -> Self {
        let never = || AtomicU64::new(u64::MAX);
        Tenure {
            key,
            ttl,
            weight: AtomicU32::new(load.weight),
            capacity: AtomicU32::new(load.capacity),
            lowering: AtomicBool::new(false),
            stay: Stay::default(),
            is_private: true,
            counter,
            hand_ons: AtomicU64::new(0),
            valid_until: never(),
            renew_at: never(),
            ask_at: never(),
            wanted_since: never(),
            wanted_from: AtomicU64::new(0),
            kept_until: AtomicU64::new(0),
            since: Began::default(),
            lost: AtomicU8::new(0),
            over: AtomicBool::new(false),
            listened: AtomicBool::new(false),
            signs: Signs::default(),
            rest: Mutex::default(),
        }
    }

    /// Whether a caller who asks for this can have it as it is.
    pub(crate) fn fits(&self, ask: &Ask) -> bool {
        self.ttl == ask.ttl && self.load() == ask.load
    }

    /// What it weighs, of what.
    #[inline]
    pub(crate) fn load(&self) -> Load {
        Load::new(self.weight.load(Ordering::Relaxed), self.capacity.load(Ordering::Relaxed))
    }

    pub(crate) fn is_lowering(&self) -> bool {
        self.lowering.load(Ordering::Relaxed)
    }

    /// Called by the queue alone.
    pub(crate) fn begin_lowering(&self) {
        self.lowering.store(true, Ordering::Relaxed);
    }

    /// It is one of readers now, with the next fence if one is left. Called by the queue alone.
    pub(crate) fn become_shared(&self) {
        self.weight.store(Load::READER.weight, Ordering::Relaxed);
        self.capacity.store(Load::READER.capacity, Ordering::Relaxed);
        self.lowering.store(false, Ordering::Relaxed);
        self.begin_next_guard();
    }

    /// The fence of the present guard.
    pub(crate) fn fence(&self) -> Fence {
        Fence::new(self.counter, self.hand_ons.load(Ordering::Relaxed))
    }

    pub(crate) fn hand_ons(&self) -> u64 {
        self.hand_ons.load(Ordering::Relaxed)
    }

    /// The next guard begins, with the next fence. `false` when this tenure's numbers are used up.
    pub(crate) fn begin_next_guard(&self) -> bool {
        let next = self.hand_ons() + 1;
        if HAND_ON_MAX < next {
            return false;
        }
        self.hand_ons.store(next, Ordering::SeqCst);
        self.since.reset();
        true
    }

    /// A caller has a guard, and observers are told. `true` if the hold begins with it.
    pub(crate) fn begin_hold(&self, now: Moment) -> bool {
        self.since.begin(now)
    }

    /// When the hold began, if observers were told so, and not of its end.
    pub(crate) fn held_since(&self) -> Since {
        self.since.get()
    }

    /// The hold is over: when it began, for whoever tells that.
    pub(crate) fn end_hold(&self) -> Since {
        self.since.end()
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether it is held, by the clock. The first `false` is final, also for a renewal that was on its way.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        if self.valid_until() <= now {
            self.over.store(true, Ordering::Release);
        }
        self.lost().is_none() && !self.over.load(Ordering::Acquire)
    }

    pub(crate) fn renew_at(&self) -> Moment {
        Moment::from_nanos(self.renew_at.load(Ordering::Relaxed))
    }

    pub(crate) fn set_renew_at(&self, at: Moment) {
        self.renew_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn ask_at(&self) -> Moment {
        Moment::from_nanos(self.ask_at.load(Ordering::Relaxed))
    }

    /// It goes on to serve callers of this process: ask within `span` whether somebody outside has begun to wait. When
    /// that is, or [`Moment::NEVER`] if it was planned before or is known.
    pub(crate) fn ask_within(&self, now: Moment, span: Duration) -> Moment {
        if self.is_private || self.ask_at() != Moment::NEVER || self.wanted_since().is_some() {
            return Moment::NEVER;
        }
        let at = now.after(span);
        self.set_ask_at(at);
        at
    }

    pub(crate) fn set_ask_at(&self, at: Moment) {
        self.ask_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// It was idle and is taken again, with the next fence nobody knows of. `false` if none is left. Called by the queue alone.
    pub(crate) fn retake(&self) -> bool {
        self.stay.retake();
        self.since.reset();
        !self.stay.take_numbered() || self.begin_next_guard()
    }

    /// Whether it can be idle, or taken again after it was.
    pub(crate) fn is_good(&self, now: Moment) -> bool {
        self.is_valid(now) && now.after(self.ttl / 4) < self.valid_until() && self.hand_ons() < HAND_ON_MAX
    }

    /// A renewal asked for at `asked_at` was confirmed. Answers may come out of order: keep the latest.
    pub(crate) fn extend(&self, asked_at: Moment, valid_until: Moment, wanted: bool) {
        self.valid_until.fetch_max(valid_until.as_nanos(), Ordering::AcqRel);
        self.set_renew_at(asked_at.after(self.ttl / 3));
        if !wanted {
            self.wanted_since.store(Moment::NEVER.as_nanos(), Ordering::Relaxed);
        } else if self.wanted_since().is_none() {
            self.wanted_from.store(self.hand_ons(), Ordering::Relaxed);
            self.wanted_since.store(asked_at.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Since when somebody outside waits, as far as we know.
    pub(crate) fn wanted_since(&self) -> Option<Moment> {
        let since = Moment::from_nanos(self.wanted_since.load(Ordering::Relaxed));
        (since != Moment::NEVER).then_some(since)
    }

    /// How often it was handed on since somebody outside waits.
    pub(crate) fn hand_ons_while_wanted(&self) -> u64 {
        self.hand_ons() - self.wanted_from.load(Ordering::Relaxed).min(self.hand_ons())
    }

    /// A guard of it asked to be kept until then, also if it is given back before.
    pub(crate) fn keep_until(&self, until: Moment) {
        self.kept_until.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Until when it must be kept, whoever gives it back.
    pub(crate) fn kept_until(&self) -> Moment {
        Moment::from_nanos(self.kept_until.load(Ordering::Relaxed))
    }

    /// Until when the store must keep it after we have gone. What others have taken is not ours to keep.
    pub(crate) fn lingers_until(&self) -> Moment {
        match self.lost() {
            None | Some(LostReason::Closed | LostReason::Released) => self.kept_until(),
            Some(_) => Moment::from_nanos(0),
        }
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        REASONS.get(usize::from(self.lost.load(Ordering::Acquire)).wrapping_sub(1)).copied()
    }

    /// Mark as lost and tell everybody who listens. Final; the first reason stays. `false` if it was lost before.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let at = REASONS.iter().position(|it| *it == reason);
        let code = u8::try_from(at.unwrap_or(0) + 1).unwrap_or(1);
        let first = self.lost.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            self.wake_listeners();
        }
        first
    }

    /// A guard of this tenure was given back: whoever listened for its loss need not listen any longer.
    pub(crate) fn guard_over(&self) {
        if self.listened.load(Ordering::SeqCst) {
            self.wake_listeners();
        }
    }

    fn wake_listeners(&self) {
        self.at_rest(|it| std::mem::take(&mut it.listeners)).wake();
    }

    fn at_rest<T>(&self, f: impl FnOnce(&mut Rest) -> T) -> T {
        f(locked(&self.rest).get_or_insert_default())
    }

    /// Resolve when the guard with this fence has lost the lock or given it back. `ticket` is the listener's own, first `None`.
    pub(crate) fn poll_lost(
        &self,
        fence: Fence,
        ticket: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<LostReason> {
        self.at_rest(|rest| {
            self.listened.store(true, Ordering::SeqCst);
            // The next guard's loss is not ours.
            if Fence::new(self.counter, self.hand_ons.load(Ordering::SeqCst)) != fence {
                return Poll::Ready(LostReason::Released);
            }
            let given_back = rest.ended.then_some(LostReason::Released);
            if let Some(reason) = self.lost().or(given_back) {
                return Poll::Ready(reason);
            }
            rest.listeners.add(ticket, cx);
            Poll::Pending
        })
    }

    /// Nobody awaits the loss by this ticket any more.
    pub(crate) fn stop_listening(&self, ticket: u64) {
        self.at_rest(|it| it.listeners.remove(ticket));
    }

    /// Take the place as soon as it lies at rest; `None` if the tenure ends before.
    pub(crate) async fn take_when_resting(&self) -> Option<Box<dyn DynPlace>> {
        let (sender, receiver) = oneshot::channel();
        let taken = self.at_rest(|rest| {
            let taken = rest.place.take();
            if taken.place.is_none() && !rest.ended {
                rest.awaited_by = Some(sender);
                return None;
            }
            Some(taken)
        });
        let Some(taken) = taken else { return receiver.await.ok() };
        taken.waker.into_iter().for_each(Waker::wake);
        taken.place
    }

    /// Take the place for a renewal; `None` if it is out already or the tenure has ended.
    pub(crate) fn take_to_renew(&self) -> Option<Box<dyn DynPlace>> {
        let taken = self.at_rest(|it| it.place.take());
        taken.waker.into_iter().for_each(Waker::wake);
        taken.place
    }

    /// Let the place listen. `false` if it is not at rest, or listens already.
    pub(crate) fn listen(&self) -> bool {
        self.at_rest(|it| it.place.listen())
    }

    /// Resolve when the store has something to say to a holder, or when the place is needed for a verb.
    pub(crate) fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<Heard> {
        self.at_rest(|it| it.place.poll_heard(cx))
    }

    /// Bring the place back from a renewal.
    pub(crate) fn bring_back(&self, place: Box<dyn DynPlace>) -> Returned {
        self.at_rest(|rest| {
            if rest.ended {
                return Returned::Ended(place);
            }
            rest.place = match rest.awaited_by.take() {
                Some(next) => next.send(place).map_or_else(Spot::Resting, |()| Spot::Out),
                None => Spot::Resting(place),
            };
            Returned::Resting
        })
    }

    /// End the tenure.
    pub(crate) fn end(&self) -> End {
        let (taken, listeners) = self.at_rest(|rest| {
            rest.ended = true;
            rest.awaited_by = None;
            (rest.place.take(), std::mem::take(&mut rest.listeners))
        });
        taken.waker.into_iter().for_each(Waker::wake);
        listeners.wake();
        match taken.place {
            Some(place) => End::Leave(place),
            None if self.is_private => End::Nothing,
            None => End::Out,
        }
    }

    /// Whether it was ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.at_rest(|it| it.ended)
    }

    /// Hear the answer to a leave that somebody else will do.
    pub(crate) fn when_left(&self) -> oneshot::Receiver<backend::Result<()>> {
        let (sender, receiver) = oneshot::channel();
        self.at_rest(|it| it.on_left = Some(sender));
        receiver
    }

    /// Tell whoever waits in [`Tenure::when_left`].
    pub(crate) fn tell_left(&self, answer: backend::Result<()>) {
        if let Some(sender) = self.at_rest(|it| it.on_left.take()) {
            let _ = sender.send(answer);
        }
    }
}

/// When what was asked for at `asked_at`, and answered by `now`, ends for us.
///
/// It counts from before the request was sent, which a store whose requests queue up in this process knows better
/// than we, and ends a little earlier than for the store, because two clocks never run at quite the same rate.
pub(crate) fn deadline(
    asked_at: Moment,
    sent_at: Option<Moment>,
    valid_for: Duration,
    now: Moment,
) -> Moment {
    let counted_from = sent_at.unwrap_or(asked_at).max(asked_at).min(now);
    let drift = valid_for / 100 + Duration::from_millis(1);
    counted_from.after(valid_for.saturating_sub(drift))
}
