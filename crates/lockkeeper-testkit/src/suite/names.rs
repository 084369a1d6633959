//! Names: any name that is a key works on every store, and no two of them are one lock.

use lockkeeper_core::Key;
use lockkeeper_core::key::KEY_BYTES_MAX;

use lockkeeper_core::backend::Backend;

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict};

/// Names that have met trouble in some store: each is a valid key, and all are different ones.
pub const ODD_NAMES: &[&str] = &[
    // Blanks at the ends, which padding collations drop.
    " ",
    "  ",
    "a",
    "a ",
    "a  ",
    " a",
    "a\u{a0}",
    "a\u{200b}",
    "\u{feff}a",
    "a\u{ad}",
    // Paths.
    "/",
    "//",
    ".",
    "..",
    "../../x",
    "a/b",
    "a//b",
    "a/",
    "/a",
    "a\\b",
    "/zookeeper/quota",
    // Case, and letters that folding confuses.
    "Order",
    "order",
    "ORDER",
    "i",
    "I",
    "İ",
    "ı",
    "ß",
    "ss",
    "SS",
    "ẞ",
    "ﬁ",
    "fi",
    // One letter, composed and not; and letters that look alike.
    "é",
    "e\u{301}",
    "\u{212b}",
    "Å",
    "A\u{30a}",
    "а",
    "ａ",
    // Quotes, patterns, scripts and the like.
    "'",
    "''",
    "\"",
    "`",
    "\\",
    "\\'",
    "%",
    "_",
    "%_",
    "*",
    "?",
    "[a]",
    "{x}",
    "x",
    "}{",
    "{}a",
    "{}",
    "{",
    "'; DROP TABLE locks;--",
    "']] redis.call('FLUSHALL') --",
    "FLUSHALL",
    "$(reboot)",
    "${HOME}",
    "a:b",
    "a::b",
    ":",
    "__keyspace@0__:x",
    "-rf",
    "--help",
    "<script>",
    "&amp;",
    "%2F",
    "%2f",
    "%00",
    "+",
    "#",
    "a=b&c",
    "NULL",
    "null",
    "0",
    "00",
    "true",
    "1e3",
    "\u{202e}x",
    "👩\u{200d}👩\u{200d}👧",
    "👩👩👧",
    "🔒",
    "名前",
    "\u{fffd}",
    "\u{10ffff}",
    "\u{e000}",
];

/// Odd names and long ones, all different.
///
/// # Errors
/// If one of them is no key.
pub fn odd_keys() -> Result<Vec<Key>, Failure> {
    let lengths = [63, 64, 65, 128, 191, 192, 193, 255, 256, 257, KEY_BYTES_MAX - 1, KEY_BYTES_MAX];
    let mut names: Vec<String> = ODD_NAMES.iter().map(|&it| it.to_owned()).collect();
    names.extend(lengths.map(|it| "x".repeat(it)));
    // Alike in all but the last byte, beyond every length at which a store may cut.
    names.extend(["y", "z"].map(|it| "x".repeat(KEY_BYTES_MAX - 1) + it));
    names.push("🔒".repeat(KEY_BYTES_MAX / 4));
    names.iter().map(|it| Key::new(it).map_err(Failure::broken)).collect()
}

/// All odd names can be held at the same time, and each is one lock for all processes.
///
/// # Errors
/// If the store breaks the contract.
pub async fn odd_names_work_and_never_alias<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (trial.connect().await, trial.connect().await);
    let ttl = (trial.ttl * 20).min(here.profile().ttl_max);
    for key in odd_keys()? {
        // Names are used as they are, so another run against the same store may have left something.
        let claim = trial.claim()?.of(key.clone()).ttl(ttl);
        let mut passer = trial.contender_with(&here, claim);
        passer.takes().await.map_err(|it| named(&key, it))?;
        passer.leaves().await.map_err(|it| named(&key, it))?;
    }
    let mut holders = Vec::new();
    for key in odd_keys()? {
        let claim = trial.claim()?.of(key.clone()).ttl(ttl);
        let mut holder = trial.contender_with(&here, claim);
        let free = "only locks of other names are held";
        holder.takes_at_once(free).await.map_err(|it| named(&key, it))?;
        holders.push(holder);
    }
    for holder in &mut holders {
        let key = holder.claim.key.clone();
        let claim = trial.impatient()?.of(key.clone()).ttl(ttl);
        let mut other = trial.contender_with(&there, claim);
        other.must_wait(holder.safe_until(), "it is held").await.map_err(|it| named(&key, it))?;
        holder.must_still_hold("only others were asked for").await.map_err(|it| named(&key, it))?;
        holder.leaves().await.map_err(|it| named(&key, it))?;
        other.takes_at_once("its holder has left").await.map_err(|it| named(&key, it))?;
        other.leaves().await.map_err(|it| named(&key, it))?;
    }
    Ok(Outcome::Shown)
}

fn named(key: &Key, failure: Failure) -> Failure {
    match failure {
        Failure::Broken(what) => Failure::Broken(format!("the name {key:?}: {what}")),
        Failure::Stalled(what) => Failure::Stalled(format!("the name {key:?}: {what}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_odd_names_are_keys_and_all_different() {
        let keys = odd_keys().unwrap();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert!(keys.iter().any(|it| it.as_str().len() == KEY_BYTES_MAX));
    }
}
