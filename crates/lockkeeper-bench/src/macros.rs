//! What `#[locked]` costs beside the same calls written by hand: same options, same key, same owner, stopped at loss.

use std::hint::black_box;
use std::pin::pin;
use std::time::Duration;

use lockkeeper::spi::Memory;
use lockkeeper::{Error, Locker, Owner, locked};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::measure::time;
use crate::report::Row;

/// Calls of one turn. Short turns, and many of them: what disturbs the machine then disturbs both sides.
const CALLS: u32 = 2_000;
const TURNS: usize = 301;

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(vec![awaiting(&runtime)?, waiting_on_a_thread()?])
}

#[locked("product:{product_id}", locker = locker)]
async fn by_attribute(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    Ok(black_box(product_id))
}

/// Word for word what the attribute means.
async fn by_hand(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    let owner = Owner::current().unwrap_or_else(|| Owner::new("lockkeeper_bench::macros::by_hand"));
    let guard = locker.lock(format!("product:{product_id}")).owner(&owner).await?;
    let body = pin!(async move { Ok(black_box(product_id)) });
    let out = owner.scope(guard.run(body)).await?;
    let _ = guard.release().await;
    out
}

fn awaiting(runtime: &Runtime) -> Result<Row, Error> {
    let locker = Locker::new(Memory::default());
    // Both must work; the loops below do not look.
    runtime.block_on(async { by_attribute(&locker, 1).await.and(by_hand(&locker, 1).await) })?;
    let ours = || {
        runtime.block_on(async {
            for id in 0..u64::from(CALLS) {
                let _ = black_box(by_attribute(&locker, id).await);
            }
        });
    };
    let theirs = || {
        runtime.block_on(async {
            for id in 0..u64::from(CALLS) {
                let _ = black_box(by_hand(&locker, id).await);
            }
        });
    };
    let sizes = [size_of_val(&by_attribute(&locker, 0)), size_of_val(&by_hand(&locker, 0))];
    let what = "`#[locked]` on an async function, in-process lock, beside the same calls by hand";
    let row = Row::of_times(what, beside_closely(CALLS, ours, theirs), 1.02);
    Ok(Row { note: format!("the future has {} bytes, by hand {}", sizes[0], sizes[1]), ..row })
}

#[locked("product:{product_id}", locker = locker)]
fn by_attribute_blocking(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    Ok(black_box(product_id))
}

fn by_hand_blocking(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    let owner = Owner::current().unwrap_or_else(|| Owner::new("lockkeeper_bench::macros::by_hand_blocking"));
    let guard = locker.lock(format!("product:{product_id}")).owner(&owner).blocking()?;
    let out = owner.scope_blocking(|| Ok(black_box(product_id)));
    guard.check()?;
    let _ = guard.release_blocking();
    out
}

fn waiting_on_a_thread() -> Result<Row, Error> {
    let locker = Locker::new(Memory::default());
    by_attribute_blocking(&locker, 1).and(by_hand_blocking(&locker, 1))?;
    let ours = || {
        for id in 0..u64::from(CALLS) {
            let _ = black_box(by_attribute_blocking(&locker, id));
        }
    };
    let theirs = || {
        for id in 0..u64::from(CALLS) {
            let _ = black_box(by_hand_blocking(&locker, id));
        }
    };
    let what = "`#[locked]` on a blocking function, in-process lock, beside the same calls by hand";
    Ok(Row::of_times(what, beside_closely(CALLS, ours, theirs), 1.02))
}

/// The time per call of two sides: the lower quartile of many turns, because whatever disturbs a turn makes it longer.
/// Each side is first in every other turn, so that neither gains by its place.
fn beside_closely(calls: u32, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (Duration, Duration) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        if turn % 2 == 0 {
            one.push(time(&mut ours));
            other.push(time(&mut theirs));
        } else {
            other.push(time(&mut theirs));
            one.push(time(&mut ours));
        }
    }
    (lower_quartile(one) / calls, lower_quartile(other) / calls)
}

fn lower_quartile(mut spans: Vec<Duration>) -> Duration {
    spans.sort();
    spans[spans.len() / 4]
}
