//! Holding without company: free locks are taken and given back by one statement, which for one lock writes one row.
//!
//! For a single lock both statements are prepared, once for each connection: they cost the server about as much as
//! the bare insert and delete of a unique row. Many locks travel together. Where they change nothing somebody else is
//! there, and a procedure decides.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use lockkeeper_core::backend::Result;
use lockkeeper_core::kit::lane::{self, Carry, Lane};
use lockkeeper_core::{Claim, Moment};
use mysql_async::Value;

use super::Store;
use super::known::Known;
use super::lanes::together;
use super::line::{Mark, list};
use super::link::{Ask, Link};
use super::place::{LEAVING, NOW, TAKING};
use super::text::{bytes, optional, text};
use crate::name::{NameHash, micros_up, printable};

/// Whether the row's lock may be taken the short way.
const FREE: &str = "id IS NULL AND closed <= {now}";

/// Take a free lock. Leaves the number of the grant, or none if the lock is not free.
///
/// Every assignment asks for the row as it was, whether the server assigns one column after the other or all at
/// once: `closed` does not change, `counter` changes after `seq`, and `id` changes last. The values of the row that
/// could not be inserted are computed before; so what they left must be taken back.
static TAKE: LazyLock<String> = LazyLock::new(|| {
    "INSERT INTO lockkeeper_lock (`lock`, name, counter, id, seq, expires, since, ttl, weight, capacity, host, pid, \
     owner, note) \
     VALUES (?, ?, IF(DEFAULT(closed) <= {now}, LAST_INSERT_ID({now} DIV 1000), 0), \
     IF(DEFAULT(closed) <= {now}, ?, NULL), {now} DIV 1000, {now} + ?, {now}, ?, ?, ?, ?, ?, ?, ?) \
     ON DUPLICATE KEY UPDATE \
     seq = IF({free}, GREATEST(counter + 1, {now} DIV 1000), seq), \
     counter = IF({free}, LAST_INSERT_ID(GREATEST(counter + 1, {now} DIV 1000)), \
     counter + LAST_INSERT_ID(0)), \
     expires = IF({free}, {now} + ?, expires), since = IF({free}, {now}, since), ttl = IF({free}, ?, ttl), \
     weight = IF({free}, ?, weight), capacity = IF({free}, ?, capacity), host = IF({free}, ?, host), \
     pid = IF({free}, ?, pid), owner = IF({free}, ?, owner), note = IF({free}, ?, note), id = IF({free}, ?, id)"
        .replace("{free}", FREE)
        .replace("{now}", NOW)
});

/// The same for a lock that has a row, as those have that were used before: cheaper. Changes nothing if the
/// lock is not free, or its row was cleaned away. One assignment after the other, each sees what those before it did; the
/// session's mode, which is looked at, has it so.
static AGAIN: LazyLock<String> = LazyLock::new(|| {
    "UPDATE lockkeeper_lock SET since = {now}, expires = since + ?, \
     counter = LAST_INSERT_ID(GREATEST(counter + 1, since DIV 1000)), seq = counter, ttl = ?, weight = ?, capacity = ?, \
     host = ?, pid = ?, owner = ?, note = ?, id = ? WHERE `lock` = ? AND id IS NULL AND closed <= {now}"
        .replace("{now}", NOW)
});

/// The same for many, whose values come as the rows of `t`. Who has got its lock is asked afterwards.
static TAKE_ALL: LazyLock<[String; 2]> = LazyLock::new(|| {
    let first = "INSERT INTO lockkeeper_lock (`lock`, name, counter, id, seq, expires, since, ttl, weight, capacity, \
                 host, pid, owner, note) \
                 SELECT t.lock_, t.name_, IF(s.quiet <= {now}, {now} DIV 1000, 0), IF(s.quiet <= {now}, t.id_, NULL), \
                 {now} DIV 1000, {now} + t.ttl_, {now}, t.ttl_, t.weight_, t.capacity_, t.host_, t.pid_, t.owner_, \
                 t.note_ FROM (";
    let last = ") AS t JOIN lockkeeper_store AS s ON s.one = 1 ON DUPLICATE KEY UPDATE \
                lockkeeper_lock.seq = IF({free}, GREATEST(lockkeeper_lock.counter + 1, {now} DIV 1000), \
                lockkeeper_lock.seq), \
                lockkeeper_lock.counter = IF({free}, GREATEST(lockkeeper_lock.counter + 1, {now} DIV 1000), \
                lockkeeper_lock.counter), \
                lockkeeper_lock.expires = IF({free}, {now} + t.ttl_, lockkeeper_lock.expires), \
                lockkeeper_lock.since = IF({free}, {now}, lockkeeper_lock.since), \
                lockkeeper_lock.ttl = IF({free}, t.ttl_, lockkeeper_lock.ttl), \
                lockkeeper_lock.weight = IF({free}, t.weight_, lockkeeper_lock.weight), \
                lockkeeper_lock.capacity = IF({free}, t.capacity_, lockkeeper_lock.capacity), \
                lockkeeper_lock.host = IF({free}, t.host_, lockkeeper_lock.host), \
                lockkeeper_lock.pid = IF({free}, t.pid_, lockkeeper_lock.pid), \
                lockkeeper_lock.owner = IF({free}, t.owner_, lockkeeper_lock.owner), \
                lockkeeper_lock.note = IF({free}, t.note_, lockkeeper_lock.note), \
                lockkeeper_lock.id = IF({free}, t.id_, lockkeeper_lock.id); ";
    let free = "lockkeeper_lock.id IS NULL AND lockkeeper_lock.closed <= {now}";
    [first, last].map(|it| it.replace("{free}", free).replace("{now}", NOW))
});

