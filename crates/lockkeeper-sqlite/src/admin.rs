//! The operator's view: who holds and who waits, breaking a lock, and the cleaner.

use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::{Listed, gather};
use lockkeeper_core::{Fence, Key, Label, Load, Moment, backend};
use rusqlite::{Connection, Row, params};

use crate::Sqlite;

use crate::doctor::Examine;
use crate::fault::Result;
use crate::line::{Tx, moment, nanos};
use crate::work::{Look, Verb};

impl Inspect for Sqlite {
    async fn list(&self, prefix: &str) -> backend::Result<Vec<LockInfo>> {
        self.worker.ask(List { prefix: prefix.to_owned() }).await
    }

    async fn show(&self, key: &Key) -> backend::Result<Option<LockInfo>> {
        self.worker.ask(Show(key.clone())).await
    }

    async fn break_lock(&self, key: &Key) -> backend::Result<Vec<Occupant>> {
        self.worker.ask(Break { key: key.clone(), only: None }).await
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> backend::Result<Broken> {
        let broken = self.worker.ask(Break { key: key.clone(), only: Some(fence) }).await?;
        Ok(broken.into_iter().next().map_or(Broken::Changed, Broken::Lost))
    }

    async fn doctor(&self) -> backend::Result<Vec<Finding>> {
        self.worker.ask(Examine(self.options().clone())).await
    }
}

/// The columns that [`read`] reads.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT key, seq, counter, expires, since, weight, host, pid, owner, note, capacity FROM lockkeeper_claim ",
            $rest
        )
    };
}

/// Somebody who holds or waits, and the number of its row.
struct Found {
    seq: i64,
    listed: Listed,
}

fn read(row: &Row<'_>, now: Moment) -> rusqlite::Result<Found> {
    let (seq, counter): (i64, i64) = (row.get(1)?, row.get(2)?);
    let (expires, since): (i64, i64) = (row.get(3)?, row.get(4)?);
    let label = Label::new(row.get::<_, String>(6)?, row.get(7)?, row.get(8)?, row.get(9)?);
    let occupant = Occupant::new(label, moment(expires) - now)
        .since(Some(now - moment(since)))
        .fence((counter != 0).then(|| Fence::of_grant(counter.unsigned_abs())))
        .load(Load::new(row.get(5)?, row.get(10)?));
    Ok(Found { seq, listed: Listed::new(row.get::<_, String>(0)?, counter != 0, occupant) })
}

/// One lock per name.
fn gathered(found: impl Iterator<Item = rusqlite::Result<Found>>) -> Result<Vec<LockInfo>> {
    let found = found.map(|it| it.map(|it| it.listed)).collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(gather(found))
}

#[derive(Debug)]
struct List {
    prefix: String,
}

impl List {
    fn all(&self, connection: &Connection, now: Moment) -> Result<Vec<LockInfo>> {
        let mut all = connection.prepare_cached(select!("WHERE ?1 < expires ORDER BY key, seq"))?;
        let found = all.query_map(params![nanos(now)], |row| read(row, now))?;
        // Byte by byte, here and not in SQL: `LIKE` folds case and has wildcards.
        gathered(found.filter(|it| it.as_ref().map_or(true, |it| it.listed.name.starts_with(&self.prefix))))
    }
}

impl Verb for List {
    type Answer = Vec<LockInfo>;
    const DOING: &'static str = "listing locks";

    fn look(&mut self, look: &Look<'_>) -> Result<Option<Self::Answer>> {
        self.all(look.connection, look.now).map(Some)
    }

    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer> {
        self.all(tx.connection, tx.now)
    }
}

#[derive(Debug)]
struct Show(Key);

impl Show {
    fn one(&self, connection: &Connection, now: Moment) -> Result<Option<LockInfo>> {
        let mut one = connection.prepare_cached(select!("WHERE key = ?1 AND ?2 < expires ORDER BY seq"))?;
        let found = one.query_map(params![self.0.as_str(), nanos(now)], |row| read(row, now))?;
        Ok(gathered(found)?.pop())
    }
}

impl Verb for Show {
    type Answer = Option<LockInfo>;
    const DOING: &'static str = "showing a lock";

    fn look(&mut self, look: &Look<'_>) -> Result<Option<Self::Answer>> {
        self.one(look.connection, look.now).map(Some)
    }

    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer> {
        self.one(tx.connection, tx.now)
    }
}

#[derive(Debug)]
pub(crate) struct Break {
    pub(crate) key: Key,
    /// Only the holder with this fence.
    pub(crate) only: Option<Fence>,
}

impl Verb for Break {
    type Answer = Vec<Occupant>;
    const DOING: &'static str = "breaking a lock";

    fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Occupant>> {
        let Break { key, only } = self;
        tx.forget_expired(key)?;
        let mut held =
            tx.connection.prepare_cached(select!("WHERE key = ?1 AND counter != 0 ORDER BY seq"))?;
        let found = held.query_map(params![key.as_str()], |row| read(row, tx.now))?;
        let mut found = found.collect::<rusqlite::Result<Vec<_>>>()?;
        drop(held);
        found.retain(|it| only.is_none() || it.listed.occupant.fence == *only);
        let before = tx.line(key)?;
        for it in &found {
            // Whoever loses it should hear of it.
            tx.called.extend(before.entries.iter().filter(|entry| entry.seq == it.seq).map(|entry| entry.id));
            tx.remove(key, it.seq)?;
        }
        let mut line = tx.line(key)?;
        tx.settle(key, &mut line)?;
        Ok(found.into_iter().map(|it| it.listed.occupant).collect())
    }
}

/// Keys of claims that nobody has been heard of for their ttl. Takes no lock.
pub(crate) fn stale_keys(connection: &Connection, now: Moment, count_max: usize) -> Result<Vec<Key>> {
    let find = "SELECT DISTINCT key FROM lockkeeper_claim WHERE expires <= ?1 LIMIT ?2";
    let mut find = connection.prepare_cached(find)?;
    let count_max = i64::try_from(count_max).unwrap_or(i64::MAX);
    let keys = find.query_map(params![nanos(now), count_max], |row| row.get::<_, String>(0))?;
    let keys = keys.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(keys.iter().filter_map(|it| Key::new(it).ok()).collect())
}

/// The cleaner: forget the expired of these keys, and let in who waits behind them.
#[derive(Debug)]
pub(crate) struct Clean(pub(crate) Vec<Key>);

impl Verb for Clean {
    type Answer = ();
    const DOING: &'static str = "removing what dead processes left";

    fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        for key in &self.0 {
            tx.forget_expired(key)?;
            let mut line = tx.line(key)?;
            tx.settle(key, &mut line)?;
        }
        Ok(())
    }
}
