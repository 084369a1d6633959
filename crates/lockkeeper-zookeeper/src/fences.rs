//! Fences from the numbers of transactions: growing across elections, and across the loss of all data.
//!
//! A transaction's number (zxid) orders all writes of an ensemble, but it is no fence by itself: an election takes
//! 2³² at once, of which a fence has room for few, and an ensemble that lost its data counts from the beginning. So
//! one node below the path, the *ledger*, says what numbers count from. A write that came after the ledger's own
//! last write, in the same reign of a leader, has the counter `base + (its number − the ledger's)`, as long as that
//! is at most `base + BLOCK`. Beyond that, after an election, and when the ledger is old, whoever comes first writes it
//! anew, with a base above all that the last one could give.
//!
//! The base is at least the wall time at which the ledger was written, by the clock of the *servers*, in units that
//! pass more quickly than an ensemble can write. Hence what was there before all data were lost, or before an old copy
//! of them was put back, is smaller. A clock that was wrong then costs that promise, never one of the others: nothing
//! here judges whether a lock has expired.

use std::fmt::Write as _;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::fence::COUNTER_MAX;
use zookeeper_client::{Acls, CreateMode, Error, Stat};

use crate::fault::{self, NAME};
use crate::session::Session;
use crate::store::Store;
use crate::wake::Watch;

const DOING: &str = "numbering the lock";
/// No name of a lock begins with a dot.
const LEDGER: &str = ".fences";
/// How many numbers one entry of the ledger is good for.
const BLOCK: u64 = 1 << 20;
/// Counters that pass in a millisecond of wall time: more than an ensemble writes, and room until the year 2100.
const PER_MILLISECOND: u64 = 64;
/// A clock beyond this (the year 2074) is not believed, so that it cannot use up all counters.
const CLOCK_MAX: u64 = COUNTER_MAX / 4 * 3;
/// When an entry is old: a copy of the data that is older than this is noticed when it is put back.
const OLD_MILLISECONDS: i64 = 10 * 60 * 1000;
/// How many entries of the past are kept, for people who look at old locks.
const PAST_MAX: usize = 16;
/// How often the ledger may change under our eyes.
const TRIES_MAX: u32 = 8;

/// The write that let us in: its number and the servers' time, or a time shortly before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) zxid: i64,
    pub(crate) at: i64,
}

impl Written {
    /// The making of a node.
    pub(crate) fn first(stat: &Stat) -> Self {
        Written { zxid: stat.czxid, at: stat.ctime }
    }

    /// The last write to a node.
    pub(crate) fn last(stat: &Stat) -> Self {
        Written { zxid: stat.mzxid, at: stat.mtime }
    }
}

/// From which transaction on numbers count from which base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    since: i64,
    base: u64,
}

impl Entry {
    /// The counter of a later write, unless another leader wrote it, or too many were written between.
    fn counter(self, zxid: i64) -> Option<u64> {
        let distance = u64::try_from(zxid.checked_sub(self.since)?).ok()?;
        let same_reign = zxid >> 32 == self.since >> 32;
        (same_reign && 0 < distance && distance <= BLOCK).then(|| self.base + distance)
    }
}

/// What the ledger says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// First the oldest; the last one is in force.
    entries: Vec<Entry>,
    version: i32,
    /// When it was written, by the clock of the servers.
    at: i64,
}

impl Ledger {
    /// Read the node. What nobody of us wrote counts as nothing, so that the clock alone decides.
    fn read(data: &[u8], stat: &Stat) -> Self {
        let text = std::str::from_utf8(data).unwrap_or("");
        let field = |it: &str, name: &str| it.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        let next = text.lines().find_map(|it| field(it, "next")?.parse().ok()).unwrap_or(0);
        let past = text.lines().filter_map(|it| field(it, "was"));
        let mut entries: Vec<Entry> = past.filter_map(|it| entry_of(&it)).collect();
        let clock = u64::try_from(stat.mtime).unwrap_or(0).saturating_mul(PER_MILLISECOND).min(CLOCK_MAX);
        entries.push(Entry { since: stat.mzxid, base: clock.max(next) });
        Ledger { entries, version: stat.version, at: stat.mtime }
    }

    /// The text of a first ledger, with counters above `floor`.
    fn first(floor: u64) -> String {
        format!("lockkeeper=1\nnext={}\n", floor.saturating_add(1))
    }

    /// The largest counter that it can give.
    fn reach(&self) -> u64 {
        self.entries.last().map_or(0, |it| it.base + BLOCK)
    }

    /// The text that follows on this one, with counters above all of it and above `floor`.
    fn after(&self, floor: u64) -> String {
        let mut text = Ledger::first(self.reach().max(floor));
        for it in self.entries.iter().rev().take(PAST_MAX).rev() {
            let _ = writeln!(text, "was={:x}:{}", it.since, it.base);
        }
        text
    }

