//! Timing: the same work repeated in turns for both sides, the median taken, so that drift hits both; and a few sums.

use std::time::{Duration, Instant};

use lockkeeper_core::Clock;

use crate::Answer;

/// How often each side runs.
const TURNS: usize = 7;
/// How many pairs are looked at where the difference of two short times counts.
const PAIRS: usize = 101;
/// How often each side runs where it asks a server: a turn has few requests.
const SERVER_TURNS: usize = 41;
const SERVER_OPS: u32 = 20;

/// The median time per operation of two sides, run in turns. Each side does `ops` operations per turn.
pub(crate) fn beside(ops: u32, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (Duration, Duration) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        one.push(time(&mut ours) / ops);
        other.push(time(&mut theirs) / ops);
    }
    (median(&mut one), median(&mut other))
}

/// How many nanoseconds more an operation of ours takes, with both medians. Each difference is that of two short runs
/// right after each other, and the median is that of the differences: what slows the machine down for a while slows
/// both sides of a pair, and hurts no more than a few pairs.
pub(crate) fn more_than(ops: u32, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, [f64; 2]) {
    let (mut more, mut one, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let each = [time(&mut ours), time(&mut theirs)].map(|it| it.as_secs_f64() * 1e9 / f64::from(ops));
        more.push(each[0] - each[1]);
        one.push(each[0]);
        other.push(each[1]);
    }
    (median(&mut more), [median(&mut one), median(&mut other)])
}

/// The same for two sides that ask a server: each call is one operation.
pub(crate) async fn beside_requests(
    mut ours: impl AsyncFnMut() -> Answer<()>,
    mut theirs: impl AsyncFnMut() -> Answer<()>,
) -> Answer<(Duration, Duration)> {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for _ in 0..SERVER_TURNS {
        one.push(turn(&mut ours).await?);
        other.push(turn(&mut theirs).await?);
    }
    Ok((median(&mut one), median(&mut other)))
}

/// How many connections of each side are tried where one is enough to tell nothing.
pub(crate) const CONNECTIONS: usize = 9;

/// Of several connections of each side the quickest. On which core the system runs the process that serves a connection decides
/// more than what is asked of it, by a factor of three, and stays so as long as the connection lives: a median over connections
/// tells how often the system chose well, and not what a lock costs.
pub(crate) fn quickest(of: &[(Duration, Duration)]) -> (Duration, Duration) {
    let least = |side: fn(&(Duration, Duration)) -> Duration| of.iter().map(side).min().unwrap_or_default();
    (least(|it| it.0), least(|it| it.1))
}

/// The same as tasks of the present runtime: each call does as many operations as it is told.
pub(crate) async fn beside_tasks<A, B>(
    ours: impl Fn(u32) -> A,
    theirs: impl Fn(u32) -> B,
) -> Answer<(Duration, Duration)>
where
    A: Future<Output = Answer<()>> + Send + 'static,
    B: Future<Output = Answer<()>> + Send + 'static,
{
    let (mut one, mut other, clock) = (Vec::new(), Vec::new(), Clock::boot());
    for _ in 0..SERVER_TURNS {
        let start = clock.now();
        tokio::spawn(ours(SERVER_OPS)).await??;
        one.push((clock.now() - start) / SERVER_OPS);
        let start = clock.now();
        tokio::spawn(theirs(SERVER_OPS)).await??;
        other.push((clock.now() - start) / SERVER_OPS);
    }
    Ok((median(&mut one), median(&mut other)))
}

async fn turn(work: &mut impl AsyncFnMut() -> Answer<()>) -> Answer<Duration> {
    let clock = Clock::boot();
    let start = clock.now();
    for _ in 0..SERVER_OPS {
        work().await?;
    }
    Ok((clock.now() - start) / SERVER_OPS)
}

/// How long it takes.
pub(crate) fn time(work: &mut impl FnMut()) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a benchmark times short runs on one machine")]
    let start = Instant::now();
    work();
    start.elapsed()
}

pub(crate) fn median<T: Copy + Default + PartialOrd>(values: &mut [T]) -> T {
    quantile(values, 50)
}

/// The value that so many per cent do not exceed; nothing of nothing.
pub(crate) fn quantile<T: Copy + Default + PartialOrd>(values: &mut [T], percent: usize) -> T {
    values.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() * percent / 100).copied().unwrap_or_default()
}

/// Jain's index: 1 if all are served alike, 1/n if one gets everything.
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let (sum, squares) = counts.iter().fold((0.0, 0.0), |(sum, squares), it| {
        let it = per(*it, 1);
        (sum + it, squares + it * it)
    });
    if squares == 0.0 { 0.0 } else { sum * sum / (per(counts.len() as u64, 1) * squares) }
}

/// Rate of `count` things in `span`.
pub(crate) fn rate(count: u64, span: Duration) -> f64 {
    per(count, 1) / span.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(crate) fn per(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(format!("{} {}", median(&mut values), quantile(&mut values, 99)), "50 99");
        assert_eq!(median::<Duration>(&mut []), Duration::ZERO);
    }

    #[test]
    fn the_quickest_connection_of_each_side_counts() {
        let [one, two, three] = [1, 2, 3].map(Duration::from_secs);
        assert_eq!(quickest(&[(three, one), (two, three)]), (two, one));
    }

    #[test]
    fn jains_index_is_one_if_all_are_alike() {
        assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
        assert!(jain(&[]).abs() < 1e-9);
    }
}
