//! Locks as `ls`, `show` and `break` print them: the JSON shape, and occupants in words.

use std::time::Duration;

use lockkeeper::spi::{LockInfo, Occupant};
use serde::Serialize;

use crate::output::span;
use crate::text;

/// A lock, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    name: String,
    holders: Vec<Holder>,
    waiters: Vec<Waiter>,
}

impl Lock {
    pub(crate) fn of(info: &LockInfo) -> Self {
        Lock {
            name: info.key.to_string(),
            holders: info.holders.iter().map(Holder::of).collect(),
            waiters: (1..).zip(&info.waiters).map(Waiter::of).collect(),
        }
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
}

impl Holder {
    pub(crate) fn of(it: &Occupant) -> Self {
        Holder {
            who: Who::of(it),
            held_for_ms: it.since.map(millis),
            fence: it.fence.map(|it| it.to_string()),
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
            weight: it.load.weight,
            capacity: it.load.capacity,
        }
    }
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
        return (!info.waiters.is_empty()).then(|| format!("nobody holds it just now{waiting}"));
    };
    let note = match &holder.label.note {
        None => String::new(),
        Some(note) => format!(" ({})", text::plain(note)),
    };
    Some(format!("held by {} for {}{note}{waiting}", who(holder), since(holder)))
}
