//! Locks and leaders in JSON, in the shapes of the command's `--json`.

use std::time::Duration;

use lockkeeper_core::inspect::{LockInfo, Occupant};
use lockkeeper_core::{Leader, Load};
use serde::Serialize;

/// A lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
    /// What stands in its line and is not ours.
    pub(crate) foreign: Vec<String>,
    /// How many clients of this server wait in its own line, of whom the store does not know. For the console.
    #[serde(skip)]
    pub(crate) here: usize,
}

impl Lock {
    pub(crate) fn of(info: &LockInfo) -> Self {
        Lock {
            name: info.key.to_string(),
            holders: info.holders.iter().map(Holder::of).collect(),
            waiters: (1..).zip(&info.waiters).map(Waiter::of).collect(),
            foreign: info.foreign.clone(),
            here: 0,
        }
    }

    /// How many wait, wherever that is.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len() + self.here
    }

    /// A lock that nobody holds or waits for.
    pub(crate) fn free(name: &str) -> Self {
        let (holders, waiters, foreign) = (Vec::new(), Vec::new(), Vec::new());
        Lock { name: name.to_owned(), holders, waiters, foreign, here: 0 }
    }
}

/// Somebody who holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Holder {
    #[serde(flatten)]
    pub(crate) who: Who,
    pub(crate) held_for_ms: Option<u64>,
    /// As text: it may exceed 2^53, beyond which some JSON readers round numbers, and a rounded fence is a wrong one.
    pub(crate) fence: Option<String>,
}

impl Holder {
    pub(crate) fn of(it: &Occupant) -> Self {
        let fence = it.fence.map(|it| it.to_string());
        Holder { who: Who::of(it), held_for_ms: it.since.map(millis), fence }
    }
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Waiter {
    pub(crate) position: usize,
    #[serde(flatten)]
    pub(crate) who: Who,
    pub(crate) waited_for_ms: Option<u64>,
}

impl Waiter {
    fn of((position, it): (usize, &Occupant)) -> Self {
        Waiter { position, who: Who::of(it), waited_for_ms: it.since.map(millis) }
    }
}

/// What is known of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Who {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) owner: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) valid_for_ms: u64,
    pub(crate) kind: &'static str,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
    /// The trace in which it asked, in hexadecimal digits. For the console.
    #[serde(skip)]
    pub(crate) trace: Option<String>,
    /// The longest validity that was seen of it. That is about its ttl, which stores do not tell. For the console.
    #[serde(skip)]
    pub(crate) longest_ms: u64,
}

impl Who {
    fn of(it: &Occupant) -> Self {
        let label = it.label.clone();
        let kind = match it.load {
            Load::MUTEX => "lock",
            Load::READER => "reader",
            Load::WRITER => "writer",
            _ => "permits",
        };
        Who {
            host: label.host,
            pid: label.pid,
            owner: label.owner,
            note: label.note,
            valid_for_ms: millis(it.valid_for),
            kind,
            weight: it.load.weight,
            capacity: it.load.capacity,
            trace: label.trace.map(|it| format!("{:032x}", u128::from_be_bytes(it.trace_id))),
            longest_ms: millis(it.valid_for),
        }
    }

    /// A validity below this is short: who renews does so with two thirds of the ttl left, so two renewals are missing.
    pub(crate) fn short_ms(&self) -> u64 {
        self.longest_ms / 3
    }
}

/// Who leads.
#[derive(Debug, Serialize)]
pub(crate) struct Leads<'a> {
    name: &'a str,
    leader: Option<InJson<'a>>,
}

#[derive(Debug, Serialize)]
struct InJson<'a> {
    value: &'a str,
    host: &'a str,
    pid: u32,
    term: String,
    age_ms: u64,
}

impl<'a> Leads<'a> {
    pub(crate) fn of(name: &'a str, leader: Option<&'a Leader>) -> Self {
        let leader = leader.map(|it| InJson {
            value: &it.value,
            host: &it.holder.host,
            pid: it.holder.pid,
            term: it.term.to_string(),
            age_ms: millis(it.age),
        });
        Leads { name, leader }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
