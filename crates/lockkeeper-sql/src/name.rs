//! How a lock's name reaches a database: as a SHA-256, safe from collation, case, blanks and length.

use lockkeeper_core::Key;
use sha2::{Digest, Sha256};

/// The name's hash, by which its rows are found. The readable name is kept beside it.
pub(crate) type NameHash = [u8; 32];

/// The hash of a key's name.
pub(crate) fn hash(key: &Key) -> NameHash {
    Sha256::digest(key.as_str().as_bytes()).into()
}

/// Text about people and hosts, without the one character that a database may refuse.
pub(crate) fn printable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A span in microseconds, rounded up: the store keeps us a little longer, never shorter.
pub(crate) fn micros_up(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX >> 8)
}

/// Microseconds from a database as a span; zero if they are negative.
pub(crate) fn span(micros: i64) -> std::time::Duration {
    std::time::Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_that_a_database_might_confuse_have_different_hashes() {
        let names = ["Order", "order", "a", "a ", "é", "e\u{301}", "ß", "ss"];
        let hashes: std::collections::HashSet<_> =
            names.iter().map(|it| hash(&Key::new(it).unwrap())).collect();
        assert_eq!(hashes.len(), names.len());
    }

    #[test]
    fn spans_are_rounded_up_and_never_overflow() {
        assert_eq!(micros_up(Duration::from_nanos(1001)), 2);
        assert!(micros_up(Duration::MAX) > 0);
        assert_eq!(span(-5), Duration::ZERO);
        assert_eq!(span(5), Duration::from_micros(5));
    }
}