    /// The counter that a write was given, for people; `None` if it was given none, or that is no longer known.
    pub(crate) fn counter(&self, zxid: i64) -> Option<u64> {
        let entry = self.entries.iter().rev().find(|it| it.since < zxid)?;
        entry.counter(zxid)
    }

    /// The counter to give to a write just now, by the entry in force. An old one numbers nothing.
    pub(crate) fn counter_now(&self, written: Written) -> Option<u64> {
        let is_old = OLD_MILLISECONDS < written.at.saturating_sub(self.at);
        self.entries.last().filter(|_| !is_old)?.counter(written.zxid)
    }
}

fn entry_of(text: &str) -> Option<Entry> {
    let (since, base) = text.split_once(':')?;
    let base = base.parse().ok().filter(|it| *it <= COUNTER_MAX)?;
    Some(Entry { since: i64::from_str_radix(since, 16).ok()?, base })
}

/// The ledger as a session last read it, and a watch that tells when that is no longer true. The store tells of a
/// change before it answers any write that came after it, so as long as the watch is silent what was read is right.
#[derive(Debug)]
pub(crate) struct Known {
    ledger: Ledger,
    watch: Watch,
}

impl Store {
    fn ledger(&self) -> String {
        format!("{}/{LEDGER}", self.options.path)
    }

    /// The counter of a write of ours, which must be above `floor`: what this process had seen before it wrote.
    /// `None` if the write cannot be numbered; then another one can.
    pub(crate) async fn number(
        &self,
        session: &Session,
        written: Written,
        floor: u64,
    ) -> Result<Option<u64>> {
        if let Some(counter) = session.counter(written).filter(|it| (floor + 1..=COUNTER_MAX).contains(it)) {
            return Ok(Some(counter));
        }
        for _ in 0..TRIES_MAX {
            let ledger = self.read_ledger(session, floor).await?;
            match ledger.counter_now(written) {
                Some(counter) if COUNTER_MAX < counter => {
                    let text = format!(
                        "the counters of fences are used up; if nothing relies on earlier fences, delete the node {}",
                        self.ledger()
                    );
                    return Err(Fault::permanent(NAME, DOING, text));
                }
                Some(counter) if floor < counter => return Ok(Some(counter)),
                // Written since: what we wrote before that is out of its reach, or below what we have seen.
                _ if ledger.entries.last().is_some_and(|it| written.zxid < it.since) => return Ok(None),
                // An election, a block used up, an old ledger, or data that went back behind what we have seen.
                _ => self.write_ledger(session, &ledger, floor).await?,
            }
        }
        Err(Fault::transient(NAME, DOING, "the ledger of fences changes faster than it can be read"))
    }

    async fn write_ledger(&self, session: &Session, ledger: &Ledger, floor: u64) -> Result<()> {
        let (path, text) = (self.ledger(), ledger.after(floor));
        let written = session.client.set_data(&path, text.as_bytes(), Some(ledger.version));
        match self.in_time(DOING, written).await? {
            // Another one may have been quicker, which is as good.
            Ok(_) | Err(Error::BadVersion | Error::NoNode) => session.forget_ledger(),
            Err(error) => return Err(note(session, error)),
        }
        Ok(())
    }

    /// What the ledger says, for people: none is made, and one that we may not read is none.
    pub(crate) async fn peek_ledger(&self, session: &Session) -> Result<Option<Ledger>> {
        match self.in_time(DOING, session.client.get_data(&self.ledger())).await? {
            Ok((data, stat)) => Ok(Some(Ledger::read(&data, &stat))),
            Err(Error::NoNode | Error::NoAuth) => Ok(None),
            Err(error) => Err(note(session, error)),
        }
    }

    /// What the ledger says; one is made if there is none.
    async fn read_ledger(&self, session: &Session, floor: u64) -> Result<Ledger> {
        if let Some(ledger) = session.ledger() {
            return Ok(ledger);
        }
        let path = self.ledger();
        for _ in 0..TRIES_MAX {
            match self.in_time(DOING, session.client.get_and_watch_data(&path)).await? {
                Ok((data, stat, watcher)) => {
                    let ledger = Ledger::read(&data, &stat);
                    self.reach(ledger.reach());
                    let watch = Watch::unheard(watcher);
                    session.keep_ledger(Known { ledger: ledger.clone(), watch });
                    return Ok(ledger);
                }
                Err(Error::NoNode) => {
                    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
                    // Somebody removed it, or all data are lost; others may have been given more than we.
                    let text = Ledger::first(self.reach(floor));
                    let made = session.client.create(&path, text.as_bytes(), &mode);
                    match self.in_time(DOING, made).await? {
                        Ok(_) | Err(Error::NodeExists) => {}
                        Err(error) => return Err(note(session, error)),
                    }
                }
                Err(error) => return Err(note(session, error)),
            }
        }
        Err(Fault::transient(NAME, DOING, "the ledger of fences is made and removed while we look"))
    }
}

