//! A lock as `scripts/show.lua` tells it: who is there, and what stands there that is not ours. What cannot be read is named and
//! never left out, so that a lock that is held is never shown as free.

use lockkeeper_core::Key;
use lockkeeper_core::inspect::{LockInfo, Occupant};
use redis::Value;

use crate::admin::bytes;
use crate::{naming, record};

/// What was found at one lock's key.
pub(crate) struct Seen<'a> {
    main: &'a str,
    /// The name that the records say.
    name: Option<Key>,
    holders: Vec<Occupant>,
    waiters: Vec<Occupant>,
    foreign: Vec<String>,
}

impl<'a> Seen<'a> {
    /// What the script says of the lock at this key.
    pub(crate) fn read(main: &'a str, parts: &Value, now: u64) -> Option<Self> {
        let Value::Array(parts) = parts else { return None };
        let (first, records) = parts.split_first()?;
        let Value::Int(holders) = first else { return None };
        let mut seen =
            Seen { main, name: None, holders: Vec::new(), waiters: Vec::new(), foreign: Vec::new() };
        let Ok(holders) = usize::try_from(*holders) else {
            let key = records.first().and_then(bytes).map(String::from_utf8_lossy).unwrap_or_default();
            seen.foreign.push(format!("the key {key} is not ours; remove it, or choose another ?prefix="));
            return Some(seen);
        };
        let (inside, in_line) = records.split_at_checked(holders).unwrap_or((records, &[]));
        seen.holders = seen.people(inside, now);
        let unknown = inside.len() - seen.holders.len();
        seen.waiters = seen.people(in_line, now);
        let unread = in_line.len() - seen.waiters.len();
        if unknown > 0 {
            seen.foreign.push(format!(
                "{unknown} of those who hold {main} cannot be read: not our record; break the lock, or wait for its end"
            ));
        }
        if unread > 0 {
            seen.foreign.push(format!("{unread} of those in line at {main} cannot be read: not our record"));
        }
        Some(seen)
    }

    fn people(&mut self, records: &[Value], now: u64) -> Vec<Occupant> {
        let read = records.iter().filter_map(|it| record::read(bytes(it)?, now));
        let (names, people): (Vec<Key>, Vec<Occupant>) = read.unzip();
        self.name = self.name.take().or_else(|| names.into_iter().next());
        people
    }

    /// The lock by the name that was asked for, by the one in its records, or by its key in the store; `None` if it is free.
    pub(crate) fn lock(self, asked: Option<&Key>) -> Option<LockInfo> {
        // A record may have been copied from another lock.
        let prefix = self.main.rsplit_once(":{").map_or("", |it| it.0);
        let named = self.name.filter(|it| asked.is_none() && naming::main_key(prefix, it).0 == self.main);
        let key = asked.cloned().or(named).or_else(|| Key::new(self.main).ok())?;
        let mut info = LockInfo::new(key, self.holders, self.waiters);
        info.foreign = self.foreign;
        (!info.is_free()).then_some(info)
    }
}
