//! The line of one key as the file keeps it, and the one rule of who enters.

use std::time::Duration;

use lockkeeper_core::{Claim, ClaimId, Key, Load, Moment, fence};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::fault::{Result, Trouble};
use crate::schema;

/// One claim in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) seq: i64,
    pub(crate) id: ClaimId,
    /// The grant's number; 0 if it waits.
    pub(crate) counter: i64,
    pub(crate) held: bool,
    pub(crate) expires: Moment,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
}

/// What is in a room.
#[derive(Clone, Copy, Debug)]
struct Room {
    in_use: u64,
    /// As large as the smallest capacity that anybody in it, or about to enter, believes in.
    capacity: u32,
}

impl Room {
    const EMPTY: Room = Room { in_use: 0, capacity: u32::MAX };

    fn with(self, entry: &Entry) -> Self {
        let in_use = self.in_use + u64::from(entry.weight);
        Room { in_use, capacity: self.capacity.min(entry.capacity) }
    }

    fn is_enough(self) -> bool {
        self.in_use <= u64::from(self.capacity)
    }
}

/// The head of a line: all claims that hold, those who wait and fit beside them, and the first who does not fit; without
/// the expired, in the order in which they came. How many wait behind them makes no difference to what it costs to read.
///
/// Whoever holds came before everybody who waits, because nobody overtakes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) entries: Vec<Entry>,
    /// Rows of expired claims were seen; they count for nothing, but somebody should delete them.
    pub(crate) has_expired: bool,
    /// There are no others: the head is the whole line.
    pub(crate) is_whole: bool,
}

const COLUMNS: &str = "seq, id, counter, expires, weight, capacity";

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let counter = row.get(2)?;
    Ok(Entry {
        seq: row.get(0)?,
        id: ClaimId::from_bytes(row.get(1)?),
        counter,
        held: counter != 0,
        expires: moment(row.get(3)?),
        weight: row.get(4)?,
        capacity: row.get(5)?,
    })
}

impl Line {
    /// Read the head of the line as it stands at `now`.
    pub(crate) fn read(connection: &Connection, key: &Key, now: Moment) -> Result<Self> {
        let mut read = connection
            .prepare_cached(&format!("SELECT {COLUMNS} FROM lockkeeper_claim WHERE key = ?1 ORDER BY seq"))?;
        let mut rows = read.query(params![key.as_str()])?;
        let (mut line, mut room) = (Line::default(), Room::EMPTY);
        while let Some(row) = rows.next()? {
            let entry = entry(row)?;
            if entry.expires <= now {
                line.has_expired = true;
                continue;
            }
            room = room.with(&entry);
            line.entries.push(entry);
            if !entry.held && !room.is_enough() {
                return Ok(line);
            }
        }
        line.is_whole = true;
        Ok(line)
    }

    /// Whether somebody waits, as the last of the line tells: whoever waits stands behind all who hold, however many they are.
    pub(crate) fn wanted(connection: &Connection, key: &Key, now: Moment) -> Result<bool> {
        let mut last = connection.prepare_cached(
            "SELECT counter = 0 FROM lockkeeper_claim WHERE key = ?1 AND ?2 < expires ORDER BY seq DESC LIMIT 1",
        )?;
        Ok(last.query_row(params![key.as_str(), nanos(now)], |row| row.get(0)).optional()?.unwrap_or(false))
    }

    /// Let in all who fit, first come first served, nobody past the first who does not fit. Answers the
    /// positions of those who came in.
    ///
    /// Whoever sees that there is room lets in all of them: nobody waits for another one's turn.
    pub(crate) fn admit(&mut self) -> Vec<usize> {
        let held = self.entries.iter().filter(|it| it.held);
        let mut room = held.fold(Room::EMPTY, Room::with);
        let mut entered = Vec::new();
        for (at, next) in self.entries.iter_mut().enumerate().filter(|(_, it)| !it.held) {
            room = room.with(next);
            if !room.is_enough() {
                break;
            }
            next.held = true;
            entered.push(at);
        }
        entered
    }

    /// Whether a claim that waits in it would come in if somebody wrote.
    pub(crate) fn has_room_for(mut self, id: ClaimId) -> bool {
        self.admit();
        self.entries.iter().any(|it| it.id == id && it.held)
    }

