//! What many held locks cost: taking them, keeping them, listing them, and the memory of each.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Guard, Locker};
use lockkeeper_core::Clock;
use lockkeeper_core::inspect::DynInspect;

use super::sheet::Figures;
use super::{Spans, tell};
use crate::Answer;
use crate::measure::per;
use crate::redis::tally::cpu_seconds;
use crate::report::say;
use crate::site::{Site, resident};

const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
/// What would take longer than this to take is not taken.
const TAKE_MAX: Duration = Duration::from_secs(25);
/// What would need more of this process's memory is not taken, either.
const MEMORY_MAX: f64 = 8e9;
/// As many are asked for at once.
const AT_ONCE: usize = 2_000;
/// Until all that was held is given back.
const END_MAX: Duration = Duration::from_mins(1);

/// What so many held locks cost.
#[derive(Clone, Debug, PartialEq)]
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

impl Held {
    /// As it is told while the suite runs.
    fn line(&self) -> String {
        let Held { locks, taken, valid, requests, busy, list, listed, bytes } = self;
        format!(
            "{locks} held ({valid} valid): {taken:.0}/s taken, {requests:.1} requests/s, {:.1} + {:.1} % of a core, {listed} listed in \
             {list:.1?}, {:.0} + {:.0} bytes each",
            busy.0 * 100.0,
            busy.1 * 100.0,
            bytes.0,
            bytes.1
        )
    }

    /// Whether so many can be taken after these, in time and in memory. Where these could not be kept, more would tell nothing.
    fn allows(&self, size: usize) -> bool {
        let seconds = per((size - self.locks) as u64, 1) / self.taken;
        self.valid == self.locks
            && seconds < TAKE_MAX.as_secs_f64()
            && self.bytes.0 * per(size as u64, 1) < MEMORY_MAX
    }
}

/// As many as can be taken in time, and what each stage costs.
pub(super) async fn grow(site: &Site, most: usize) -> Answer<()> {
    let (store, spans) = (lockkeeper::open(&site.url()).await?, Spans::held(most));
    let (locker, clock) = (store.locker.ttl(spans.ttl).build(), Clock::boot());
    locker.lock("first").await?.release().await?;
    let mut many = Many {
        site,
        inspect: store.inspect,
        at_start: memory(site).await?,
        guards: Vec::new(),
        clock,
        spans,
    };
    let mut last: Option<Held> = None;
    for size in SIZES.into_iter().filter(|it| *it <= most) {
        if last.as_ref().is_some_and(|it| !it.allows(size)) {
            break;
        }
        match many.grow(&locker, size).await {
            Ok(held) => {
                say(&held.line());
                tell(&Figures::Held(held.clone()))?;
                last = Some(held);
            }
            // Fewer could be held, and what is known of them stays.
            Err(error) if last.is_some() => {
                say(&format!("not {size}: {error}"));
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let began = many.clock.now();
    drop(many.guards);
    let end = locker.shutdown(END_MAX).await;
    say(&format!("given back in {:.1?}: {end:?}", many.clock.now() - began));
    Ok(())
}

/// Bytes of this process and of the store.
pub(super) async fn memory(site: &Site) -> Answer<(u64, u64)> {
    Ok((resident(std::process::id()), site.bytes().await?))
}

/// What is held so far.
struct Many<'a> {
    site: &'a Site,
    inspect: Arc<dyn DynInspect>,
    at_start: (u64, u64),
    guards: Vec<Guard>,
    clock: Clock,
    spans: Spans,
}

impl Many<'_> {
    /// So many, and what they cost.
    async fn grow(&mut self, locker: &Locker, size: usize) -> Answer<Held> {
        let (missing, began) = (size - self.guards.len(), self.clock.now());
        take(locker, size, &mut self.guards).await?;
        let taken = per(missing as u64, 1) / (self.clock.now() - began).as_secs_f64();
        let (requests, busy) = keep(self.site, &self.clock, self.spans.watch).await?;
        let now = memory(self.site).await?;
        let bytes = |from: u64, now: u64| per(now.saturating_sub(from), size as u64);
        let bytes = (bytes(self.at_start.0, now.0), bytes(self.at_start.1, now.1));
        let began = self.clock.now();
        let listed = self.inspect.list("").await?.len();
        let list = self.clock.now() - began;
        let valid = self.guards.iter().filter(|it| it.is_valid()).count();
        Ok(Held { locks: size, taken, valid, requests, busy, list, listed, bytes })
    }
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
async fn keep(site: &Site, clock: &Clock, watch: Duration) -> Answer<(f64, (f64, f64))> {
    let cpu = || (cpu_seconds(std::process::id()), site.pid().map_or(0.0, cpu_seconds));
    let asked_at = clock.now();
    let (requests, before, began) = (site.requests().await?, cpu(), clock.now());
    // To ask may take a while, and what happens in it is counted.
    clock.sleep(watch.saturating_sub(began - asked_at)).await;
    let requests = site.requests().await?.saturating_sub(requests);
    let (after, span) = (cpu(), (clock.now() - began).as_secs_f64());
    Ok((per(requests, 1) / span, ((after.0 - before.0) / span, (after.1 - before.1) / span)))
}
