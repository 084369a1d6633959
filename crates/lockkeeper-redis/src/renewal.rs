//! Renewals in batches: what comes due in one turn of the scheduler goes to the store as a few scripts.
//!
//! A server renews [`BATCH`] locks by one script. A cluster can only do so for locks of one hash slot;
//! that is what tags are for, see `naming.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use lockkeeper_core::backend::Fault;
use redis::Value;
use tokio::sync::oneshot;

use crate::connection::{Link, locked};
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
    due: Mutex<Vec<Ask>>,
}

impl Renewals {
    pub(crate) fn new(link: Link, scripts: Arc<Scripts>, by_tag: bool) -> Self {
        Renewals { link, scripts, by_tag, due: Mutex::default() }
    }

    pub(crate) async fn renew(&self, main: &str, tag: u8, id: [u8; 16], ttl_ms: u64) -> Answer {
        let (answer, told) = oneshot::channel();
        let ask = Ask { main: main.to_owned(), tag, id, ttl_ms, answer };
        let first = {
            let mut due = locked(&self.due);
            due.push(ask);
            due.len() == 1
        };
        if first {
            // Everybody who is due now gets to add to the batch before it goes.
            let batch = Batch(Some(self));
            tokio::task::yield_now().await;
            let asks = batch.take();
            self.send(asks).await;
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
        let mut batches = Vec::new();
        for mut group in groups.into_values() {
            while !group.is_empty() {
                let rest = group.split_off(group.len().min(BATCH));
                batches.push(std::mem::replace(&mut group, rest));
            }
        }
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

/// Whoever opened a batch takes it; if it goes away first, nobody may wait for it for ever.
struct Batch<'a>(Option<&'a Renewals>);

impl Batch<'_> {
    fn take(mut self) -> Vec<Ask> {
        self.0.take().map(|it| std::mem::take(&mut *locked(&it.due))).unwrap_or_default()
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(renewals) = self.0 {
            // Dropping the asks tells those who wait for them.
            locked(&renewals.due).clear();
        }
    }
}