/// Give back what we hold without company.
const GIVE_BACK: &str = "UPDATE lockkeeper_lock SET id = NULL WHERE `lock` = ? AND id = ?";

/// A claim that may be lucky.
#[derive(Clone, Debug)]
pub(super) struct Take {
    pub(super) lock: NameHash,
    pub(super) claim: Arc<Claim>,
}

/// The number of a grant, and the moment before it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) counter: u64,
    pub(super) sent_at: Moment,
}

/// What came of giving back a lock that was held without company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Done,
    /// Others have come, and must be looked after.
    InCompany,
}

impl Take {
    fn id(&self) -> Value {
        self.claim.id.as_bytes().as_slice().into()
    }

    /// What a row says of its holder.
    fn holder(&self) -> [Value; 8] {
        let (claim, label) = (&self.claim, &self.claim.label);
        let optional = |it: &Option<String>| Value::from(it.as_deref().map(printable));
        let ttl = micros_up(claim.ttl);
        [
            ttl.into(),
            ttl.into(),
            claim.load.weight.into(),
            claim.load.capacity.into(),
            printable(&label.host).into(),
            label.pid.into(),
            optional(&label.owner),
            optional(&label.note),
        ]
    }

    /// The statement for a lock that has a row, or for one that may have none.
    fn statement(&self, has_row: bool) -> Ask {
        let (lock, id, holder) = (Value::from(self.lock.as_slice()), self.id(), self.holder());
        if has_row {
            return Ask::Prepared(&AGAIN, holder.into_iter().chain([id, lock]).collect());
        }
        let first = [lock, self.claim.key.as_str().into(), id.clone()];
        let params = first.into_iter().chain(holder.clone()).chain(holder).chain([id]);
        Ask::Prepared(&TAKE, params.collect())
    }

    /// A row of `t`. Its columns are named by the first one.
    fn row(&self, first: bool) -> String {
        let (claim, label) = (&self.claim, &self.claim.label);
        let values = [
            ("lock_", bytes(&self.lock)),
            ("name_", text(claim.key.as_str())),
            ("id_", bytes(claim.id.as_bytes())),
            ("ttl_", micros_up(claim.ttl).to_string()),
            ("weight_", claim.load.weight.to_string()),
            ("capacity_", claim.load.capacity.to_string()),
            ("host_", text(&printable(&label.host))),
            ("pid_", label.pid.to_string()),
            ("owner_", optional(label.owner.as_deref())),
            ("note_", optional(label.note.as_deref())),
        ];
        let values = values.map(|(name, it)| if first { format!("{it} AS {name}") } else { it });
        format!("SELECT {}", values.join(", "))
    }
}

/// The way on which free locks are taken.
struct Takes(Arc<Store>, Arc<Link>);

impl Carry<Take, Option<Taken>> for Takes {
    fn lane(&self) -> &Lane<Take, Option<Taken>> {
        &self.1.lanes.takes
    }

    async fn carry(&self, takes: Vec<Take>) -> Vec<Result<Option<Taken>>> {
        lane::each(takes.len(), self.send(&takes).await)
    }
}

