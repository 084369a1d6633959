//! Pauses between attempts: growing, bounded and random, so that those who collided do not collide again.

use std::time::Duration;

/// How often a statement that collided with others is sent before its caller hears of it.
pub(crate) const ATTEMPTS_MAX: u32 = 12;

/// The pause after this many failed attempts: random, about doubling from `first`, at most `most`.
pub(crate) fn pause(attempt: u32, first: Duration, most: Duration) -> Duration {
    let longest = first.saturating_mul(1 << attempt.min(16)).min(most);
    let mut bytes = [0; 2];
    // Without randomness everybody pauses alike, which is worse but not wrong.
    let _ = getrandom::fill(&mut bytes);
    let share = f64::from(u16::from_le_bytes(bytes)) / f64::from(u16::MAX);
    longest.mul_f64(0.5 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_differ() {
        let (first, most) = (Duration::from_millis(1), Duration::from_millis(50));
        for attempt in 0..40 {
            let pause = pause(attempt, first, most);
            assert!(first / 2 <= pause && pause <= most, "{attempt}: {pause:?}");
        }
        let pauses: std::collections::HashSet<_> = (0..100).map(|_| pause(5, first, most)).collect();
        assert!(pauses.len() > 50);
    }
}
