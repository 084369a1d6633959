//! What those cost who only wait, and what is idle: names that another locker holds, and warm locks.

use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::Clock;
use lockkeeper_core::inspect::DynInspect;

use super::held::memory;
use super::sheet::Figures;
use super::{Spans, tell};
use crate::Answer;
use crate::measure::per;
use crate::report::say;
use crate::site::Site;

const NAMES: usize = 1_000;
/// What is idle stays for a third of it: for longer than it takes to make so many.
const IDLE_TTL: Duration = Duration::from_secs(30);
const IDLE: usize = 10_000;
/// Idle locks count where at least so many of a hundred stay.
const STAY: usize = 10;

/// What those cost who wait.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) names: usize,
    /// Requests per second while that many names are held.
    pub(super) holders: f64,
    /// How many more while another locker waits for all of them.
    pub(super) requests: f64,
    /// Bytes for each that waits, of this process and of the store.
    pub(super) bytes: (f64, f64),
}

/// What warm locks cost that are idle.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Idle {
    pub(super) names: usize,
    /// Bytes for each, of this process and of the store.
    pub(super) bytes: (f64, f64),
}

/// One after the other; each is told as soon as it is known.
pub(super) async fn watch(site: &Site, most: usize) -> Answer<()> {
    let waiting = waiting(site, NAMES.min(most), Spans::waiting(most)).await?;
    tell(&Figures::Waiting(waiting))?;
    match idle(site, IDLE.min(most)).await? {
        Some(idle) => tell(&Figures::Idle(idle)),
        None => Ok(()),
    }
}

async fn waiting(site: &Site, names: usize, spans: Spans) -> Answer<Waiting> {
    let clock = Clock::boot();
    let (holder, other) = (open(site, spans).await?, open(site, spans).await?);
    let inspect = lockkeeper::open(&site.url()).await?.inspect;
    let mut guards = Vec::new();
    for nth in 0..names {
        guards.push(holder.lock(name(nth)).await?);
    }
    // Once before, so that what a list takes is not counted.
    stand(&*inspect, 0, &clock).await?;
    let holders = rate(site, &clock, spans.watch).await?;
    let before = memory(site).await?;
    let waiters: Vec<_> = (0..names).map(|nth| tokio::spawn(other.lock(name(nth)))).collect();
    stand(&*inspect, names, &clock).await?;
    let bytes = each(before, memory(site).await?, names);
    let requests = (rate(site, &clock, spans.watch).await? - holders).max(0.0);
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guards);
    for locker in [holder, other] {
        locker.shutdown(Duration::from_mins(1)).await?;
    }
    say(&format!(
        "{names} held: {holders:.1} requests/s; and waited for: {requests:.1} more, {:.0} + {:.0} bytes each",
        bytes.0, bytes.1
    ));
    Ok(Waiting { names, holders, requests, bytes })
}

/// Bytes for each of so many, by what there was before and is now.
fn each(before: (u64, u64), now: (u64, u64), count: usize) -> (f64, f64) {
    let grown = |before: u64, now: u64| per(now.saturating_sub(before), count as u64);
    (grown(before.0, now.0), grown(before.1, now.1))
}

/// Requests per second at the server.
async fn rate(site: &Site, clock: &Clock, watch: Duration) -> Answer<f64> {
    let asked_at = clock.now();
    let (requests, began) = (site.requests().await?, clock.now());
    // To ask may take a while, and what happens in it is counted.
    clock.sleep(watch.saturating_sub(began - asked_at)).await;
    let requests = site.requests().await?.saturating_sub(requests);
    Ok(per(requests, 1) / (clock.now() - began).as_secs_f64())
}

async fn open(site: &Site, spans: Spans) -> Answer<Locker> {
    Ok(lockkeeper::open(&site.url()).await?.locker.ttl(spans.ttl).build())
}

fn name(nth: usize) -> String {
    format!("waited/{nth}")
}

/// Until so many stand in line at the store.
async fn stand(inspect: &dyn DynInspect, count: usize, clock: &Clock) -> Answer<()> {
    for _ in 0..600 {
        // On a busy machine an answer may come late.
        let locks = inspect.list("waited/").await.unwrap_or_default();
        if locks.iter().map(|it| it.waiters.len()).sum::<usize>() == count {
            return Ok(());
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    Err("not all of them stand in line".into())
}

/// Take and give back many names with a locker that keeps them. Nothing where locks do not stay.
async fn idle(site: &Site, names: usize) -> Answer<Option<Idle>> {
    let locker =
        lockkeeper::open(&site.url()).await?.locker.ttl(IDLE_TTL).warm(true).warm_max(2 * IDLE).build();
    locker.lock("first").await?.release().await?;
    let before = memory(site).await?;
    for nth in 0..names / 20 {
        let names = (0..20).map(|it| format!("idle/{nth}/{it}"));
        let asked: Vec<_> = names.map(|it| tokio::spawn(locker.lock(it))).collect();
        for guard in asked {
            guard.await??.release().await?;
        }
    }
    let (lines, now) = (locker.lines(), memory(site).await?);
    locker.shutdown(Duration::from_mins(1)).await?;
    if lines < names * STAY / 100 {
        say(&format!("of {names} only {lines} stayed"));
        return Ok(None);
    }
    let bytes = each(before, now, lines);
    say(&format!("{lines} idle: {:.0} + {:.0} bytes each", bytes.0, bytes.1));
    Ok(Some(Idle { names: lines, bytes }))
}