    /// Where this claim stands, if it stands in the head: how many are before it.
    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries.iter().position(|it| it.id == id)
    }

    /// How many hold.
    pub(crate) fn holders(&self) -> u64 {
        self.entries.iter().map(|it| u64::from(it.held)).sum()
    }

    /// Somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.entries.iter().any(|it| !it.held)
    }

    /// When the first of those who hold expires, if none of them is heard of again.
    pub(crate) fn next_expiry(&self) -> Moment {
        let held = self.entries.iter().filter(|it| it.held);
        held.map(|it| it.expires).min().unwrap_or(Moment::NEVER)
    }
}

/// Where a claim is to be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) id: ClaimId,
    pub(crate) seq: i64,
}

impl Spot {
    /// The claim there. Takes no lock.
    pub(crate) fn find(self, connection: &Connection, key: &Key) -> Result<Option<Entry>> {
        let mut find = connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM lockkeeper_claim WHERE key = ?1 AND seq = ?2 AND id = ?3"
        ))?;
        // The number alone is not enough: the path may mean another file by now.
        let found = find.query_row(params![key.as_str(), self.seq, self.id.as_bytes()], entry);
        Ok(found.optional()?)
    }

    /// Who stands before it. Takes no lock.
    pub(crate) fn before(self, connection: &Connection, key: &Key, now: Moment) -> Result<Before> {
        let mut count = connection.prepare_cached(
            "SELECT count(*), count(*) FILTER (WHERE counter = 0), max(expires) FILTER (WHERE counter = 0) \
             FROM lockkeeper_claim WHERE key = ?1 AND seq < ?2 AND ?3 < expires",
        )?;
        Ok(count.query_row(params![key.as_str(), self.seq, nanos(now)], |row| {
            let last_expiry = row.get::<_, Option<i64>>(2)?.map_or(Moment::NEVER, moment);
            Ok(Before { all: count_of(row.get(0)?), waiting: count_of(row.get(1)?), last_expiry })
        })?)
    }
}

/// Who stands before a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) all: u64,
    pub(crate) waiting: u64,
    /// When all of them who wait have expired, if none of them is heard of again.
    pub(crate) last_expiry: Moment,
}

fn count_of(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The most claims that are counted for one who has just come. It wants to know about how long the line is, and the others
/// wait while it counts.
const COUNTED: u32 = 32;

/// How many claims a line has, and where a certain one stands if it is among them. Claims that were answered find
/// themselves faster; this is for those who may not know the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    count: u64,
    /// Of a long line only the first are counted.
    is_long: bool,
    pub(crate) spot: Option<Spot>,
    /// The largest number seen: later ones have larger ones.
    seen: i64,
}

impl Scan {
    /// How many claims the line has, of a long one at least.
    pub(crate) fn at_least(&self) -> u64 {
        self.count
    }

    /// How many claims the line has, if they were all counted.
    pub(crate) fn count(&self) -> Option<u64> {
        (!self.is_long).then_some(self.count)
    }

    /// Read what came since the last time. Takes no lock.
    ///
    /// Those who left meanwhile stay counted, and a claim that was found is to be looked for where it was. One that
    /// never asked before (`is_new`) is not looked for, and need not see the end of the line.
    pub(crate) fn go_on(
        self,
        connection: &Connection,
        claim: &Claim,
        is_new: bool,
        now: Moment,
    ) -> Result<Self> {
        if self.is_long {
            return Ok(self);
        }
        let (key, id) = (claim.key.as_str(), claim.id);
        let (found, count, last): (Option<i64>, i64, Option<i64>) = if is_new {
            let mut scan = connection.prepare_cached(
                "SELECT NULL, count(*), max(seq) FROM (SELECT seq FROM lockkeeper_claim \
                 WHERE key = ?1 AND ?2 < seq AND ?3 < expires ORDER BY seq LIMIT ?4)",
            )?;
            scan.query_row(params![key, self.seen, nanos(now), COUNTED], three)?
        } else {
            let mut scan = connection.prepare_cached(
                "SELECT max(seq) FILTER (WHERE id = ?4), count(*), max(seq) FROM lockkeeper_claim \
                 WHERE key = ?1 AND ?2 < seq AND ?3 < expires",
            )?;
            scan.query_row(params![key, self.seen, nanos(now), id.as_bytes()], three)?
        };
        let (spot, count) = (found.map(|seq| Spot { id, seq }).or(self.spot), self.count + count_of(count));
        Ok(Scan {
            count,
            is_long: is_new && u64::from(COUNTED) <= count,
            spot,
            seen: last.unwrap_or(self.seen),
        })
    }

    /// The same, from a head that is the whole line.
    pub(crate) fn of(line: &Line, claim: &Claim) -> Self {
        let found = line.position(claim.id).map(|at| line.entries[at]);
        let spot = found.map(|it| Spot { id: it.id, seq: it.seq });
        Scan { count: line.entries.len() as u64, is_long: false, spot, seen: 0 }
    }
}

