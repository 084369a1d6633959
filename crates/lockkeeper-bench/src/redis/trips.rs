//! Bare messages on the same client: to the server and back, and from process to process.

use lockkeeper_core::Clock;
use redis::PushKind;

use super::rivals;
use crate::Answer;
use crate::crowd::{Worker, answer, heard};
use crate::measure::{median, per};

/// How many are measured.
const TRIPS: u32 = 1000;

/// What one process of a crowd does: `ping COUNT`, or `relay ME NEXT ROUNDS`.
pub(crate) async fn obey(url: &str, words: &[&str]) -> Answer<()> {
    match words {
        ["ping", count] => answer(&pinged(url, count.parse()?).await?.to_string()),
        ["relay", me, next, rounds] => relayed(url, me, next, rounds.parse()?).await,
        _ => Err(format!("{words:?} is not understood").into()),
    }
}

/// A bare round trip of one process, in microseconds: the median.
pub(crate) async fn ping(workers: &mut [Worker]) -> Answer<f64> {
    let mut trips = Vec::new();
    for worker in workers {
        worker.tell(&format!("ping {TRIPS}")).await?;
        trips.push(micros(worker.answer().await?.parse()?));
    }
    Ok(median(&mut trips))
}

/// A bare message goes round the processes; what one step took.
pub(crate) async fn relay(workers: &mut [Worker]) -> Answer<f64> {
    let processes = workers.len();
    for (at, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("relay {at} {} {TRIPS}", (at + 1) % processes)).await?;
        worker.answer().await?;
    }
    for (at, worker) in workers.iter_mut().enumerate().rev() {
        // The last who is told is the first process, which finds all others listening.
        worker.tell(if at == 0 { "begin" } else { "listen" }).await?;
    }
    let mut rounds = Vec::new();
    for worker in workers {
        rounds.push(micros(worker.answer().await?.parse()?));
    }
    Ok(median(&mut rounds) / per(u64::try_from(processes)?, 1))
}

fn micros(nanos: u64) -> f64 {
    per(nanos, 1000)
}

/// Pass a bare message on to the next process, so many times; the first of them begins. Says `listening`, and then the
/// median of what one round took, in nanoseconds.
async fn relayed(url: &str, me: &str, next: &str, rounds: u32) -> Answer<()> {
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    let mut connection = rivals::listener(url, sender).await?;
    connection.subscribe(format!("relay:{me}")).await?;
    answer("listening")?;
    let line = heard().await?.ok_or("the parent has gone")?;
    let pass_on = redis::cmd("PUBLISH").arg(format!("relay:{next}")).arg("go").to_owned();
    let (clock, mut times) = (Clock::boot(), Vec::new());
    let mut before = clock.now();
    if line.trim() == "begin" {
        let _: i64 = pass_on.query_async(&mut connection).await?;
    }
    for _ in 0..rounds {
        while messages.recv().await.ok_or("the relay was cut")?.kind != PushKind::Message {}
        let now = clock.now();
        times.push(u64::try_from((now - before).as_nanos())?);
        before = now;
        let _: i64 = pass_on.query_async(&mut connection).await?;
    }
    answer(&median(&mut times).to_string())
}

/// The median of bare round trips, in nanoseconds.
async fn pinged(url: &str, count: u32) -> Answer<u64> {
    let mut connection = rivals::connection(url).await?;
    let (clock, mut times) = (Clock::boot(), Vec::new());
    for _ in 0..count {
        let before = clock.now();
        let _: String = redis::cmd("PING").query_async(&mut connection).await?;
        times.push(u64::try_from((clock.now() - before).as_nanos())?);
    }
    Ok(median(&mut times))
}
