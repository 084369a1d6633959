//! The pulse of a connection: whether answers still come, for all who wait on it together.
//!
//! A peer that vanished without a word, behind a firewall that drops idle flows or on a frozen host, is noticed only by
//! waiting. A timer for every call would cost more than most calls take, so one watcher per connection looks from
//! time to time whether any answer has come. Answers come in order: if the oldest call has none, no call has.
//!
//! The watcher runs on another thread than most callers, and waking that costs more than a trip to a near server. So it is
//! woken by the first call after a pause and looks again when somebody could have waited too long, which is once in so long a
//! time as callers bear, however many calls there are.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use futures_util::future::{Either, select};
use lockkeeper_core::{Clock, Moment};
use redis::{RedisError, RedisResult};
use tokio::sync::Notify;

/// Nobody has asked for a while, and nobody looks.
const AT_EASE: u64 = u64::MAX;

/// The watcher does not look more often than this.
const LOOK_MIN: Duration = Duration::from_millis(2);

/// All in one order (`SeqCst`): whoever begins to wait counts itself and then looks at `bears`, the watcher that goes to rest changes
/// `bears` and then looks whether anybody waits. So at least one of the two sees the other.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Calls that wait for an answer.
    waiting: AtomicUsize,
    /// When an answer came last, or somebody began to wait while nobody else did, by the boot clock.
    stirred_at: AtomicU64,
    /// The shortest patience of those who have asked since the watcher rested, in microseconds.
    bears: AtomicU64,
    /// The longest that anybody waits.
    at_most: Duration,
    watched: AtomicBool,
    over: AtomicBool,
    look: Notify,
    silence: Notify,
    /// How often the watcher has looked, for whoever wants to see what it costs.
    looks: AtomicUsize,
}

/// One call that waits.
struct Waits<'a>(&'a Pulse);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl Pulse {
    pub(crate) fn new(at_most: Duration) -> Arc<Self> {
        Arc::new(Pulse {
            waiting: AtomicUsize::new(0),
            stirred_at: AtomicU64::new(0),
            bears: AtomicU64::new(AT_EASE),
            at_most,
            watched: AtomicBool::new(false),
            over: AtomicBool::new(false),
            look: Notify::new(),
            silence: Notify::new(),
            looks: AtomicUsize::new(0),
        })
    }

    /// Whether nobody waits for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }

    /// Wait for an answer, but not longer than the connection stays silent for `patience`.
    pub(crate) async fn bear<T>(
        self: &Arc<Self>,
        patience: Duration,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let silence = self.silence.notified();
        let _waits = self.wait(patience.min(self.at_most));
        match select(pin!(answer), pin!(silence)).await {
            Either::Left((answer, _)) => {
                self.stir();
                answer
            }
            Either::Right(_) => Err(no_answer()),
        }
    }

    fn wait(self: &Arc<Self>, patience: Duration) -> Waits<'_> {
        // Before it counts as waiting: whoever finds somebody waiting finds since when.
        if self.waiting.load(SeqCst) == 0 {
            self.stir();
        }
        self.waiting.fetch_add(1, SeqCst);
        let micros = u64::try_from(patience.as_micros()).unwrap_or(AT_EASE - 1);
        if micros < self.bears.load(SeqCst) {
            self.bears.fetch_min(micros, SeqCst);
            if !self.watched.swap(true, SeqCst) {
                tokio::spawn(watch(Watched(self.clone())));
            }
            self.look.notify_one();
        }
        Waits(self)
    }

    /// It lives, or somebody begins to wait for a sign that it does.
    fn stir(&self) {
        self.stirred_at.fetch_max(Clock::boot().now().as_nanos(), SeqCst);
    }

    /// The connection is gone: nobody needs to be watched.
    pub(crate) fn end(&self) {
        self.over.store(true, SeqCst);
        self.look.notify_one();
    }

    /// Nobody waits. Tell so, unless somebody began to just now.
    fn rest(&self) {
        self.bears.store(AT_EASE, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            let micros = u64::try_from(self.at_most.as_micros()).unwrap_or(AT_EASE - 1);
            self.bears.fetch_min(micros, SeqCst);
        }
    }
}