/// A failed call as a fault, with the end of the session noted.
fn note(session: &Session, error: Error) -> Fault {
    if fault::is_session_over(&error) {
        session.proof.lose();
    }
    fault::from_error(DOING, error)
}

impl Known {
    /// What was read, unless it has changed since.
    pub(crate) fn if_true(&mut self) -> Option<&Ledger> {
        (!self.watch.has_told()).then_some(&self.ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(mzxid: i64, mtime: i64, version: i32) -> Stat {
        Stat { mzxid, mtime, version, ..crate::line::tests::folder(0, 0) }
    }

    fn reign(epoch: i64, count: i64) -> i64 {
        epoch << 32 | count
    }

    #[test]
    fn counters_grow_with_writes_and_end_with_the_reign_or_the_block() {
        let ledger = Ledger::read(b"next=1000", &stat(reign(3, 50), 1, 0));
        assert_eq!(ledger.counter(reign(3, 51)), Some(1001));
        assert_eq!(ledger.counter(reign(3, 60)), Some(1010));
        let block = i64::try_from(BLOCK).unwrap();
        assert_eq!(ledger.counter(reign(3, 50 + block)), Some(1000 + BLOCK));
        for beyond in [reign(3, 50), reign(3, 7), reign(3, 51 + block), reign(4, 51)] {
            assert_eq!(ledger.counter(beyond), None);
        }
    }

    #[test]
    fn a_new_entry_is_above_all_that_the_last_could_give_and_above_the_floor() {
        let old = Ledger::read(b"next=1000", &stat(reign(3, 50), 1, 0));
        let largest = old.counter(reign(3, 50 + i64::try_from(BLOCK).unwrap())).unwrap();
        let new = Ledger::read(old.after(0).as_bytes(), &stat(reign(4, 9), 1, 1));
        assert!(largest < new.counter(reign(4, 10)).unwrap());
        assert_eq!(new.counter(reign(3, 60)), old.counter(reign(3, 60)), "what was numbered stays so");
        let floor = largest * 1000;
        let new = Ledger::read(old.after(floor).as_bytes(), &stat(reign(4, 9), 1, 1));
        assert!(floor < new.counter(reign(4, 10)).unwrap());
        assert!(floor < Ledger::read(Ledger::first(floor).as_bytes(), &stat(1, 1, 0)).counter(2).unwrap());
    }

    #[test]
    fn the_clock_of_the_servers_is_a_floor_within_reason() {
        let (at, later) = (1_794_000_000_000, 1_794_000_001_000);
        // A whole second of writes at more than any ensemble can do.
        let old = Ledger::read(b"next=1", &stat(5, at, 0));
        let wiped = Ledger::read(b"next=1", &stat(2, later, 0));
        assert!(old.counter(5 + 60_000).unwrap() < wiped.counter(3).unwrap());
        let absurd = Ledger::read(b"next=1", &stat(5, i64::MAX, 0));
        assert!(absurd.counter(6).unwrap() < COUNTER_MAX / 5 * 4);
        assert!(Ledger::read(b"\xff", &stat(5, -1, 0)).counter(6).is_some(), "what is not ours does no harm");
    }

    #[test]
    fn an_old_ledger_numbers_nothing_new() {
        let ledger = Ledger::read(b"next=1000", &stat(5, 1_000_000, 0));
        let at = |at| ledger.counter_now(Written { zxid: 6, at });
        // A clock that went back harms nothing.
        assert!([1, 1_000_000, 1_600_000].into_iter().all(|it| at(it) == ledger.counter(6)));
        assert_eq!(at(1_600_001), None);
        let new = Ledger::read(ledger.after(0).as_bytes(), &stat(7, 1_600_002, 1));
        assert_eq!(
            new.counter_now(Written { zxid: 6, at: 1_600_001 }),
            None,
            "not by what was in force before"
        );
        assert_eq!(new.counter(6), ledger.counter(6), "what was numbered is known to people");
    }

    #[test]
    fn the_past_is_kept_within_bounds() {
        let mut ledger = Ledger::read(b"", &stat(reign(1, 1), 1, 0));
        for epoch in 2..100 {
            let text = ledger.after(0);
            assert!(text.len() < 1024, "{text}");
            ledger = Ledger::read(text.as_bytes(), &stat(reign(epoch, 1), 1, 0));
        }
        assert_eq!(ledger.entries.len(), PAST_MAX + 1);
        assert!(ledger.counter(reign(98, 2)) < ledger.counter(reign(99, 2)));
    }
}
