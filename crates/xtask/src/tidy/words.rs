//! One word per thing: words that this house does not use, and words that name one type only.

/// The word, and what to say instead. Looked for in code, comments and pages.
const BANNED: &[(&str, &str)] = &[
    ("handoff", "hand_on for what happens inside a process, hand-off for what the store does between two"),
    ("see_out", "leave_in_background"),
    ("leave_politely", "leave_in_caller"),
    ("time-out", "timeout, the word that people search for"),
    ("releasing the lock", "giving the lock back"),
    ("giving up the lock", "giving the lock back"),
    ("ownthread", "Driver, of lockkeeper_core::kit"),
    ("stand_up", "forget, of lockkeeper_core::kit::Bells"),
    ("refuse_misfit", "check_load, of lockkeeper_core::Claim"),
    ("too_heavy", "check_load, of lockkeeper_core::Claim"),
];

/// The same for what users read and search: plain technical English.
const UNPLAIN: &[(&str, &str)] = &[
    ("usually", "default, or in most cases"),
    ("as usual", "by default"),
    ("given twice", "held by two at once"),
    ("longer than nothing", "greater than 0"),
    ("more than nothing", "greater than 0"),
    ("a span such as", "a duration such as"),
    ("be had", "be granted, or be obtained"),
    ("| rooms |", "shared locks, permits"),
    ("verbs fail", "requests fail"),
    // `docs/concepts/glossary.md` has both words; people search for this one.
    ("process's line", "process's queue"),
    ("store's line", "store's queue"),
    ("the line until", "the queue until"),
    ("leaves the line", "leaves the queue"),
    ("told that the lock is lost", "notified that the lock is lost"),
    (" dear ", "expensive"),
    (" bears ", "tolerates"),
    (" heed ", "plain words for what it does"),
    ("spans are written", "durations are written"),
];
/// Where they are looked for.
const PLAIN: &[&str] = &[
    "README.md",
    "crates/lockkeeper-cli/src/help.rs",
    "crates/lockkeeper-demo/src/help.rs",
    // The reference, which docs.rs shows, and the texts of errors.
    "crates/lockkeeper/src/",
    "crates/lockkeeper-cache/src/",
    "crates/lockkeeper-core/src/api/",
    "crates/lockkeeper-core/src/error.rs",
    "crates/lockkeeper-core/src/observe.rs",
    "crates/lockkeeper-core/src/kit/settings.rs",
    "crates/lockkeeper-etcd/src/options.rs",
    "crates/lockkeeper-macros/src/",
    "crates/lockkeeper-redis/src/options.rs",
    "crates/lockkeeper-redlock/src/options.rs",
    "crates/lockkeeper-sql/src/mysql/options.rs",
    "crates/lockkeeper-sql/src/postgres/options.rs",
    "crates/lockkeeper-sqlite/src/options.rs",
    "crates/lockkeeper-zookeeper/src/options.rs",
    "examples/",
    "docs/backends/",
    "docs/concepts/",
    "docs/guides/",
];