/// Watched by a task. If that goes away with its runtime, the next call begins another.
struct Watched(Arc<Pulse>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watched.store(false, SeqCst);
        self.0.bears.store(AT_EASE, SeqCst);
    }
}

async fn watch(watched: Watched) {
    let (clock, pulse) = (Clock::boot(), &watched.0);
    // What it had heard of when it looked last, and the moment from which on silence is counted anew.
    let (mut known, mut told_at) = (0, Moment::from_nanos(0));
    while !pulse.over.load(SeqCst) {
        pulse.looks.fetch_add(1, SeqCst);
        let (now, stirred) = (clock.now(), pulse.stirred_at.load(SeqCst));
        let is_idle = pulse.is_idle();
        if is_idle && stirred == known {
            pulse.rest();
        }
        known = stirred;
        let bears = pulse.bears.load(SeqCst);
        if bears == AT_EASE {
            pulse.look.notified().await;
            continue;
        }
        let bears = Duration::from_micros(bears);
        // Whoever begins to wait from now on bears so much.
        let mut due = now.after(bears);
        if !is_idle {
            due = Moment::from_nanos(stirred).max(told_at).after(bears);
            if due <= now {
                pulse.silence.notify_waiters();
                (told_at, due) = (now, now.after(bears));
            }
        }
        let nap = clock.sleep_until(due.max(now.after(LOOK_MIN)));
        select(pin!(pulse.look.notified()), nap).await;
    }
}

/// What a call is told to which no answer came. Whether it was served is not known.
pub(crate) fn no_answer() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "no answer came in time").into()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn silence_is_told_to_all_who_wait_and_answers_put_it_off() {
        let (pulse, clock) = (Pulse::new(Duration::from_secs(10)), Clock::boot());
        let patience = Duration::from_millis(80);
        let began = clock.now();
        let call = || pulse.bear(patience, pending::<RedisResult<()>>());
        let (one, two) = tokio::join!(call(), call());
        assert!(one.unwrap_err().is_timeout() && two.unwrap_err().is_timeout());
        assert!(patience <= clock.now() - began);
        // Somebody is answered all the time: then the connection lives.
        let busy = async {
            for _ in 0..10 {
                let answer = pulse.bear(patience, async {
                    clock.sleep(patience / 4).await;
                    Ok(())
                });
                answer.await.unwrap();
            }
        };
        tokio::select! {
            () = busy => {}
            silent = pulse.bear(patience, pending::<RedisResult<()>>()) => panic!("{silent:?}"),
        }
        pulse.end();
    }

    #[tokio::test]
    async fn calls_that_are_answered_wake_the_watcher_once_in_so_long_a_time_as_they_bear() {
        let (pulse, clock) = (Pulse::new(Duration::from_secs(10)), Clock::boot());
        let (patience, began) = (Duration::from_millis(200), clock.now());
        for _ in 0..500 {
            pulse.bear(patience, async { Ok(()) }).await.unwrap();
            // The watcher has its turn, and finds nobody waiting.
            tokio::task::yield_now().await;
        }
        clock.sleep(patience).await;
        let spans = (clock.now() - began).as_nanos() / patience.as_nanos();
        let looks = pulse.looks.load(SeqCst) as u128;
        assert!(looks <= 3 + spans, "{looks} looks in {spans} spans");
        pulse.end();
    }

    #[tokio::test]
    async fn whoever_begins_to_wait_between_two_looks_is_not_told_too_soon_nor_much_too_late() {
        let (pulse, clock) = (Pulse::new(Duration::from_secs(10)), Clock::boot());
        let patience = Duration::from_millis(80);
        pulse.bear(patience, async { Ok(()) }).await.unwrap();
        clock.sleep(patience / 2).await;
        let began = clock.now();
        pulse.bear(patience, pending::<RedisResult<()>>()).await.unwrap_err();
        assert!(patience <= clock.now() - began, "{:?}", clock.now() - began);
        pulse.end();
    }
}
