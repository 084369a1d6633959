//! The line of one key as the file keeps it, and the one rule of who enters.

use lockkeeper_core::{Claim, ClaimId, Key, Moment, fence};
use rusqlite::{Connection, OptionalExtension, params};

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

/// All claims of one key that have not expired, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) standings: Vec<Standing>,
    /// Rows of expired claims were seen; they count for nothing, but somebody should delete them.
    pub(crate) has_expired: bool,
}

impl Line {
    /// Read the line as it stands at `now`.
    pub(crate) fn read(connection: &Connection, key: &Key, now: Moment) -> Result<Self> {
        let mut read = connection.prepare_cached(
            "SELECT seq, id, counter, expires, weight, capacity FROM lockkeeper_claim WHERE key = ?1 ORDER BY seq",
        )?;
        let mut rows = read.query(params![key.as_str()])?;
        let mut line = Line::default();
        while let Some(row) = rows.next()? {
            let counter = row.get(2)?;
            let standing = Standing {
                seq: row.get(0)?,
                id: ClaimId::from_bytes(row.get(1)?),
                counter,
                held: counter != 0,
                expires: moment(row.get(3)?),
                weight: row.get(4)?,
                capacity: row.get(5)?,
            };
            if now < standing.expires {
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

    /// Where this claim stands: how many are before it.
    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.standings.iter().position(|it| it.id == id)
    }

    /// Somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.standings.iter().any(|it| !it.held)
    }

    /// When the first of those before `position` expires, if none of them is heard of again.
    pub(crate) fn next_expiry(&self, position: usize) -> Moment {
        let before = self.standings.iter().take(position);
        before.map(|it| it.expires).min().unwrap_or(Moment::NEVER)
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
}

impl Tx<'_> {
    /// The line of a key, with the expired forgotten for good.
    pub(crate) fn line(&mut self, key: &Key) -> Result<Line> {
        let line = Line::read(self.connection, key, self.now)?;
        if line.has_expired {
            let forget = "DELETE FROM lockkeeper_claim WHERE key = ?1 AND expires <= ?2";
            let mut forget = self.connection.prepare_cached(forget)?;
            forget.execute(params![key.as_str(), nanos(self.now)])?;
            self.touch(key);
        }
        Ok(line)
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
            it.counter = self.next_number()?;
            let enter = "UPDATE lockkeeper_claim SET counter = ?3, since = ?4 WHERE key = ?1 AND seq = ?2";
            let mut enter = self.connection.prepare_cached(enter)?;
            enter.execute(params![key.as_str(), it.seq, it.counter, nanos(self.now)])?;
            self.touch(key);
        }
        Ok(())
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
