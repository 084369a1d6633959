//! Fences that grow also when the store's revisions go back: after a wipe, or when a snapshot was restored.
//!
//! A counter is the revision of the write that let its holder in, plus a base. The base is a key of the store, and the
//! very write that lets somebody in reads it. It is only ever raised, by a write that names the one it replaces; so
//! counters grow with the revisions, whatever the clocks of those who raise it say.
//!
//! The base is raised to the wall clock's time, in ticks of 10 µs since 2020, and beyond every counter that this process
//! has seen: before the first grant, and after every new connection, because a store cannot be restored without ending
//! all of them. etcd writes less often than a tick, so a counter is never ahead of the clock that raised it. A clock
//! is a floor here and nothing else: no expiry is judged by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::kit::locked;
use tokio::sync::Mutex as AsyncMutex;

use crate::connection::Connection;
use crate::fault::{self, NAME};
use crate::wire::{
    Answer as _, KeyValue, RangeRequest, RangeResponse, TxnRequest, one, put, range, written_at,
};

const RAISING: &str = "making sure of the fences";
/// Where ticks begin: the year 2020, in seconds after 1970.
const TICKS_FROM: u64 = 1_577_836_800;
/// The largest fence that fits into a signed column of a database; a clock that is far ahead must not go beyond it.
const TICKS_MAX: u64 = (1 << 47) - (1 << 40);
/// A base that is behind by less than 50 ms is not raised: no server starts that fast, and of many processes that start
/// together one is enough.
const BEHIND_MAX: u64 = 5_000;

/// What every grant is judged by: taken before its request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    /// The connections that had been made when the base was known to be high enough.
    dials: u64,
    /// The largest counter of this process.
    high: u64,
}

/// The base as it was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The revision that wrote it; 0 if there is none.
    written_at: i64,
    base: u64,
    /// The revision at which it was read.
    revision: i64,
    /// The connections that had been made by then.
    dials: u64,
}

/// The fences of one store.
#[derive(Debug)]
pub(crate) struct Fences {
    key: Bytes,
    seen: Mutex<Option<Seen>>,
    /// The largest counter of this process: it only grows. Acquire and Release are more than enough: whoever asks for a name after
    /// somebody of this process had it knows of that by the queue, which orders the two.
    high: AtomicU64,
    /// One more than the connections that had been made when the base was last made sure of; 0 if it never was.
    /// Acquire and Release: who sees it sees what `high` was then. An old value costs a trip, since each grant is judged by its answer.
    sure_at: AtomicU64,
    raising: AsyncMutex<()>,
}

impl Fences {
    pub(crate) fn new(prefix: &str) -> Self {
        Fences {
            key: Bytes::from(format!("{prefix}/fences")),
            seen: Mutex::default(),
            high: AtomicU64::new(0),
            sure_at: AtomicU64::new(0),
            raising: AsyncMutex::default(),
        }
    }

    /// The base, for a request that needs it.
    pub(crate) fn look(&self) -> RangeRequest {
        one(&self.key)
    }

    /// Somebody has read the base when so many connections had been made.
    pub(crate) fn learn(&self, answer: &RangeResponse, dials: u64) {
        *locked(&self.seen) = Some(seen(answer.kvs.first(), answer.revision(), dials));
    }

