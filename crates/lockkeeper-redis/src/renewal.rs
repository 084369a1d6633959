//! Renewals in batches: what comes due in one turn of the scheduler goes to the store as a few scripts.
//!
//! A server renews [`BATCH`] locks by one script. A cluster can only do so for locks of one hash slot;
//! that is what tags are for, see `naming.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use lockkeeper_core::backend::Fault;
use redis::Value;
use tokio::sync::oneshot;

use crate::batch::{Batch, pieces};
use crate::connection::Link;
use crate::place::digits;
use crate::script::{Call, Scripts};

const RENEWING: &str = "renewing the lock";

/// Locks per script. A script holds up everybody else on the server: this many take about half a millisecond.
const BATCH: usize = 256;

/// `None` lost; otherwise whether somebody waits.
type Answer = Result<Option<bool>, Fault>;

#[derive(Debug)]
struct Ask {
    main: String,
    tag: u8,
    id: [u8; 16],
    ttl_ms: u64,
    answer: oneshot::Sender<Answer>,
}

/// Collects renewals and sends them together.
#[derive(Debug)]
pub(crate) struct Renewals {
    link: Link,
    scripts: Arc<Scripts>,
    by_tag: bool,
    due: Batch<Ask>,
}

impl Renewals {
    pub(crate) fn new(link: Link, scripts: Arc<Scripts>, by_tag: bool) -> Self {
        Renewals { link, scripts, by_tag, due: Batch::default() }
    }

    pub(crate) async fn renew(&self, main: &str, tag: u8, id: [u8; 16], ttl_ms: u64) -> Answer {
        let (answer, told) = oneshot::channel();
        let ask = Ask { main: main.to_owned(), tag, id, ttl_ms, answer };
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
        let answer = self.call(&asks).await;
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
                Ok(digits) => Ok((digits[at] != b'0').then_some(digits[at] == b'2')),
                Err(fault) => Err(fault.clone()),
            };
            // Nobody listens if the locker was torn down meanwhile.
            let _ = ask.answer.send(answer);
        }
    }

    async fn call(&self, asks: &[Ask]) -> Result<Value, Fault> {
        let keys: Vec<&str> = asks.iter().map(|it| it.main.as_str()).collect();
        let mut buffers = vec![[0; 20]; asks.len()];
        let mut args: Vec<&[u8]> = Vec::with_capacity(asks.len() * 2);
        for (ask, buffer) in asks.iter().zip(&mut buffers) {
            args.push(&ask.id);
            args.push(digits(ask.ttl_ms, buffer));
        }
        let call = Call { keys: &keys, args: &args };
        self.link.call(RENEWING, &self.scripts.renew, &call).await
    }
}
