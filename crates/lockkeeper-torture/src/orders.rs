//! What a worker is told while it is at work, as lines of its input: what its tasks do now, that its runtime is to go, that it is to fork.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;

use crate::Trouble;
use crate::worker::Fork;

/// What the tasks do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Work,
    Storm,
    Stop,
}

/// What has come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All.
    Over,
    /// The runtime, with everything that was under way in it.
    Runtime,
}

/// Where orders go.
pub(crate) struct Orders {
    mode: watch::Sender<Mode>,
    runtimes: watch::Sender<u64>,
    forks: Forks,
}

/// Where they are heard.
pub(crate) struct Heard {
    pub(crate) mode: watch::Receiver<Mode>,
    runtimes: watch::Receiver<u64>,
    pub(crate) forks: Forks,
}

pub(crate) fn channel(fork: Option<Fork>) -> (Orders, Heard) {
    let ((mode, now), (runtimes, ends)) = (watch::channel(Mode::Work), watch::channel(0));
    let forks = Forks { fork, due: Arc::default() };
    let orders = Orders { mode, runtimes, forks: forks.clone() };
    (orders, Heard { mode: now, runtimes: ends, forks })
}

impl Orders {
    /// Until the input ends.
    pub(crate) fn obey(self) {
        for line in std::io::stdin().lines() {
            match line.as_deref() {
                Ok("work") => drop(self.mode.send_replace(Mode::Work)),
                Ok("storm") => drop(self.mode.send_replace(Mode::Storm)),
                Ok("drop") => self.runtimes.send_modify(|it| *it += 1),
                Ok("fork") => drop(self.forks.due.fetch_add(1, Ordering::Relaxed)),
                _ => break,
            }
        }
        self.mode.send_replace(Mode::Stop);
    }
}

impl Heard {
    /// Resolves when the present runtime is to go, or when there are no orders any more.
    pub(crate) fn end_of_runtime(&mut self) -> impl Future<Output = Result<Ended, Trouble>> + Send + use<> {
        self.runtimes.mark_unchanged();
        let mut ends = self.runtimes.clone();
        async move { Ok(ends.changed().await.map_or(Ended::Over, |()| Ended::Runtime)) }
    }
}

/// Forks that are to be made by whoever holds a lock next.
#[derive(Clone)]
pub(crate) struct Forks {
    fork: Option<Fork>,
    /// How many. Relaxed: who takes one needs nothing else that was done before.
    due: Arc<AtomicU32>,
}

impl Forks {
    /// If one is due: whether `seen` is true there. Its process ends with the answer; nothing that it has in its copy is given
    /// back by that.
    pub(crate) fn make(&self, seen: &dyn Fn() -> bool) -> Result<bool, Trouble> {
        let Some(fork) = self.fork else { return Ok(true) };
        let taken = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
        if taken.is_ok() { fork(seen) } else { Ok(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_forks_are_made_as_were_told_and_what_is_seen_there_is_told() -> Result<(), Trouble> {
        let (orders, heard) = channel(Some(|seen| Ok(seen())));
        assert!(heard.forks.make(&|| false)?, "none is due");
        orders.forks.due.fetch_add(2, Ordering::Relaxed);
        assert!(!heard.forks.make(&|| false)? && heard.forks.make(&|| true)? && heard.forks.make(&|| false)?);
        Ok(())
    }

    #[tokio::test]
    async fn a_runtime_ends_once_for_each_time_that_it_is_told() -> Result<(), Trouble> {
        let (orders, mut heard) = channel(None);
        orders.runtimes.send_modify(|it| *it += 1);
        let end = heard.end_of_runtime();
        orders.runtimes.send_modify(|it| *it += 1);
        assert_eq!(end.await?, Ended::Runtime, "the second; the first was before");
        let end = heard.end_of_runtime();
        drop(orders);
        assert_eq!(end.await?, Ended::Over);
        Ok(())
    }
}
