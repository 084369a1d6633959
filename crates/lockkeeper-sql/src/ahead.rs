//! Waiting for whoever stands right before us: on a connection of its own, which the server lets go on when that one
//! has left. So a hand-off wakes one process, however many wait.
//!
//! A claim that must wait holds a lock of the server's own, named after it, on the session by which it took its place;
//! whoever stands behind it waits for that lock. It is only a hint. If the lock is gone early, because its session has
//! ended, or late, because its process stands still, the claim behind waits as if there were none.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The most connections of one process that wait.
const CHAIRS_MAX: usize = 4;

/// The most claims of one process that others can wait for. Each takes room in the server's table of locks.
const NAMED_MAX: usize = 8;

/// How long a connection on which nobody waits stays open.
const LINGER: Duration = Duration::from_secs(5);

/// How long no further connection is tried where the server has little room, or none.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Rings for one claim.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    /// It is likely our turn: asking is worthwhile. Acquire and Release are more than enough: a hint, written before it rings and read
    /// after that was heard, which orders the two.
    called: AtomicBool,
    /// Its claim holds, and listens for those who want that. Acquire and Release are more than enough: it says whom to ring when
    /// a connection has ended, and all are rung when another is open.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "only PostgreSQL's holders are called")
    )]
    holds: AtomicBool,
}

impl Bell {
    /// It is likely the claim's turn.
    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.rung.notify_one();
    }

    /// Something has changed.
    pub(crate) fn ring(&self) {
        self.rung.notify_one();
    }

    /// Whether the claim was called, and nobody has answered the call.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// The call is answered.
    pub(crate) fn answered(&self) {
        self.called.store(false, Ordering::Release);
    }

    /// From now on its claim holds, or does not any more.
    #[cfg(feature = "postgres")]
    pub(crate) fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    /// Whether its claim holds, and listens.
    #[cfg(feature = "postgres")]
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }

    /// Wait until it rings, or has rung since it was last heard.
    pub(crate) async fn heard(&self) {
        self.rung.notified().await;
    }
}

/// How a store waits.
pub(crate) trait Stand: Send + Sync + 'static {
    /// A connection on which one can wait.
    type Chair: Send + Sync + 'static;
    /// Who stands before us.
    type Ahead: Send + Sync + 'static;

    fn chairs(&self) -> &Chairs<Self::Chair>;
    /// Open a connection, unless the server has no room for `wished` such connections of each process.
    fn open(&self, wished: usize) -> impl Future<Output = Option<Self::Chair>> + Send;
    /// Wait for a while, so many times after others.
    fn stand(
        &self,
        chair: &Self::Chair,
        ahead: &Self::Ahead,
        before: u32,
    ) -> impl Future<Output = Stood> + Send;
}

/// What became of a wait for whoever stands before us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stood {
    Gone,
    /// It is still there.
    Still,
    /// It is still there, and one that stays so long is cheaper to hear of otherwise.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only PostgreSQL has another way"))]
    Enough,
    /// This connection is of no use.
    Useless,
}

/// Whether `wished` more connections of each process fit, if it has two in any case and all processes open theirs at
/// the same moment. A sixteenth is left to others.
pub(crate) fn has_room(open: u64, most: u64, wished: usize) -> bool {
    open.saturating_mul(2 + u64::try_from(wished).unwrap_or(u64::MAX)).saturating_mul(8)
        <= most.saturating_mul(15)
}

/// The waiting connections of one process, and its claims for which others can wait.
pub(crate) struct Chairs<S> {
    /// Acquire and Release are more than enough: a bound, and nothing is read because of it.
    named: Arc<AtomicUsize>,
    state: Mutex<State<S>>,
}

struct State<S> {
    /// Nobody waits on these, each since when.
    idle: Vec<(S, Moment)>,
    open: usize,
    full_until: Option<Moment>,
    sweeping: bool,
}

impl<S> Default for Chairs<S> {
    fn default() -> Self {
        let state = State { idle: Vec::new(), open: 0, full_until: None, sweeping: false };
        Chairs { named: Arc::default(), state: Mutex::new(state) }
    }
}

impl<S> Chairs<S> {
    /// One more claim for which others can wait, if there are not too many.
    pub(crate) fn permit(&self) -> Option<Permit> {
        let permit = Permit(self.named.clone());
        (self.named.fetch_add(1, Ordering::AcqRel) < NAMED_MAX).then_some(permit)
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        locked(&self.state)
    }

    /// A connection that is open already, or how many would be open with one more. `None` if there must not be more.
    fn take(&self, now: Moment) -> Option<Result<S, usize>> {
        let mut state = self.state();
        if let Some((chair, _)) = state.idle.pop() {
            return Some(Ok(chair));
        }
        if state.full_until.is_some_and(|it| now < it) || CHAIRS_MAX <= state.open {
            return None;
        }
        state.open += 1;
        Some(Err(state.open))
    }

    /// A connection is none any more.
    fn lost(&self, now: Moment) {
        let mut state = self.state();
        state.open -= 1;
        state.full_until = Some(now.after(FULL_FOR));
    }