    /// What the next grant is judged by. Costs nothing unless a connection was made since the last time.
    pub(crate) async fn floor(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<Floor> {
        for _ in 0..4 {
            let (sure_at, high) = (self.sure_at.load(Ordering::Acquire), self.high.load(Ordering::Acquire));
            if sure_at == connection.dials() + 1 {
                return Ok(Floor { dials: sure_at - 1, high });
            }
            // On our own thread: others wait for it, and the caller's may stand still.
            let (fences, on) = (self.clone(), connection.clone());
            let raised = connection.driver.spawn(async move { fences.raise(&on).await });
            raised.await.map_err(|_| Fault::transient(NAME, RAISING, "the thread for etcd has ended"))??;
        }
        Err(Fault::transient(NAME, RAISING, "connections end again and again"))
    }

    /// The counter of a grant, by the answer of the write that let it in; `None` if it may be too small. Then the
    /// floor is made sure of again, and the grant needs another write.
    pub(crate) fn counter(
        &self,
        base: Option<&RangeResponse>,
        revision: i64,
        floor: Floor,
        connection: &Connection,
    ) -> Option<u64> {
        let base = base_of(base?.kvs.first()?)?;
        let counter = base.saturating_add(u64::try_from(revision).unwrap_or(0));
        connection.history.saw(revision);
        if connection.dials() != floor.dials || counter <= floor.high {
            self.sure_at.store(0, Ordering::Release);
            return None;
        }
        self.high.fetch_max(counter, Ordering::AcqRel);
        Some(counter)
    }

    /// Raise the base if it is behind.
    async fn raise(&self, connection: &Connection) -> Result<()> {
        let _alone = self.raising.lock().await;
        let fault = |it: tonic::Status| fault::from_status(RAISING, &it);
        for _ in 0..16 {
            let before = connection.dials();
            if self.sure_at.load(Ordering::Acquire) == before + 1 {
                return Ok(());
            }
            let known = locked(&self.seen).take().filter(|it| it.dials == before);
            let Some(known) = known else {
                let look = TxnRequest { success: vec![range(self.look())], ..TxnRequest::default() };
                let answer = connection.txn(look).await.map_err(fault)?;
                if let Some(base) = answer.range(0) {
                    let it = seen(base.kvs.first(), answer.revision(), connection.dials());
                    *locked(&self.seen) = Some(it);
                }
                continue;
            };
            let Some(base) = self.wanted(&known, ticks()) else {
                self.sure_at.store(before + 1, Ordering::Release);
                return Ok(());
            };
            let raise = TxnRequest {
                compare: vec![written_at(&self.key, known.written_at)],
                success: vec![put(&self.key, format!("base={base}"), 0)],
                failure: vec![range(self.look())],
            };
            let answer = connection.txn(raise).await.map_err(fault)?;
            let (revision, dials) = (answer.revision(), connection.dials());
            let now = match answer.range(0) {
                // Another was first.
                Some(other) if !answer.succeeded => seen(other.kvs.first(), revision, dials),
                _ => Seen { written_at: revision, base, revision, dials },
            };
            *locked(&self.seen) = Some(now);
            if answer.succeeded && dials == before {
                self.sure_at.store(dials + 1, Ordering::Release);
                return Ok(());
            }
        }
        Err(Fault::transient(NAME, RAISING, "connections end, or others raise them, again and again"))
    }

    /// The base that there should be; `None` if this one will do.
    fn wanted(&self, seen: &Seen, ticks: u64) -> Option<u64> {
        let (revision, high) = (u64::try_from(seen.revision).unwrap_or(0), self.high.load(Ordering::Acquire));
        let reached = seen.base.saturating_add(revision);
        let behind = reached.saturating_add(BEHIND_MAX) < ticks || reached < high;
        let least = ticks.max(high).saturating_sub(revision);
        (behind || seen.written_at == 0).then(|| least.max(seen.base))
    }
}

fn seen(kv: Option<&KeyValue>, revision: i64, dials: u64) -> Seen {
    // What cannot be read is replaced like what is not there, but by a write that names it.
    let (written_at, base) = kv.map_or((0, 0), |it| (it.mod_revision, base_of(it).unwrap_or(0)));
    Seen { written_at, base, revision, dials }
}

/// The base that a key holds.
pub(crate) fn base_of(kv: &KeyValue) -> Option<u64> {
    std::str::from_utf8(&kv.value).ok()?.strip_prefix("base=")?.trim_end().parse().ok()
}

/// The wall clock in ticks.
fn ticks() -> u64 {
    let since = time_of_day().saturating_sub(Duration::from_secs(TICKS_FROM));
    u64::try_from(since.as_micros() / 10).unwrap_or(u64::MAX).min(TICKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(written_at: i64, base: u64, revision: i64) -> Seen {
        Seen { written_at, base, revision, dials: 0 }
    }

    #[test]
    fn a_fresh_store_begins_at_the_clock_and_a_restored_one_beyond_what_was_seen() {
        let fences = Fences::new("p");
        assert_eq!(fences.wanted(&at(0, 0, 5), 1_000_000), Some(999_995));
        assert_eq!(fences.wanted(&at(5, 999_995, 9), 1_000_050), None, "it was raised just now");
        assert_eq!(fences.wanted(&at(5, 999_995, 9), 1_200_004), Some(1_199_995));
        fences.high.store(3_000_000, Ordering::Release);
        assert_eq!(fences.wanted(&at(5, 999_995, 5), 1_200_000), Some(2_999_995), "the clock went back");
        assert_eq!(fences.wanted(&at(5, 5_000_000, 5), 1_200_000), None, "another's clock is ahead");
    }

    #[test]
    fn a_base_is_never_lowered_and_an_absurd_clock_fits_into_a_fence() {
        let fences = Fences::new("p");
        assert_eq!(fences.wanted(&at(0, 700, 5), 0), Some(700));
        assert!(ticks() <= TICKS_MAX);
        assert!(TICKS_MAX << 16 < u64::try_from(i64::MAX).unwrap());
    }
}
