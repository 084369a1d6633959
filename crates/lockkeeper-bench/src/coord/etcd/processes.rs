//! Four processes that want one lock, while nobody else writes and while somebody does, beside the server's `Lock` call.
//!
//! That call, as etcd's own package, waits by a watch that begins when somebody has to wait: late by up to 100 ms whenever
//! anything was written meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Clock;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::transport::Channel;

use super::open;
use super::wire::kv_client::KvClient;
use super::wire::request_op::Request;
use super::wire::{PutRequest, RequestOp, TxnRequest};
use crate::crowd::{self, Crowd, Parties, Plan};
use crate::measure::rate;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

const SPAN: Duration = Duration::from_secs(4);
/// What somebody else writes in a second.
const WRITES: u32 = 1000;
/// It waits for answers when so many are under way: a slow machine writes less, and nothing piles up.
const UNDER_WAY_MAX: usize = 16;

pub(super) async fn run(url: &str) -> Outcome {
    let mut rows = beside(
        url,
        [
            "4 processes × 1 task on one key, guards per second, beside the server's `Lock` call",
            "the same: from asking to having, 99th percentile in milliseconds",
        ],
    )
    .await?;
    let written = Arc::<AtomicU64>::default();
    let (clock, channel) = (Clock::boot(), open(url).await?);
    let (began, scribe) = (clock.now(), tokio::spawn(write(channel, written.clone())));
    let disturbed = beside(
        url,
        [
            "the same while somebody writes 1,000 other keys a second",
            "the same: from asking to having, 99th percentile in milliseconds",
        ],
    )
    .await;
    let writes = rate(written.load(Ordering::Relaxed), clock.now() - began);
    scribe.abort();
    let mut disturbed = disturbed?;
    if let Some(row) = disturbed.first_mut() {
        row.note = format!("{}; {writes:.0} writes/s", row.note);
    }
    rows.append(&mut disturbed);
    let crowd = fight("ours", url, 16).await?;
    let what = "4 processes × 16 tasks on one key, guards per second";
    let mut row = Row::of_number(what, crowd.rate(), Bound::AtLeast(15_000.0));
    row.note = format!("Jain index {:.2}, longest wait {:.0?}", crowd.jain(), crowd.longest_wait());
    rows.push(row);
    Ok(rows)
}

/// Both sides, and how long ours wait.
async fn beside(url: &str, [rates, waits]: [&'static str; 2]) -> Outcome {
    let (ours, theirs) = (fight("ours", url, 1).await?, fight("etcd-lock", url, 1).await?);
    let mut rate = Row::of_rates(rates, (ours.rate(), theirs.rate()), 10.0);
    let (median, late) = ours.hand_on();
    rate.note = format!(
        "{median:.0} µs from release to grant, 99th percentile {late:.0} µs; Jain index {:.2}",
        ours.jain()
    );
    let mut wait = Row::of_number(waits, ours.wait(99), Bound::AtMost(20.0));
    wait.theirs = format!("{:.1}", theirs.wait(99));
    wait.note = format!("longest {:.0?}, theirs {:.0?}", ours.longest_wait(), theirs.longest_wait());
    Ok(vec![rate, wait])
}

async fn fight(rival: &str, url: &str, tasks: usize) -> Answer<Crowd> {
    let plan = Plan { rival, url, key: rival, ttl: crowd::TTL, processes: 4, tasks };
    Parties::start(plan).await?.fight(SPAN).await?.sound()
}

/// Write other keys, for ever.
async fn write(channel: Channel, written: Arc<AtomicU64>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / WRITES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut under_way = JoinSet::new();
    for number in 0_u64.. {
        ticks.tick().await;
        if UNDER_WAY_MAX <= under_way.len() {
            under_way.join_next().await;
        }
        while under_way.try_join_next().is_some() {}
        let (mut client, written) = (KvClient::new(channel.clone()), written.clone());
        under_way.spawn(async move {
            let key = Bytes::from(format!("elsewhere/{}", number % 1000));
            let put = PutRequest { key, value: Bytes::from_static(b"some value"), ..PutRequest::default() };
            let put = RequestOp { request: Some(Request::RequestPut(put)) };
            let put = TxnRequest { success: vec![put], ..TxnRequest::default() };
            written.fetch_add(u64::from(client.txn(put).await.is_ok()), Ordering::Relaxed);
        });
    }
}