impl Takes {
    async fn send(&self, takes: &[Take]) -> Result<Vec<Option<Taken>>> {
        let links = &self.0.links;
        let ttl = takes.iter().map(|it| it.claim.ttl).min().unwrap_or_default();
        let (patience, fault) = (links.patience(ttl), |it: super::fault::Trouble| it.fault(TAKING));
        if let [take] = takes {
            let ask = take.statement(self.0.known.of(&take.lock).is_some());
            let done = match links.try_ask(&self.1, &ask, patience).await {
                Ok(done) => done,
                Err(trouble) if trouble.is_unprepared() => return Ok(vec![None]),
                Err(trouble) => return Err(fault(trouble)),
            };
            // Either alone would do; a lock is not given away because a server counts in another way.
            let lucky = done.changed != 0 && done.number != 0;
            self.0.known.note(take.lock, if lucky { Known::Used } else { Known::Crowded });
            return Ok(vec![lucky.then_some(Taken { counter: done.number, sent_at: done.sent_at })]);
        }
        let sql = take_all(takes);
        let reply = links.try_ask(&self.1, &Ask::Text(sql), patience).await.map_err(fault)?;
        let granted: HashMap<Vec<u8>, u64> = reply
            .rows
            .iter()
            .flatten()
            .filter_map(|it| Some((it.get_opt(0)?.ok()?, it.get_opt(1)?.ok()?)))
            .collect();
        let taken = |take: &Take| {
            let counter = granted.get(take.claim.id.as_bytes().as_slice());
            counter.map(|counter| Taken { counter: *counter, sent_at: reply.sent_at })
        };
        Ok(takes.iter().map(taken).collect())
    }
}

fn take_all(takes: &[Take]) -> String {
    // In one order everywhere, so that two processes do not wait for each other.
    let mut sorted: Vec<&Take> = takes.iter().collect();
    sorted.sort_unstable_by_key(|it| it.lock);
    let rows: Vec<String> = sorted.iter().enumerate().map(|(at, it)| it.row(at == 0)).collect();
    let (locks, ids) =
        (list(takes.iter().map(|it| &it.lock[..])), list(takes.iter().map(|it| &it.claim.id.as_bytes()[..])));
    let [first, last] = &*TAKE_ALL;
    format!(
        "{first}{}{last}SELECT id, seq FROM lockkeeper_lock FORCE INDEX (PRIMARY) \
         WHERE `lock` IN ({locks}) AND id IN ({ids}) AND {NOW} < expires",
        rows.join(" UNION ALL ")
    )
}

/// The way on which locks that are held without company are given back.
struct Leaves(Arc<Store>, Arc<Link>);

impl Carry<Mark, Left> for Leaves {
    fn lane(&self) -> &Lane<Mark, Left> {
        &self.1.lanes.leaves
    }

    async fn carry(&self, marks: Vec<Mark>) -> Vec<Result<Left>> {
        lane::each(marks.len(), self.send(&marks).await)
    }
}

impl Leaves {
    async fn send(&self, marks: &[Mark]) -> Result<Vec<Left>> {
        let links = &self.0.links;
        let ttl = marks.iter().map(|it| it.ttl).min().unwrap_or_default();
        let (patience, fault) = (links.patience(ttl), |it: super::fault::Trouble| it.fault(LEAVING));
        let left = |alone: bool| if alone { Left::Done } else { Left::InCompany };
        if let [mark] = marks {
            let params = vec![mark.lock.as_slice().into(), mark.id.as_slice().into()];
            return match links.try_ask(&self.1, &Ask::Prepared(GIVE_BACK, params), patience).await {
                Ok(done) => Ok(vec![left(done.changed != 0)]),
                Err(trouble) if trouble.is_unprepared() => Ok(vec![Left::InCompany]),
                Err(trouble) => Err(fault(trouble)),
            };
        }
        // Who is in neither place has left before.
        let (locks, ids) =
            (list(marks.iter().map(|it| &it.lock[..])), list(marks.iter().map(|it| &it.id[..])));
        let sql = format!(
            "UPDATE lockkeeper_lock FORCE INDEX (PRIMARY) SET id = NULL WHERE `lock` IN ({locks}) AND id IN ({ids}); \
             SELECT id FROM lockkeeper_claim WHERE id IN ({ids})"
        );
        let reply = links.try_ask(&self.1, &Ask::Text(sql), patience).await.map_err(fault)?;
        let others: Vec<Vec<u8>> = reply.rows.iter().flatten().filter_map(|it| it.get_opt(0)?.ok()).collect();
        Ok(marks.iter().map(|mark| left(others.iter().all(|it| *it != mark.id))).collect())
    }
}

impl Store {
    /// Take the lock if it is free, together with whoever else takes one now.
    pub(super) async fn take_free(self: &Arc<Self>, way: Arc<Link>, take: Take) -> Result<Option<Taken>> {
        together(Takes(self.clone(), way), take).await
    }

    /// Give the lock back if we hold it without company, together with whoever else gives one back now.
    pub(super) async fn give_back(self: &Arc<Self>, way: Arc<Link>, mark: Mark) -> Result<Left> {
        together(Leaves(self.clone(), way), mark).await
    }
}
