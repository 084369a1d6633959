//! The line of one key as the file keeps it, and the one rule of who enters.

use std::time::Duration;

use lockkeeper_core::{Claim, ClaimId, Key, Moment, fence};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::fault::{Result, Trouble};
use crate::schema;

/// One claim in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) seq: i64,
    pub(crate) id: ClaimId,
    /// The grant's number; 0 if it waits.
    pub(crate) counter: i64,
    pub(crate) held: bool,
    pub(crate) expires: Moment,
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
}

impl Standing {
    /// Nobody fits into the room beside it.
    fn is_exclusive(&self) -> bool {
        self.capacity <= self.weight
    }
}

/// How many of those who wait are read. One pass lets in at most one of them; the next one is read too, to know
/// whether somebody waits still.
const WAITING_READ: usize = 2;

/// The head of a line: all claims that hold and the first that wait, without the expired, in the order in which
/// they came. How many wait behind them makes no difference to what it costs to read.
///
/// Whoever holds came before everybody who waits, because nobody overtakes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) standings: Vec<Standing>,
    /// Rows of expired claims were seen; they count for nothing, but somebody should delete them.
    pub(crate) has_expired: bool,
}

const COLUMNS: &str = "seq, id, counter, expires, weight, capacity";

fn standing(row: &Row<'_>) -> rusqlite::Result<Standing> {
    let counter = row.get(2)?;
    Ok(Standing {
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
        let (mut line, mut waiting) = (Line::default(), 0);
        while waiting < WAITING_READ
            && let Some(row) = rows.next()?
        {
            let standing = standing(row)?;
            if now < standing.expires {
                waiting += usize::from(!standing.held);
                line.standings.push(standing);
            } else {
                line.has_expired = true;
            }
        }
        Ok(line)
    }

    /// Let in whoever fits, first come first served, nobody past the first who does not fit. Answers the
    /// positions of those who came in.
    ///
    /// The room is as large as the smallest capacity that anybody in it, or about to enter, believes in.
    ///
    /// Anybody may let in a claim that will be alone. One that shares the room enters only when it is `asking`
    /// itself: so those who enter together are told in the order of their numbers.
    pub(crate) fn admit(&mut self, asking: Option<usize>) -> Vec<usize> {
        let held = self.standings.iter().filter(|it| it.held);
        let mut in_use: u64 = held.clone().map(|it| u64::from(it.weight)).sum();
        let mut capacity = held.map(|it| it.capacity).min().unwrap_or(u32::MAX);
        let mut entered = Vec::new();
        for (at, next) in self.standings.iter_mut().enumerate().filter(|(_, it)| !it.held) {
            capacity = capacity.min(next.capacity);
            in_use += u64::from(next.weight);
            let may_enter = next.is_exclusive() || asking == Some(at);
            if u64::from(capacity) < in_use || !may_enter {
                break;
            }
            next.held = true;
            entered.push(at);
        }
        entered
    }

    /// The first who waits, if it would come in by asking. Whoever is alone in the room need not ask.
    fn may_ask(&self) -> Option<ClaimId> {
        let at = self.standings.iter().position(|it| !it.held)?;
        let is_in = self.clone().admit(Some(at)).contains(&at);
        is_in.then(|| self.standings[at].id)
    }

    /// Where this claim stands, if it stands in the head: how many are before it.
    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.standings.iter().position(|it| it.id == id)
    }

    /// How many hold.
    pub(crate) fn holders(&self) -> u64 {
        self.standings.iter().map(|it| u64::from(it.held)).sum()
    }

    /// Somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.standings.iter().any(|it| !it.held)
    }

    /// When the first of those who hold expires, if none of them is heard of again.
    pub(crate) fn next_expiry(&self) -> Moment {
        let held = self.standings.iter().filter(|it| it.held);
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
    pub(crate) fn find(self, connection: &Connection, key: &Key) -> Result<Option<Standing>> {
        let mut find = connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM lockkeeper_claim WHERE key = ?1 AND seq = ?2 AND id = ?3"
        ))?;
        // The number alone is not enough: the path may mean another file by now.
        let found = find.query_row(params![key.as_str(), self.seq, self.id.as_bytes()], standing);
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

