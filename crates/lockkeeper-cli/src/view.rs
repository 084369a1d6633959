//! Locks as `ls`, `show` and `break` print them: the JSON shape, and occupants in words.

use std::fmt;
use std::time::Duration;

use lockkeeper::spi::{LockInfo, Occupant};
use lockkeeper::{Leader, Load};
use serde::Serialize;

use crate::output::span;
use crate::text;

/// A lock, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    name: String,
    holders: Vec<Holder>,
    waiters: Vec<Waiter>,
    /// What stands in its line and is not ours.
    foreign: Vec<String>,
    /// What whoever holds it as a role lets everybody read.
    leader: Option<Leads>,
}

/// A leader, in JSON.
#[derive(Debug, Serialize)]
struct Leads {
    value: String,
    /// As text, as a fence is.
    term: String,
}

impl Lock {
    pub(crate) fn of(info: &LockInfo) -> Self {
        Lock {
            name: info.key.to_string(),
            holders: info.holders.iter().map(Holder::of).collect(),
            waiters: (1..).zip(&info.waiters).map(Waiter::of).collect(),
            foreign: info.foreign.clone(),
            leader: None,
        }
    }

    /// The same, held by this leader.
    pub(crate) fn led_by(self, leader: Option<&Leader>) -> Self {
        let leader = leader.map(|it| Leads { value: it.value.clone(), term: it.term.to_string() });
        Lock { leader, ..self }
    }
}

/// Somebody who holds, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    #[serde(flatten)]
    who: Who,
    held_for_ms: Option<u64>,
    /// As text: it may exceed 2^53, beyond which some JSON readers round numbers, and a rounded fence is a
    /// wrong one.
    fence: Option<String>,
    /// It stays with its process while nobody wants it, which may do nothing with it.
    may_be_idle: bool,
}

impl Holder {
    pub(crate) fn of(it: &Occupant) -> Self {
        Holder {
            who: Who::of(it),
            held_for_ms: it.since.map(millis),
            fence: it.fence.map(|it| it.to_string()),
            may_be_idle: it.label.warm,
        }
    }
}

/// Somebody who waits, in JSON.
#[derive(Debug, Serialize)]
struct Waiter {
    position: usize,
    #[serde(flatten)]
    who: Who,
    waited_for_ms: Option<u64>,
}

impl Waiter {
    fn of((position, it): (usize, &Occupant)) -> Self {
        Waiter { position, who: Who::of(it), waited_for_ms: it.since.map(millis) }
    }
}

#[derive(Debug, Serialize)]
struct Who {
    host: String,
    pid: u32,
    owner: Option<String>,
    note: Option<String>,
    valid_for_ms: u64,
    kind: &'static str,
    weight: u32,
    capacity: u32,
}

impl Who {
    fn of(it: &Occupant) -> Self {
        let label = it.label.clone();
        Who {
            host: label.host,
            pid: label.pid,
            owner: label.owner,
            note: label.note,
            valid_for_ms: millis(it.valid_for),
            kind: Kind::of(it.load).word(),
            weight: it.load.weight,
            capacity: it.load.capacity,
        }
    }
}

/// How somebody holds a lock, or wants to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Reader,
    Writer,
    Permits(Load),
}

impl Kind {
    pub(crate) fn of(load: Load) -> Self {
        match load {
            Load::MUTEX => Kind::Lock,
            Load::READER => Kind::Reader,
            Load::WRITER => Kind::Writer,
            load => Kind::Permits(load),
        }
    }

    /// One word, the same for all of a kind.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Reader => "reader",
            Kind::Writer => "writer",
            Kind::Permits(_) => "permits",
        }
    }
}

/// For people: `lock`, `reader`, `writer`, `2 of 5 permits`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Permits(load) => write!(f, "{load} permits"),
            other => f.write_str(other.word()),
        }
    }
}

