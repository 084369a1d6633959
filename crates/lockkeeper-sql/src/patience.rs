//! How long an unanswered statement is waited for before a fresh connection is tried.

use std::time::Duration;

/// A fresh connection takes about this long; to give up sooner helps nobody.
const SHORTEST: Duration = Duration::from_millis(50);

/// Twice this is less than a locker's usual patience with a store, so that the fresh connection has its time, too.
const LONGEST: Duration = Duration::from_millis(1500);

/// How long a connection may stay silent while a claim of this ttl waits for its answer. A renewal is sent when
/// two thirds of the ttl are left: enough for this patience, a fresh connection, and the same again.
pub(crate) fn patience(ttl: Duration, answer_within: Duration) -> Duration {
    (ttl / 6).clamp(SHORTEST, LONGEST).min(answer_within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_ttl_within_its_bounds() {
        let (ms, much) = (Duration::from_millis, Duration::from_secs(60));
        assert_eq!(patience(ms(3000), much), ms(500));
        assert_eq!(patience(ms(60), much), SHORTEST);
        assert_eq!(patience(much, much), LONGEST);
        assert_eq!(patience(much, ms(200)), ms(200));
    }
}