/// Words of docs/concepts/glossary.md that are types, and the one folder or file that defines each.
const TAKEN: &[(&str, &str)] = &[
    // What users name.
    ("Fence", "crates/lockkeeper-core/src/"),
    ("Guard", "crates/lockkeeper-core/src/"),
    ("Key", "crates/lockkeeper-core/src/"),
    ("Label", "crates/lockkeeper-core/src/"),
    ("Latch", "crates/lockkeeper-core/src/"),
    ("Load", "crates/lockkeeper-core/src/"),
    ("Locker", "crates/lockkeeper-core/src/"),
    ("Owner", "crates/lockkeeper-core/src/"),
    ("Tick", "crates/lockkeeper-core/src/"),
    // What authors of stores name.
    ("Batch", "crates/lockkeeper-core/src/kit/"),
    ("Bells", "crates/lockkeeper-core/src/kit/"),
    ("Claim", "crates/lockkeeper-core/src/spi/"),
    ("Driver", "crates/lockkeeper-core/src/kit/"),
    ("Finding", "crates/lockkeeper-core/src/spi/"),
    ("Memo", "crates/lockkeeper-core/src/spi/"),
    ("Occupant", "crates/lockkeeper-core/src/spi/"),
    ("Pace", "crates/lockkeeper-core/src/kit/"),
    ("Profile", "crates/lockkeeper-core/src/spi/"),
    ("Proof", "crates/lockkeeper-core/src/kit/"),
    ("Record", "crates/lockkeeper-core/src/kit/"),
    ("Turn", "crates/lockkeeper-core/src/spi/"),
    // What one crate has.
    ("Contest", "crates/lockkeeper-core/src/engine/"),
    ("Seat", "crates/lockkeeper-redlock/"),
    ("Standing", "crates/lockkeeper-core/src/spi/"),
    ("Wire", "crates/lockkeeper-sql/src/postgres/"),
];

/// Where a banned word is somebody else's, or quoted.
const ELSEWHERE: &[&str] = &["crates/xtask/src/tidy", "docs/decisions/", "CHANGELOG.md"];

pub(super) fn check(name: &str, text: &str, complaints: &mut Vec<String>) {
    if ELSEWHERE.iter().any(|it| name.starts_with(it)) || text.contains("@generated") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", number + 1);
        if let Some((word, home)) = defined(line)
            .and_then(|kind| TAKEN.iter().find(|it| it.0 == kind))
            .filter(|it| !name.starts_with(it.1))
        {
            complaints.push(format!("{at}: `{word}` is a word of {home}: name this for what it is"));
        }
        let line = line.to_lowercase();
        let unplain = if PLAIN.iter().any(|it| name.starts_with(it)) { UNPLAIN } else { &[] };
        for (word, instead) in BANNED.iter().chain(unplain).filter(|it| line.contains(it.0)) {
            complaints.push(format!("{at}: `{word}`: say {instead}"));
        }
    }
}

/// The type that a line defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line =
        ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|it| line.strip_prefix(it)).unwrap_or(line);
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|it| line.strip_prefix(it))?;
    rest.split(|it: char| !it.is_alphanumeric()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, text: &str) -> usize {
        let mut complaints = Vec::new();
        check(name, text, &mut complaints);
        complaints.len()
    }

    #[test]
    fn retired_words_are_noticed() {
        assert_eq!(complaints("docs/a.md", "The Handoff.\nThe hand-off.\n"), 1);
        assert_eq!(complaints("CHANGELOG.md", "The handoff.\n"), 0);
    }

    #[test]
    fn what_users_read_is_plain() {
        let text = "Usually 10 s.\nLocks are given twice.\nA default.\n";
        assert_eq!(complaints("docs/guides/a.md", text), 2);
        assert_eq!(complaints("README.md", text), 2);
        assert_eq!(complaints("crates/lockkeeper-redis/src/options.rs", text), 2);
        assert_eq!(complaints("docs/decisions/0001-a.md", text), 0);
        let text = "5 can never be had.\n| rooms | any |\n2 ahead in the store's line\nThe command line.\n";
        assert_eq!(complaints("docs/guides/a.md", text), 3);
    }

    #[test]
    fn a_word_names_one_type_wherever_it_is_defined() {
        for line in ["struct Driver;", "    pub(crate) enum Driver<T> {", "pub trait Driver {"] {
            assert_eq!(complaints("crates/lockkeeper-etcd/src/a.rs", line), 1, "{line}");
            assert_eq!(complaints("crates/lockkeeper-core/src/kit/driver.rs", line), 0, "{line}");
        }
        for line in
            ["use lockkeeper_core::kit::Driver;", "struct Drivers;", "// struct Driver", "impl Driver {"]
        {
            assert_eq!(complaints("crates/lockkeeper-etcd/src/a.rs", line), 0, "{line}");
        }
    }
}
