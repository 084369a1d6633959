//! What many held locks cost: taking them, keeping them, listing them, and the memory of each.

use std::time::Duration;

use lockkeeper::{Guard, Locker};
use lockkeeper_core::Clock;

use crate::Answer;
use crate::measure::per;
use crate::redis::tally::cpu_seconds;
use crate::site::{Site, resident};

/// A million on Redis took more than 24 GB of this process's memory, which is not understood yet.
const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const TTL: Duration = Duration::from_secs(15);
/// Two rounds of renewals and a bit.
const WATCH: Duration = Duration::from_secs(11);
/// What would take longer than this to take is not taken.
const TAKE_MAX: Duration = Duration::from_mins(1);
/// As many are asked for at once.
const AT_ONCE: usize = 2_000;

/// What so many held locks cost.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) locks: usize,
    /// Taken per second, the last of them.
    pub(super) taken: f64,
    pub(super) valid: usize,
    /// Requests per second to keep them all.
    pub(super) requests: f64,
    /// Share of a core, of this process and of the server.
    pub(super) busy: (f64, f64),
    /// How long the list of all of them takes.
    pub(super) list: Duration,
    pub(super) listed: usize,
    /// Bytes per lock, of this process and of the store.
    pub(super) bytes: (f64, f64),
}

/// As many as can be taken in time, and what each stage costs.
pub(super) async fn grow(site: &Site) -> Answer<Vec<Held>> {
    let (clock, store) = (Clock::boot(), lockkeeper::open(&site.url()).await?);
    let (locker, inspect) = (store.locker.ttl(TTL).build(), store.inspect);
    locker.lock("first").await?.release().await?;
    let at_start = (resident(std::process::id()), site.bytes());
    let (mut guards, mut out): (Vec<Guard>, Vec<Held>) = (Vec::new(), Vec::new());
    for size in SIZES {
        let missing = size - guards.len();
        if out.last().is_some_and(|it| TAKE_MAX.as_secs_f64() < per(missing as u64, 1) / it.taken) {
            break;
        }
        let began = clock.now();
        take(&locker, size, &mut guards).await?;
        let taken = per(missing as u64, 1) / (clock.now() - began).as_secs_f64();
        let bytes = |from: u64, now: u64| per(now.saturating_sub(from), size as u64);
        let bytes = (bytes(at_start.0, resident(std::process::id())), bytes(at_start.1, site.bytes()));
        let (requests, busy) = keep(site, &clock).await?;
        let valid = guards.iter().filter(|it| it.is_valid()).count();
        let began = clock.now();
        let listed = inspect.list("").await?.len();
        out.push(Held {
            locks: size,
            taken,
            valid,
            requests,
            busy,
            list: clock.now() - began,
            listed,
            bytes,
        });
    }
    drop(guards);
    locker.shutdown(Duration::from_mins(2)).await?;
    Ok(out)
}

/// Take more until there are so many.
async fn take(locker: &Locker, size: usize, guards: &mut Vec<Guard>) -> Answer<()> {
    while guards.len() < size {
        let until = size.min(guards.len() + AT_ONCE);
        let asked = (guards.len()..until).map(|nth| tokio::spawn(locker.lock(format!("held/{nth}"))));
        for guard in asked.collect::<Vec<_>>() {
            guards.push(guard.await??);
        }
    }
    Ok(())
}

/// Requests per second, and the share of a core that keeping them takes here and at the server.
async fn keep(site: &Site, clock: &Clock) -> Answer<(f64, (f64, f64))> {
    let cpu = || (cpu_seconds(std::process::id()), site.pid().map_or(0.0, cpu_seconds));
    let (requests, before, began) = (site.requests().await?, cpu(), clock.now());
    clock.sleep(WATCH).await;
    let (after, span) = (cpu(), (clock.now() - began).as_secs_f64());
    let requests = site.requests().await?.saturating_sub(requests);
    Ok((per(requests, 1) / span, ((after.0 - before.0) / span, (after.1 - before.1) / span)))
}
