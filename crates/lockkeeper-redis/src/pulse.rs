//! The pulse of a connection: whether answers still come, for all who wait on it together.
//!
//! A peer that vanished without a word, behind a firewall that drops idle flows or on a frozen host, is noticed only by
//! waiting. A timer for every call would cost more than most calls take, so one watcher per connection looks from
//! time to time whether any answer has come. Answers come in order: if the oldest call has none, no call has.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use futures_util::future::{Either, select};
use lockkeeper_core::Clock;
use redis::{RedisError, RedisResult};
use tokio::sync::Notify;

/// Nobody waits.
const AT_EASE: u64 = u64::MAX;

/// The watcher does not look more often than this, and not more rarely than that.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Pulse {
    /// Calls that wait for an answer.
    waiting: AtomicUsize,
    answers: AtomicU64,
    /// The shortest patience of those who wait, in microseconds.
    bears: AtomicU64,
    /// The longest that anybody waits.
    at_most: Duration,
    watched: AtomicBool,
    over: AtomicBool,
    look: Notify,
    silence: Notify,
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
            answers: AtomicU64::new(0),
            bears: AtomicU64::new(AT_EASE),
            at_most,
            watched: AtomicBool::new(false),
            over: AtomicBool::new(false),
            look: Notify::new(),
            silence: Notify::new(),
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
                self.answers.fetch_add(1, SeqCst);
                answer
            }
            Either::Right(_) => Err(no_answer()),
        }
    }

    fn wait(self: &Arc<Self>, patience: Duration) -> Waits<'_> {
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
    let (mut answers, mut heard_at) = (pulse.answers.load(SeqCst), clock.now());
    while !pulse.over.load(SeqCst) {
        let (now, so_far) = (clock.now(), pulse.answers.load(SeqCst));
        if pulse.waiting.load(SeqCst) == 0 {
            pulse.rest();
        }
        let bears = pulse.bears.load(SeqCst);
        if bears == AT_EASE {
            pulse.look.notified().await;
            heard_at = clock.now();
            continue;
        }
        let bears = Duration::from_micros(bears);
        if so_far != answers || pulse.waiting.load(SeqCst) == 0 {
            (answers, heard_at) = (so_far, now);
        } else if bears + bears / 4 <= now - heard_at {
            // A quarter more: whoever waits may have begun right after the last look.
            pulse.silence.notify_waiters();
            heard_at = now;
        }
        let nap = clock.sleep((bears / 4).clamp(LOOK_MIN, LOOK_MAX));
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
}
