//! Words that this house does not use, because another word means the same.

/// The word, and what to say instead. Looked for in code, comments and pages.
const BANNED: &[(&str, &str)] = &[
    ("handoff", "hand_on for what happens inside a process, hand-off for what the store does between two"),
    ("see_out", "leave_in_background"),
    ("leave_politely", "leave_in_caller"),
    ("releasing the lock", "giving the lock back"),
    ("giving up the lock", "giving the lock back"),
];

/// Where a banned word is somebody else's, or quoted.
const ELSEWHERE: &[&str] = &["crates/xtask/src/tidy", "docs/decisions/", "CHANGELOG.md"];

pub(super) fn check(name: &str, text: &str, complaints: &mut Vec<String>) {
    if ELSEWHERE.iter().any(|it| name.starts_with(it)) || text.contains("@generated") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (word, instead) in BANNED.iter().filter(|it| line.contains(it.0)) {
            complaints.push(format!("{name}:{}: `{word}`: say {instead}", number + 1));
        }
    }
}
