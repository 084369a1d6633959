//! One timer for all streams. A runtime that is given its next timer wakes itself, which is a call of the system and an event
//! more; a lock that is given back at once would pay for it, although nobody waits for that timer any more. So streams leave
//! word when they want to be called, and one task sleeps until the first of them, also when that one has gone.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::Moment;
use tokio::sync::Notify;

use crate::state::State;

/// Who wants to be called, and when.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    kept: Mutex<Kept>,
    /// Somebody wants to be called before the task wakes up.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    wakers: BTreeMap<(Moment, u64), Waker>,
    /// The number of the last one.
    last: u64,
    /// Until when the task sleeps, if it runs.
    asleep_until: Option<Moment>,
}

impl Alarms {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves at its moment, not before.
pub(crate) struct Alarm<'a> {
    state: &'a Arc<State>,
    due: Moment,
    /// Its number, once it waits.
    number: Option<u64>,
}

impl<'a> Alarm<'a> {
    pub(crate) fn at(state: &'a Arc<State>, due: Moment) -> Self {
        Alarm { state, due, number: None }
    }
}

impl Future for Alarm<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let (state, due) = (this.state, this.due);
        if due <= state.clock.now() {
            return Poll::Ready(());
        }
        let mut kept = state.alarms.kept();
        let number = *this.number.get_or_insert(kept.last + 1);
        kept.last = kept.last.max(number);
        let before = kept.wakers.insert((due, number), cx.waker().clone());
        let asleep_until = kept.asleep_until;
        kept.asleep_until = Some(asleep_until.map_or(due, |it| it.min(due)));
        drop(kept);
        // What a waker keeps alive is not ended while others wait for the list.
        drop(before);
        match asleep_until {
            None => drop(tokio::spawn(call(state.clone()))),
            Some(until) if due < until => state.alarms.sooner.notify_one(),
            Some(_) => {}
        }
        Poll::Pending
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.state.alarms.kept().wakers.remove(&(self.due, number));
            drop(waker);
        }
    }
}

/// Call each at its moment, until nobody wants to be called.
async fn call(state: Arc<State>) {
    let (alarms, clock) = (&state.alarms, &state.clock);
    loop {
        let Some(until) = alarms.kept().asleep_until else { return };
        tokio::select! {
            () = clock.sleep_until(until) => {}
            () = alarms.sooner.notified() => continue,
        }
        let due: Vec<Waker> = {
            let (mut kept, now) = (alarms.kept(), clock.now());
            let later = kept.wakers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut kept.wakers, later);
            kept.asleep_until = kept.wakers.first_key_value().map(|it| it.0.0);
            due.into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_core::{Clock, Locker, Memory};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::Serve;

    const SECOND: Duration = Duration::from_secs(1);

    fn state(clock: &Clock) -> Arc<State> {
        let store = Memory::default();
        let mut state = Serve::new(Locker::new(store.clone()), store, "a-long-secret").unwrap().state();
        state.clock = clock.clone();
        Arc::new(state)
    }

    fn called(state: &Arc<State>, due: Moment) -> JoinHandle<()> {
        let state = state.clone();
        tokio::spawn(async move { Alarm::at(&state, due).await })
    }

    /// Whatever can be done now is done.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn each_is_called_at_its_moment_whoever_came_first() {
        let clock = Clock::virtual_from(SECOND);
        let (state, begun) = (state(&clock), clock.now());
        let late = called(&state, begun.after(10 * SECOND));
        settle().await;
        let (early, too) = (called(&state, begun.after(5 * SECOND)), called(&state, begun.after(5 * SECOND)));
        settle().await;
        clock.advance_by(4 * SECOND);
        settle().await;
        assert!(!early.is_finished() && !too.is_finished());
        clock.advance_by(SECOND);
        settle().await;
        assert!(early.is_finished() && too.is_finished(), "the earlier is called at its moment");
        assert!(!late.is_finished());
        clock.advance_by(5 * SECOND);
        late.await.unwrap();
        settle().await;
        let kept = state.alarms.kept();
        assert!(kept.wakers.is_empty() && kept.asleep_until.is_none(), "nobody is kept, and nobody sleeps");
    }

    /// Who goes before its moment is not kept, and the next one sets no timer of its own.
    #[tokio::test]
    async fn whoever_comes_after_one_that_has_gone_finds_the_timer_set() {
        let clock = Clock::virtual_from(SECOND);
        let (state, begun) = (state(&clock), clock.now());
        let first = called(&state, begun.after(2 * SECOND));
        settle().await;
        first.abort();
        settle().await;
        assert!(state.alarms.kept().wakers.is_empty());
        clock.advance_by(SECOND);
        let second = called(&state, begun.after(3 * SECOND));
        settle().await;
        assert_eq!(state.alarms.kept().asleep_until, Some(begun.after(2 * SECOND)));
        clock.advance_by(SECOND);
        settle().await;
        assert!(!second.is_finished());
        clock.advance_by(SECOND);
        second.await.unwrap();
    }
}
