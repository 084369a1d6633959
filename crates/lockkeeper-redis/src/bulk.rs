//! When many tasks take and give back locks at once, their calls share scripts.
//!
//! A script costs the server more to start than to take a lock, and a command costs the client more to
//! send than to prepare. So once [`CROWD`] calls are under way, further ones go together. Alone, a call
//! goes at once and by itself. What is not free, or waited for, is asked about again by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::Moment;
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::{Batch, pieces};
use redis::Value;
use tokio::sync::oneshot;

use crate::connection::Asked;
use crate::fault;
use crate::place::digits;
use crate::road::Road;
use crate::script::{Call, Script, Scripts};

/// From so many calls under way on, calls go together.
const CROWD: usize = 8;

/// Locks per script: it holds up everybody else on the server for about a tenth of a millisecond.
const SIZE: usize = 64;

#[derive(Debug)]
pub(crate) struct Bulk {
    scripts: Arc<Scripts>,
    /// Relaxed: a hint. Whoever sees too few goes alone, and too many in company.
    under_way: AtomicUsize,
    takes: Batch<Take>,
    leaves: Batch<Leave>,
}

#[derive(Debug)]
struct Take {
    main: Arc<str>,
    record: Vec<u8>,
    ttl_ms: u64,
    answer: oneshot::Sender<Asked<Option<i64>>>,
}

#[derive(Debug)]
struct Leave {
    main: Arc<str>,
    id: [u8; 16],
    answer: oneshot::Sender<Asked<bool>>,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bulk {
    pub(crate) fn new(scripts: Arc<Scripts>) -> Self {
        Bulk { scripts, under_way: AtomicUsize::new(0), takes: Batch::default(), leaves: Batch::default() }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        CROWD <= self.under_way.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    /// Take a lock if it is free: its counter, or `None` if `turn` must be asked.
    pub(crate) async fn take(
        &self,
        way: &Way<'_>,
        main: &Arc<str>,
        record: &[u8],
        ttl_ms: u64,
    ) -> Asked<Option<i64>> {
        let (answer, told) = oneshot::channel();
        let take = Take { main: main.clone(), record: record.to_vec(), ttl_ms, answer };
        if let Some(gatherer) = self.takes.add(take) {
            let batches = pieces(gatherer.gather().await, SIZE);
            join_all(batches.into_iter().map(|it| self.send_takes(way, it))).await;
        }
        told.await.unwrap_or_else(|_| dropped(way.doing))
    }

    async fn send_takes(&self, way: &Way<'_>, takes: Vec<Take>) {
        let mut buffer = [0; 20];
        let mut keys = vec![way.mark];
        keys.extend(takes.iter().map(|it| &*it.main));
        let mut ttls = vec![[0; 20]; takes.len()];
        let mut args = Vec::with_capacity(1 + 2 * takes.len());
        args.push(digits(way.floor, &mut buffer));
        for (take, ttl) in takes.iter().zip(&mut ttls) {
            args.extend([take.record.as_slice(), digits(take.ttl_ms, ttl)]);
        }
        let Asked { answer, in_doubt, sent_at } = self.call(way, &self.scripts.turns, &keys, &args).await;
        let counters = match answer {
            Ok(Value::Array(counters)) if counters.len() == takes.len() => Ok(counters),
            Ok(_) => Err(unexpected(way.doing)),
            Err(fault) => Err(fault),
        };
        for (at, take) in takes.into_iter().enumerate() {
            let answer = match &counters {
                Ok(counters) => match counters[at] {
                    Value::Int(0) => Ok(None),
                    Value::Int(counter) => Ok(Some(counter)),
                    _ => Err(unexpected(way.doing)),
                },
                Err(fault) => Err(fault.clone()),
            };
            // Whoever does not listen any more went away with its runtime; its claim expires by itself.
            let _ = take.answer.send(Asked { answer, in_doubt, sent_at });
        }
    }

    /// Give a lock back if nobody waits for it: whether that is done, or `leave` must be asked.
    pub(crate) async fn leave(&self, way: &Way<'_>, main: &Arc<str>, id: [u8; 16]) -> Asked<bool> {
        let (answer, told) = oneshot::channel();
        let leave = Leave { main: main.clone(), id, answer };
        if let Some(gatherer) = self.leaves.add(leave) {
            let batches = pieces(gatherer.gather().await, SIZE);
            join_all(batches.into_iter().map(|it| self.send_leaves(way, it))).await;
        }
        told.await.unwrap_or_else(|_| dropped(way.doing))
    }

    async fn send_leaves(&self, way: &Way<'_>, leaves: Vec<Leave>) {
        let keys: Vec<&str> = leaves.iter().map(|it| &*it.main).collect();
        let args: Vec<&[u8]> = leaves.iter().map(|it| it.id.as_slice()).collect();
        let Asked { answer, in_doubt, sent_at } = self.call(way, &self.scripts.leaves, &keys, &args).await;
        let digits = match answer {
            Ok(Value::BulkString(digits)) if digits.len() == leaves.len() => Ok(digits),
            Ok(_) => Err(unexpected(way.doing)),
            Err(fault) => Err(fault),
        };
        for (at, leave) in leaves.into_iter().enumerate() {
            let answer = match &digits {
                Ok(digits) => Ok(digits[at] == b'1'),
                Err(fault) => Err(fault.clone()),
            };
            let _ = leave.answer.send(Asked { answer, in_doubt, sent_at });
        }
    }

    async fn call(&self, way: &Way<'_>, script: &Script, keys: &[&str], args: &[&[u8]]) -> Asked<Value> {
        let _under_way = self.begin();
        way.road.call(way.doing, 0, script, &Call { keys, args }, way.patience).await
    }
}

/// How a batch is sent: by whoever gathered it, for all.
pub(crate) struct Way<'a> {
    pub(crate) road: &'a Road,
    pub(crate) doing: &'static str,
    pub(crate) mark: &'a str,
    /// The largest counter that this process has seen.
    pub(crate) floor: u64,
    pub(crate) patience: Duration,
}

fn dropped<T>(doing: &'static str) -> Asked<T> {
    let answer = Err(Fault::transient(fault::NAME, doing, "the batch was dropped"));
    Asked { answer, in_doubt: true, sent_at: Moment::from_nanos(0) }
}

fn unexpected(doing: &'static str) -> Fault {
    Fault::transient(fault::NAME, doing, "the script gave an answer that is not ours")
}