/// How many claims a line has, and where a certain one stands if it is among them. Claims that were answered find
/// themselves faster; this is for those who may not know the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    pub(crate) count: u64,
    pub(crate) spot: Option<Spot>,
    /// The largest number seen: later ones have larger ones.
    seen: i64,
}

impl Scan {
    /// Read what came since the last time. Takes no lock.
    ///
    /// Those who left meanwhile stay counted, and a claim that was found is to be looked for where it was.
    pub(crate) fn go_on(self, connection: &Connection, claim: &Claim, now: Moment) -> Result<Self> {
        let mut scan = connection.prepare_cached(
            "SELECT count(*) FILTER (WHERE ?3 < expires), max(seq) FILTER (WHERE id = ?2 AND ?3 < expires), max(seq) \
             FROM lockkeeper_claim WHERE key = ?1 AND ?4 < seq",
        )?;
        let (key, id) = (claim.key.as_str(), claim.id);
        Ok(scan.query_row(params![key, id.as_bytes(), nanos(now), self.seen], |row| {
            let (found, last): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
            let spot = found.map(|seq| Spot { id, seq }).or(self.spot);
            let count = self.count + count_of(row.get(0)?);
            Ok(Scan { count, spot, seen: last.unwrap_or(self.seen) })
        })?)
    }
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
    /// Those who were let in, or would be if they asked: they should hear of it.
    pub(crate) called: &'a mut Vec<ClaimId>,
    /// Somebody was let in: a grant must be on the disk before anybody hears of it. Nothing else must, because a
    /// power cut voids all claims.
    pub(crate) has_granted: bool,
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

    /// Let in whoever fits, and write it down.
    pub(crate) fn settle(&mut self, key: &Key, line: &mut Line, asking: Option<usize>) -> Result<()> {
        let entered = line.admit(asking);
        self.write_entered(key, line, &entered)
    }

    /// Write down who entered.
    pub(crate) fn write_entered(&mut self, key: &Key, line: &mut Line, entered: &[usize]) -> Result<()> {
        for at in entered {
            let it = &mut line.standings[*at];
            it.counter = self.next_grant()?;
            let enter = "UPDATE lockkeeper_claim SET counter = ?3, since = ?4 WHERE key = ?1 AND seq = ?2";
            let mut enter = self.connection.prepare_cached(enter)?;
            enter.execute(params![key.as_str(), it.seq, it.counter, nanos(self.now)])?;
            self.called.push(it.id);
            self.touch(key);
        }
        self.called.extend(line.may_ask());
        Ok(())
    }

    /// The number of a grant.
    pub(crate) fn next_grant(&mut self) -> Result<i64> {
        self.has_granted = true;
        self.next_number()
    }