fn three<A: FromSql, B: FromSql, C: FromSql>(row: &Row<'_>) -> rusqlite::Result<(A, B, C)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

/// A write transaction under way.
#[derive(Debug)]
pub(crate) struct Tx<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) boot: &'a str,
    /// Read once the write lock was ours, so that no earlier transaction has a later time.
    pub(crate) now: Moment,
    /// Keys whose line moved; those of this process who watch them should look.
    pub(crate) touched: &'a mut Vec<Key>,
    /// Those who were let in, or hold what somebody begins to wait for, or lost it: they should hear of it.
    pub(crate) called: &'a mut Vec<ClaimId>,
    /// Somebody was let in: a grant must be on the disk before anybody hears of it. Nothing else must, because a
    /// power cut voids all claims. With `durability=normal` not even that must.
    pub(crate) has_granted: bool,
    /// Something was done that must outlive a power cut whatever was chosen: a memo, or the first number of a block.
    pub(crate) must_last: bool,
}

impl Tx<'_> {
    /// The head of a key's line, with the expired forgotten for good.
    pub(crate) fn line(&mut self, key: &Key) -> Result<Line> {
        let line = Line::read(self.connection, key, self.now)?;
        if line.has_expired {
            self.forget_expired(key)?;
        }
        Ok(line)
    }

    /// Delete the expired of a key.
    pub(crate) fn forget_expired(&mut self, key: &Key) -> Result<()> {
        let forget = "DELETE FROM lockkeeper_claim WHERE key = ?1 AND expires <= ?2";
        let mut forget = self.connection.prepare_cached(forget)?;
        forget.execute(params![key.as_str(), nanos(self.now)])?;
        self.touch(key);
        Ok(())
    }

    /// Whether somebody inside keeps its locks, so that this one may be idle. For those who only try.
    pub(crate) fn may_be_idle(&self, key: &Key) -> Result<bool> {
        let mut kept = self.connection.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM lockkeeper_claim \
             WHERE key = ?1 AND counter <> 0 AND 0 < instr(note, 'lockkeeper.warm'))",
        )?;
        Ok(kept.query_row([key.as_str()], |row| row.get(0))?)
    }

    /// Let in all who fit, and write it down.
    pub(crate) fn settle(&mut self, key: &Key, line: &mut Line) -> Result<()> {
        let entered = line.admit();
        self.write_entered(key, line, &entered)
    }

    /// Write down who entered. Their numbers are in the order in which they came.
    pub(crate) fn write_entered(&mut self, key: &Key, line: &mut Line, entered: &[usize]) -> Result<()> {
        if entered.is_empty() {
            return Ok(());
        }
        let first = self.next_grants(entered.len())?;
        for (at, counter) in entered.iter().zip(first..) {
            let it = &mut line.entries[*at];
            it.counter = counter;
            let enter = "UPDATE lockkeeper_claim SET counter = ?3, since = ?4 WHERE key = ?1 AND seq = ?2";
            let mut enter = self.connection.prepare_cached(enter)?;
            enter.execute(params![key.as_str(), it.seq, it.counter, nanos(self.now)])?;
            self.called.push(it.id);
        }
        self.touch(key);
        Ok(())
    }

    /// The number of the first of so many grants.
    pub(crate) fn next_grants(&mut self, count: usize) -> Result<i64> {
        self.has_granted = true;
        self.next_numbers(count)
    }

    /// The first of the next numbers, of which so many are used. Refuses if the file now belongs to another boot or another
    /// version.
    pub(crate) fn next_numbers(&mut self, count: usize) -> Result<i64> {
        // Not by `RETURNING`: with it SQLite keeps a journal of the statement.
        let last = "SELECT counter FROM lockkeeper_store WHERE one = 1 AND boot = ?1 AND version = ?2";
        let mut last = self.connection.prepare_cached(last)?;
        let last: Option<i64> =
            last.query_row(params![self.boot, schema::VERSION], |row| row.get(0)).optional()?;
        let Some(last) = last else {
            return Err(self.why_no_number());
        };
        let next = i64::try_from(count).ok().and_then(|it| last.checked_add(it));
        let in_range = |it: &i64| 0 <= last && it.unsigned_abs() <= fence::COUNTER_MAX;
        let Some(next) = next.filter(in_range) else {
            return Err(Trouble::permanent(
                "the file's counter has left its range; somebody changed it: stop its users and move it away",
            ));
        };
        let write = "UPDATE lockkeeper_store SET counter = ?1 WHERE one = 1";
        self.connection.prepare_cached(write)?.execute(params![next])?;
        // Whatever number a power cut makes the file forget is of a block that it knows.
        self.must_last |= schema::block(last) != schema::block(next);
        Ok(last + 1)
    }

    fn why_no_number(&self) -> Trouble {
        match schema::is_ready(self.connection, self.boot) {
            Err(trouble) => trouble,
            Ok(_) => Trouble::permanent(
                "the file is now used by another host or under another boot id; \
                 a lock file serves one host only: give each host its own, or use a server",
            ),
        }
    }

    /// Write a new claim down.
    pub(crate) fn insert(&mut self, claim: &Claim, number: i64, held: bool) -> Result<()> {
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO lockkeeper_claim VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?;
        let label = &claim.label;
        insert.execute(params![
            claim.key.as_str(),
            number,
            claim.id.as_bytes(),
            if held { number } else { 0 },
            nanos(self.now.after(claim.ttl)),
            nanos(self.now),
            claim.load.weight,
            claim.load.capacity,
            label.host,
            label.pid,
            label.owner,
            label.note,
        ])?;
        if !held {
            self.touch(&claim.key);
        }
        Ok(())
    }

    /// Keep a claim for another ttl.
    pub(crate) fn extend(&mut self, claim: &Claim, seq: i64) -> Result<()> {
        let extend = "UPDATE lockkeeper_claim SET expires = ?3 WHERE key = ?1 AND seq = ?2";
        let mut extend = self.connection.prepare_cached(extend)?;
        extend.execute(params![claim.key.as_str(), seq, nanos(self.now.after(claim.ttl))])?;
        Ok(())
    }

    /// Let a claim weigh less.
    pub(crate) fn lower(&mut self, key: &Key, seq: i64, load: Load) -> Result<()> {
        let lower = "UPDATE lockkeeper_claim SET weight = ?3, capacity = ?4 WHERE key = ?1 AND seq = ?2";
        let mut lower = self.connection.prepare_cached(lower)?;
        lower.execute(params![key.as_str(), seq, load.weight, load.capacity])?;
        self.touch(key);
        Ok(())
    }

    /// Keep a place for another ttl. Whoever was let in or forgotten meanwhile has none.
    pub(crate) fn keep(&mut self, key: &Key, spot: Spot, ttl: Duration) -> Result<()> {
        let keep = "UPDATE lockkeeper_claim SET expires = ?4 \
                    WHERE key = ?1 AND seq = ?2 AND id = ?3 AND counter = 0 AND ?5 < expires";
        let mut keep = self.connection.prepare_cached(keep)?;
        let (expires, now) = (nanos(self.now.after(ttl)), nanos(self.now));
        keep.execute(params![key.as_str(), spot.seq, spot.id.as_bytes(), expires, now])?;
        Ok(())
    }

    /// Delete a claim where it should stand. Answers whether it stood there.
    pub(crate) fn remove_spot(&mut self, key: &Key, spot: Spot) -> Result<bool> {
        let remove = "DELETE FROM lockkeeper_claim WHERE key = ?1 AND seq = ?2 AND id = ?3";
        let mut remove = self.connection.prepare_cached(remove)?;
        let removed = remove.execute(params![key.as_str(), spot.seq, spot.id.as_bytes()])?;
        if removed != 0 {
            self.touch(key);
        }
        Ok(removed != 0)
    }

    /// Delete a claim, wherever in the line it stands.
    pub(crate) fn remove_id(&mut self, key: &Key, id: ClaimId) -> Result<()> {
        let remove = "DELETE FROM lockkeeper_claim WHERE key = ?1 AND id = ?2";
        let removed =
            self.connection.prepare_cached(remove)?.execute(params![key.as_str(), id.as_bytes()])?;
        if removed != 0 {
            self.touch(key);
        }
        Ok(())
    }

    /// Delete a claim.
    pub(crate) fn remove(&mut self, key: &Key, seq: i64) -> Result<()> {
        let remove = "DELETE FROM lockkeeper_claim WHERE key = ?1 AND seq = ?2";
        self.connection.prepare_cached(remove)?.execute(params![key.as_str(), seq])?;
        self.touch(key);
        Ok(())
    }

    fn touch(&mut self, key: &Key) {
        if self.touched.last() != Some(key) {
            self.touched.push(key.clone());
        }
    }
}

/// A moment as the file keeps it: good for 292 years after boot.
pub(crate) fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

/// A moment read back.
pub(crate) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests;
