//! What `#[locked]` costs beside the same calls written by hand, both in one run, in turns.
//!
//! `cargo bench -p lockkeeper --features macros`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and may fail loudly")]

use std::hint::black_box;
use std::pin::pin;

use lockkeeper::spi::{Clock, Memory};
use lockkeeper::{Error, Locker, Owner, locked};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 41;

#[locked("product:{product_id}", locker = locker)]
async fn by_attribute(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    Ok(black_box(product_id))
}

async fn by_hand(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    let owner = Owner::current().unwrap_or_else(|| Owner::new("locked::by_hand"));
    let guard = locker.lock(format!("product:{product_id}")).owner(&owner).await?;
    let body = pin!(async move { black_box(product_id) });
    let out = owner.scope(guard.run(body)).await?;
    guard.release().await?;
    Ok(out)
}

/// Without an owner, so not reentrant.
async fn by_hand_without_owner(locker: &Locker, product_id: u64) -> Result<u64, Error> {
    let guard = locker.lock(format!("product:{product_id}")).await?;
    let body = pin!(async move { black_box(product_id) });
    let out = guard.run(body).await?;
    guard.release().await?;
    Ok(out)
}

/// Nanoseconds per call.
async fn measure<F: Future<Output = Result<u64, Error>>>(call: impl Fn(u64) -> F) -> f64 {
    let clock = Clock::boot();
    let start = clock.now();
    for id in 0..CALLS {
        black_box(call(id.into()).await.unwrap());
    }
    (clock.now() - start).as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let locker = Locker::new(Memory::default());
    let (mut attribute, mut hand, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        hand.push(measure(|id| by_hand(&locker, id)).await);
        attribute.push(measure(|id| by_attribute(&locker, id)).await);
        bare.push(measure(|id| by_hand_without_owner(&locker, id)).await);
    }
    let (attribute, hand, bare) = (median(attribute), median(hand), median(bare));
    let sizes = [size_of_val(&by_attribute(&locker, 0)), size_of_val(&by_hand(&locker, 0))];
    println!("bytes of the futures: #[locked] {}, by hand {}", sizes[0], sizes[1]);
    println!("#[locked]                        {attribute:7.0} ns");
    println!("by hand                          {hand:7.0} ns   ratio {:.3}", attribute / hand);
    println!("by hand, not reentrant           {bare:7.0} ns   ratio {:.3}", attribute / bare);
}
