//! What those cost who only wait, and what is idle: a thousand names that another locker holds, and warm locks.

use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::Clock;

use crate::Answer;
use crate::measure::per;
use crate::report::say;
use crate::site::{Site, resident};

const NAMES: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);
/// As long as a renewal lasts, and the time until who waits asks again.
const WATCH: Duration = Duration::from_secs(10);
const IDLE: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiting {
    /// Requests per second while a thousand names are held and waited for by another process.
    pub(super) requests: f64,
    /// Bytes of this process for each that waits.
    pub(super) bytes: f64,
    /// Bytes of this process for each warm lock that is idle; nothing where locks do not stay.
    pub(super) idle: Option<f64>,
}

pub(super) async fn watch(site: &Site) -> Answer<Waiting> {
    let clock = Clock::boot();
    let (holder, other) = (open(site).await?, open(site).await?);
    let mut guards = Vec::new();
    for nth in 0..NAMES {
        guards.push(holder.lock(name(nth)).await?);
    }
    let before = resident(std::process::id());
    let waiters: Vec<_> = (0..NAMES).map(|nth| tokio::spawn(other.lock(name(nth)))).collect();
    stand(site, &clock).await?;
    let bytes = per(resident(std::process::id()).saturating_sub(before), NAMES as u64);
    let asked_at = clock.now();
    let (requests, began) = (site.requests().await?, clock.now());
    // To ask may take a while, and what happens in it is counted.
    clock.sleep(WATCH.saturating_sub(began - asked_at)).await;
    let requests = site.requests().await?.saturating_sub(requests);
    let requests = per(requests, 1) / (clock.now() - began).as_secs_f64();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    drop(guards);
    for locker in [holder, other] {
        locker.shutdown(Duration::from_mins(1)).await?;
    }
    let idle = idle(site).await?;
    say(&format!("{NAMES} wait: {requests:.1} requests/s, {bytes:.0} bytes each; idle: {idle:.0?}"));
    Ok(Waiting { requests, bytes, idle })
}

async fn open(site: &Site) -> Answer<Locker> {
    Ok(lockkeeper::open(&site.url()).await?.locker.ttl(TTL).build())
}

fn name(nth: usize) -> String {
    format!("waited/{nth}")
}

/// Until all stand in line at the store.
async fn stand(site: &Site, clock: &Clock) -> Answer<()> {
    let inspect = lockkeeper::open(&site.url()).await?.inspect;
    for _ in 0..600 {
        // On a busy machine an answer may come late.
        let locks = inspect.list("waited/").await.unwrap_or_default();
        if locks.iter().map(|it| it.waiters.len()).sum::<usize>() == NAMES {
            return Ok(());
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    Err("not all of them stand in line".into())
}

/// Take and give back many names with a locker that keeps them.
async fn idle(site: &Site) -> Answer<Option<f64>> {
    let locker = lockkeeper::open(&site.url()).await?.locker.ttl(TTL).warm(true).warm_max(2 * IDLE).build();
    locker.lock("first").await?.release().await?;
    let before = resident(std::process::id());
    for nth in 0..IDLE / 20 {
        let names = (0..20).map(|it| format!("idle/{nth}/{it}"));
        let asked: Vec<_> = names.map(|it| tokio::spawn(locker.lock(it))).collect();
        for guard in asked {
            guard.await??.release().await?;
        }
    }
    let (lines, bytes) = (locker.lines(), resident(std::process::id()).saturating_sub(before));
    locker.shutdown(Duration::from_mins(1)).await?;
    Ok((NAMES < lines).then(|| per(bytes, lines as u64)))
}
