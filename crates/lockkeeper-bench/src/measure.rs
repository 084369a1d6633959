//! Timing: the same work repeated in turns for both sides, the median taken, so that drift hits both.

use std::time::{Duration, Instant};

/// How often each side runs.
const TURNS: usize = 7;

/// The median time per operation of two sides, run in turns. Each side does `ops` operations per turn.
pub(crate) fn beside(ops: u32, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (Duration, Duration) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        one.push(time(&mut ours) / ops);
        other.push(time(&mut theirs) / ops);
    }
    (median(one), median(other))
}

/// How long it takes.
pub(crate) fn time(work: &mut impl FnMut()) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a benchmark times short runs on one machine")]
    let start = Instant::now();
    work();
    start.elapsed()
}

pub(crate) fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort();
    spans[spans.len() / 2]
}