/// How many wait, and as what where it is not all for the plain lock: `3 (2 readers, 1 lock)`.
pub(crate) fn crowd(waiters: &[Occupant]) -> String {
    let count = waiters.len();
    let kinds = || waiters.iter().map(|it| Kind::of(it.load));
    if kinds().all(|it| it == Kind::Lock) {
        return count.to_string();
    }
    let of_kind = |word| (kinds().filter(|it| it.word() == word).count(), word);
    let told = ["lock", "reader", "writer", "permits"].map(of_kind).into_iter().filter(|it| it.0 > 0);
    let told: Vec<_> = told
        .map(|(count, word)| match (count, word) {
            (_, "permits") => format!("{count} for permits"),
            (1, _) => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        })
        .collect();
    format!("{count} ({})", told.join(", "))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// `host:pid owner`, fit to print.
pub(crate) fn who(it: &Occupant) -> String {
    let label = &it.label;
    let mut out = format!("{}:{}", text::cell(&label.host), label.pid);
    if let Some(owner) = &label.owner {
        out.push(' ');
        out.push_str(&text::cell(owner));
    }
    out
}

/// The note, fit to print, if there is one.
pub(crate) fn note(it: &Occupant) -> Option<String> {
    it.label.note.as_deref().map(text::cell)
}

/// The note of one who holds, and that it may do nothing with the lock.
pub(crate) fn holders_note(it: &Occupant) -> Option<String> {
    match (note(it), it.label.warm) {
        (note, false) => note,
        (None, true) => Some(MAY_BE_IDLE.to_owned()),
        (Some(note), true) => Some(format!("{MAY_BE_IDLE}; {note}")),
    }
}

/// What is said of a lock that its process keeps while nobody wants it.
const MAY_BE_IDLE: &str = "kept, may be idle";

/// How long, or a question mark where the store does not know.
pub(crate) fn since(it: &Occupant) -> String {
    it.since.map_or_else(|| "?".to_owned(), span)
}

/// Who is in the way, for a sentence: `held by host:7 alice for 3s (a note)`.
pub(crate) fn in_the_way(info: &LockInfo) -> Option<String> {
    let waiting = match info.waiters.len() {
        0 => String::new(),
        count => format!("; {count} waiting"),
    };
    let Some(holder) = info.holders.first() else {
        if let Some(it) = info.foreign.first() {
            return Some(format!(
                "something that is not Lockkeeper's is in the way: {}{waiting}",
                text::plain(it)
            ));
        }
        return (!info.waiters.is_empty()).then(|| format!("nobody holds it just now{waiting}"));
    };
    let note = match &holder.label.note {
        None => String::new(),
        Some(note) => format!(" ({})", text::plain(note)),
    };
    let others = match info.holders.len() - 1 {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        count => format!(" and {count} others"),
    };
    let (who, kind, since) = (who(holder), as_what(holder), since(holder));
    Some(format!("held by {who}{kind} for {since}{note}{others}{waiting}"))
}

/// `, a reader`, `, 2 of 5 permits`, or nothing for a plain lock.
pub(crate) fn as_what(it: &Occupant) -> String {
    match Kind::of(it.load) {
        Kind::Lock => String::new(),
        kind @ Kind::Permits(_) => format!(", {kind},"),
        kind => format!(", a {kind},"),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Key, Label};

    use super::*;

    fn occupant(load: Load) -> Occupant {
        Occupant::new(Label::new("h", 7, None, None), Duration::from_secs(9)).load(load)
    }

    #[test]
    fn kinds_are_words() {
        for (load, words, word) in [
            (Load::MUTEX, "lock", "lock"),
            (Load::READER, "reader", "reader"),
            (Load::WRITER, "writer", "writer"),
            (Load::new(2, 5), "2 of 5 permits", "permits"),
            (Load::new(5, 5), "5 of 5 permits", "permits"),
        ] {
            assert_eq!((Kind::of(load).to_string().as_str(), Kind::of(load).word()), (words, word));
        }
    }

    #[test]
    fn a_crowd_is_told_by_kind_unless_all_want_the_plain_lock() {
        let crowd = |loads: &[Load]| crowd(&loads.iter().copied().map(occupant).collect::<Vec<_>>());
        assert_eq!(crowd(&[]), "0");
        assert_eq!(crowd(&[Load::MUTEX, Load::MUTEX]), "2");
        let mixed = [Load::READER, Load::MUTEX, Load::READER, Load::new(1, 5)];
        assert_eq!(crowd(&mixed), "4 (1 lock, 2 readers, 1 for permits)");
    }

    #[test]
    fn a_lock_that_its_process_may_keep_for_nothing_says_so_once_it_is_held() {
        let of = |note: Option<&str>, warm| {
            let mut it = occupant(Load::MUTEX);
            (it.label.note, it.label.warm) = (note.map(str::to_owned), warm);
            it
        };
        let said = |it: &Occupant| holders_note(it).unwrap_or_default();
        assert_eq!(said(&of(None, false)), "");
        assert_eq!(said(&of(Some("import"), false)), "import");
        assert_eq!(said(&of(None, true)), "kept, may be idle");
        assert_eq!(said(&of(Some("\x1b"), true)), "kept, may be idle; \\u{1b}");
        assert_eq!(note(&of(Some("import"), true)).unwrap(), "import", "who waits is not idle");
        let info = LockInfo::new(Key::new("x").unwrap(), vec![of(None, true)], vec![of(None, true)]);
        let json = serde_json::to_value(Lock::of(&info)).unwrap();
        assert_eq!(json["holders"][0]["may_be_idle"], true);
        assert!(json["waiters"][0].get("may_be_idle").is_none());
    }

    #[test]
    fn whoever_is_in_the_way_is_named_with_the_kind_and_the_number_of_others() {
        let of = |loads: &[Load]| {
            let holders = loads.iter().copied().map(occupant).collect();
            in_the_way(&LockInfo::new(Key::new("x").unwrap(), holders, Vec::new())).unwrap()
        };
        assert_eq!(of(&[Load::MUTEX]), "held by h:7 for ?");
        assert_eq!(of(&[Load::READER; 3]), "held by h:7, a reader, for ? and 2 others");
        assert_eq!(of(&[Load::new(2, 5); 2]), "held by h:7, 2 of 5 permits, for ? and 1 other");
    }
}
