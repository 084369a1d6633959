//! Virtual time: run asynchronous code on one thread, as fast as it goes.

use std::future::Future;

use lockkeeper_core::Clock;

/// How often everybody else is let run before time moves on.
///
/// Moving on too early does no harm that a slow machine could not do; it only must not be the rule.
const YIELDS: u32 = 16;

/// After so many moves without a timer the run is called stuck: everybody waits for nothing.
const IDLE_MAX: u32 = 1000;

/// Run `work` to its end on a runtime of one thread, moving the virtual `clock` whenever nobody can go on.
///
/// `None` if everybody waits and no timer is left.
///
/// # Panics
/// If there is no runtime to be had.
pub fn in_virtual_time<T>(clock: &Clock, work: impl Future<Output = T>) -> Option<T> {
    let runtime = match tokio::runtime::Builder::new_current_thread().build() {
        Ok(it) => it,
        Err(error) => panic!("no runtime to run in: {error}"),
    };
    runtime.block_on(async {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = keep_moving(clock) => None,
        }
    })
}

async fn keep_moving(clock: &Clock) {
    let mut idle = 0;
    while idle < IDLE_MAX {
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        idle = if clock.advance() { 0 } else { idle + 1 };
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_hour_passes_at_once_and_a_run_that_waits_for_nothing_ends() {
        let clock = Clock::virtual_from(Duration::ZERO);
        let start = clock.now();
        let sleeper = clock.clone();
        let slept = in_virtual_time(&clock, async move { sleeper.sleep(Duration::from_secs(3600)).await });
        assert_eq!(slept, Some(()));
        assert_eq!(clock.now() - start, Duration::from_secs(3600));
        assert_eq!(in_virtual_time(&clock, pending::<()>()), None);
    }
}