    /// The next number. Refuses if the file now belongs to another boot or another version.
    pub(crate) fn next_number(&mut self) -> Result<i64> {
        let next = "UPDATE lockkeeper_store SET counter = counter + 1 \
                    WHERE one = 1 AND boot = ?1 AND version = ?2 RETURNING counter";
        let mut next = self.connection.prepare_cached(next)?;
        let number: Option<i64> =
            next.query_row(params![self.boot, schema::VERSION], |row| row.get(0)).optional()?;
        let Some(number) = number else {
            return Err(self.why_no_number());
        };
        match u64::try_from(number) {
            Ok(counter) if counter <= fence::COUNTER_MAX => Ok(number),
            _ => Err(Trouble::permanent(
                "the file's counter has left its range; somebody changed it: stop its users and move it away",
            )),
        }
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

    /// Keep a place for another ttl. Whoever was let in or forgotten meanwhile has none.
    pub(crate) fn keep(&mut self, key: &Key, spot: Spot, ttl: Duration) -> Result<()> {
        let keep = "UPDATE lockkeeper_claim SET expires = ?4 \
                    WHERE key = ?1 AND seq = ?2 AND id = ?3 AND counter = 0 AND ?5 < expires";
        let mut keep = self.connection.prepare_cached(keep)?;
        let (expires, now) = (nanos(self.now.after(ttl)), nanos(self.now));
        keep.execute(params![key.as_str(), spot.seq, spot.id.as_bytes(), expires, now])?;
        Ok(())
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
mod tests {
    use super::*;

    const MAX: u32 = u32::MAX;

    fn line(claims: &[(bool, u32, u32)]) -> Line {
        let standings = claims.iter().zip(1..).map(|(&(held, weight, capacity), seq)| Standing {
            seq,
            id: ClaimId::from_bytes([u8::try_from(seq).unwrap(); 16]),
            counter: 0,
            held,
            expires: Moment::NEVER,
            weight,
            capacity,
        });
        Line { standings: standings.collect(), has_expired: false }
    }

    /// Who comes in if everybody asks, again and again, in turn.
    fn admitted(claims: &[(bool, u32, u32)]) -> Vec<usize> {
        let mut line = line(claims);
        (0..claims.len()).flat_map(|at| line.admit(Some(at))).collect()
    }

    #[test]
    fn a_mutex_admits_the_head_of_an_empty_room_only() {
        assert_eq!(admitted(&[(false, 1, 1), (false, 1, 1)]), [0]);
        assert_eq!(admitted(&[(true, 1, 1), (false, 1, 1)]), [0; 0]);
    }

    #[test]
    fn a_semaphore_admits_until_the_room_is_full() {
        assert_eq!(admitted(&[(false, 1, 3), (false, 1, 3), (false, 1, 3), (false, 1, 3)]), [0, 1, 2]);
        assert_eq!(admitted(&[(true, 2, 3), (false, 2, 3), (false, 1, 3)]), [0; 0], "nobody overtakes");
    }

    #[test]
    fn readers_enter_together_and_a_writer_alone() {
        assert_eq!(admitted(&[(false, 1, MAX), (false, 1, MAX), (false, MAX, MAX)]), [0, 1]);
        assert_eq!(admitted(&[(true, 1, MAX), (false, MAX, MAX), (false, 1, MAX)]), [0; 0]);
        assert_eq!(admitted(&[(false, MAX, MAX), (false, 1, MAX)]), [0]);
    }

    #[test]
    fn only_who_will_be_alone_is_let_in_without_asking() {
        assert_eq!(line(&[(false, 1, 1), (false, 1, 1)]).admit(None), [0]);
        assert_eq!(line(&[(false, MAX, MAX), (false, 1, MAX)]).admit(Some(1)), [0]);
        assert_eq!(line(&[(false, 1, 2), (false, 1, 2)]).admit(None), [0; 0]);
        assert_eq!(line(&[(false, 1, 2), (false, 1, 2)]).admit(Some(1)), [0; 0], "the head has not asked");
        assert_eq!(line(&[(true, 1, 2), (false, 1, 2)]).admit(Some(1)), [1]);
    }

    #[test]
    fn where_claims_disagree_the_smallest_capacity_in_the_room_counts() {
        assert_eq!(admitted(&[(true, 1, 1), (false, 1, 5)]), [0; 0]);
        assert_eq!(admitted(&[(true, 1, 5), (false, 1, 1)]), [0; 0]);
        assert_eq!(admitted(&[(false, 3, 5), (false, 1, 1)]), [0], "those who wait do not shrink the room");
    }

    #[test]
    fn every_small_line_keeps_the_rule() {
        let claims: Vec<(u32, u32)> = vec![(1, 1), (1, 2), (2, 2), (1, 3), (3, 3)];
        let count = claims.len();
        let is_valid = |line: &Line| {
            let held: Vec<_> = line.standings.iter().filter(|it| it.held).collect();
            let room = held.iter().map(|it| it.capacity).min().unwrap_or(MAX);
            held.iter().map(|it| it.weight).sum::<u32>() <= room
        };
        for code in 0..count.pow(4) * 16 {
            let pick = |at: u32| claims[code / 16 / count.pow(at) % count];
            let all: Vec<_> = (0..4).map(|at| (code >> at & 1 == 1, pick(at).0, pick(at).1)).collect();
            for asking in [None, Some(0), Some(1), Some(2), Some(3)] {
                let mut line = line(&all);
                if !is_valid(&line) {
                    continue;
                }
                let waiting: Vec<_> = (0..4).filter(|at| !line.standings[*at].held).collect();
                let entered = line.admit(asking);
                assert!(is_valid(&line), "{line:?}");
                assert!(waiting.starts_with(&entered), "{line:?}");
                assert!(line.admit(asking).is_empty(), "one pass is enough: {line:?}");
            }
        }
    }
}