    /// Nobody waits on it now. `true` if somebody must see to it that it is closed some time.
    fn give_back(&self, chair: S, now: Moment) -> bool {
        let mut state = self.state();
        state.idle.push((chair, now));
        !std::mem::replace(&mut state.sweeping, true)
    }

    /// Close what nobody has used for a while. `false` if nothing is left to be closed.
    fn sweep(&self, now: Moment) -> bool {
        let mut state = self.state();
        let idle = std::mem::take(&mut state.idle);
        let (used, unused): (Vec<_>, Vec<_>) = idle.into_iter().partition(|it| now < it.1.after(LINGER));
        state.open -= unused.len();
        state.sweeping = !used.is_empty();
        state.idle = used;
        let goes_on = state.sweeping;
        drop(state);
        drop(unused);
        goes_on
    }
}

/// One of the claims for which others can wait. Release, as is told of the bound.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One who waits for whoever stands before it. Dropped, it waits no more.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Only ever set, by whoever ends it. Acquire and Release are more than enough: one ring too many asks once more.
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Wait until that one has gone, then call. If it cannot be waited for, or takes too long, ring.
    pub(crate) fn begin<S: Stand>(store: Arc<S>, runtime: &Handle, ahead: S::Ahead, bell: Arc<Bell>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        runtime.spawn(watch(store, ahead, bell, over.clone()));
        Watch { over }
    }

    /// Whether it still waits, and will call.
    pub(crate) fn is_on(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

async fn watch<S: Stand>(store: Arc<S>, ahead: S::Ahead, bell: Arc<Bell>, over: Arc<AtomicBool>) {
    let gone = stand(&store, &ahead, &over).await;
    let is_wanted = !over.swap(true, Ordering::AcqRel);
    if is_wanted && gone {
        bell.call();
    } else if is_wanted {
        bell.ring();
    }
}

/// `false` if nobody wants to know any more, or one cannot wait, or not for that long.
async fn stand<S: Stand>(store: &Arc<S>, ahead: &S::Ahead, over: &AtomicBool) -> bool {
    let (chairs, clock) = (store.chairs(), Clock::boot());
    let chair = match chairs.take(clock.now()) {
        None => return false,
        Some(Ok(chair)) => chair,
        Some(Err(wished)) => {
            let Some(chair) = store.open(wished).await else {
                chairs.lost(clock.now());
                return false;
            };
            chair
        }
    };
    let (mut stood, mut before) = (Stood::Still, 0);
    while stood == Stood::Still && !over.load(Ordering::Acquire) {
        stood = store.stand(&chair, ahead, before).await;
        before += 1;
    }
    if stood == Stood::Useless {
        chairs.lost(clock.now());
    } else if chairs.give_back(chair, clock.now()) {
        tokio::spawn(sweep(store.clone()));
    }
    stood == Stood::Gone
}

async fn sweep<S: Stand>(store: Arc<S>) {
    let clock = Clock::boot();
    loop {
        clock.sleep(LINGER).await;
        if !store.chairs().sweep(clock.now()) {
            return;
        }
    }
}

impl<S> fmt::Debug for Chairs<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chairs").field("named", &self.named).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn all_processes_at_once_do_not_use_up_the_servers_connections() {
        for most in [20_u64, 100, 151, 1000] {
            for wished in 1..=CHAIRS_MAX {
                let open = (0..=most).rfind(|it| has_room(*it, most, wished)).unwrap();
                // Each process has two, and opens all it may.
                assert!(open + open / 2 * wished as u64 <= most * 15 / 16, "{open} of {most}, {wished} each");
            }
        }
        assert!(has_room(599, 1000, 1) && !has_room(626, 1000, 1));
    }

    #[test]
    fn chairs_are_used_again_bounded_and_closed_when_nobody_waits() {
        let chairs = Chairs::default();
        for count in 1..=CHAIRS_MAX {
            assert_eq!(chairs.take(at(0)), Some(Err(count)));
        }
        assert_eq!(chairs.take(at(0)), None, "no more than so many");
        assert!(chairs.give_back('a', at(1)), "the first must be closed some time");
        assert!(!chairs.give_back('b', at(4)));
        assert_eq!(chairs.take(at(4)), Some(Ok('b')));
        assert!(!chairs.give_back('b', at(4)));
        assert!(chairs.sweep(at(7)), "one was used lately");
        assert!(!chairs.sweep(at(20)));
        assert_eq!(chairs.take(at(20)), Some(Err(CHAIRS_MAX - 1)));
        chairs.lost(at(20));
        assert_eq!(chairs.take(at(21)), None, "the server has no room");
        assert_eq!(chairs.take(at(40)), Some(Err(CHAIRS_MAX - 1)));
    }

    #[test]
    fn few_claims_take_room_in_the_servers_table_of_locks() {
        let chairs = Chairs::<()>::default();
        let permits: Vec<_> = (0..NAMED_MAX).map(|_| chairs.permit().unwrap()).collect();
        assert!(chairs.permit().is_none());
        drop(permits);
        assert!(chairs.permit().is_some());
    }
}
