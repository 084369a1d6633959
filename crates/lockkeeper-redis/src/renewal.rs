//! Renewals in batches: what comes due in one turn of the scheduler goes to the store as a few scripts.
//!
//! A server renews [`BATCH`] locks by one script. A cluster can only do so for locks of one hash slot;
//! that is what tags are for, see `naming.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::Moment;
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::{Batch, pieces};
use redis::Value;
use tokio::sync::oneshot;

use crate::connection::Asked;
use crate::place::digits;
use crate::road::Road;
use crate::script::{Call, Scripts};
use crate::wake::Holding;

const RENEWING: &str = "renewing the lock";

/// Locks per script. A script holds up everybody else on the server: this many take about half a millisecond.
const BATCH: usize = 256;

/// Whether it is held, whether somebody waits, and when the question left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Lost,
    Held { wanted: bool, sent_at: Moment },
}

#[derive(Debug)]
struct Ask {
    main: Arc<str>,
    tag: u8,
    id: [u8; 16],
    ttl_ms: u64,
    answer: oneshot::Sender<Result<Answer, Fault>>,
}

/// Collects renewals and sends them together.
#[derive(Debug)]
pub(crate) struct Renewals {
    road: Road,
    scripts: Arc<Scripts>,
    by_tag: bool,
    due: Batch<Ask>,
}

impl Renewals {
    pub(crate) fn new(road: Road, scripts: Arc<Scripts>, by_tag: bool) -> Self {
        Renewals { road, scripts, by_tag, due: Batch::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.road.is_open()
    }

    /// The way to the server that keeps this tag, if it is open.
    pub(crate) fn open_road(&self, tag: u8) -> Option<&Road> {
        Some(&self.road).filter(|it| it.is_open_for(tag))
    }

    /// Open what a renewal of this tag will need.
    pub(crate) async fn prepare(&self, tag: u8) -> Result<(), Fault> {
        if self.road.is_open_for(tag) {
            return Ok(());
        }
        self.road.open("opening the connection for renewals", tag).await.map(drop)
    }

    pub(crate) async fn renew(&self, holding: &Holding) -> Result<Answer, Fault> {
        let (answer, told) = oneshot::channel();
        let Holding { main, tag, id, ttl_ms } = holding;
        let ask = Ask { main: main.clone(), tag: *tag, id: *id.as_bytes(), ttl_ms: *ttl_ms, answer };
        if let Some(gatherer) = self.due.add(ask) {
            self.send(gatherer.gather().await).await;
        }
        told.await
            .unwrap_or_else(|_| Err(Fault::transient(crate::fault::NAME, RENEWING, "the batch was dropped")))
    }

    async fn send(&self, asks: Vec<Ask>) {
        let mut groups: HashMap<u8, Vec<Ask>> = HashMap::new();
        for ask in asks {
            let group = if self.by_tag { ask.tag } else { 0 };
            groups.entry(group).or_default().push(ask);
        }
        let batches: Vec<_> = groups.into_values().flat_map(|it| pieces(it, BATCH)).collect();
        join_all(batches.into_iter().map(|it| self.send_batch(it))).await;
    }

    async fn send_batch(&self, asks: Vec<Ask>) {
        let Asked { answer, sent_at, .. } = self.call(&asks).await;
        let digits = match &answer {
            Ok(Value::BulkString(digits)) if digits.len() == asks.len() => Ok(digits.as_slice()),
            Ok(_) => Err(Fault::transient(
                crate::fault::NAME,
                RENEWING,
                "the script gave an answer that is not ours",
            )),
            Err(fault) => Err(fault.clone()),
        };
        for (at, ask) in asks.into_iter().enumerate() {
            let answer = match &digits {
                Ok(digits) if digits[at] == b'0' => Ok(Answer::Lost),
                Ok(digits) => Ok(Answer::Held { wanted: digits[at] == b'2', sent_at }),
                Err(fault) => Err(fault.clone()),
            };
            // Nobody listens if the locker was torn down meanwhile.
            let _ = ask.answer.send(answer);
        }
    }

    async fn call(&self, asks: &[Ask]) -> Asked<Value> {
        let keys: Vec<&str> = asks.iter().map(|it| &*it.main).collect();
        let mut buffers = vec![[0; 20]; asks.len()];
        let mut args: Vec<&[u8]> = Vec::with_capacity(asks.len() * 2);
        for (ask, buffer) in asks.iter().zip(&mut buffers) {
            args.push(&ask.id);
            args.push(digits(ask.ttl_ms, buffer));
        }
        let call = Call { keys: &keys, args: &args };
        // Renewed after a third, a lock has two thirds left: time to notice silence, and to ask once more elsewhere.
        let shortest = asks.iter().map(|it| it.ttl_ms).min().unwrap_or(0);
        let (tag, patience) = (asks.first().map_or(0, |it| it.tag), Duration::from_millis(shortest) / 6);
        self.road.call(RENEWING, tag, &self.scripts.renew, &call, patience).await
    }
}
