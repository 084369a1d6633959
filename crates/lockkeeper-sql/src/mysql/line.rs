//! Looking at a line, keeping a place in it and renewing what is held: each touches only the rows of those who ask,
//! never the row of the lock, so that nobody in a line holds up whoever enters or leaves it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::Result;
use lockkeeper_core::kit::lane::{self, Carry, Lane};
use lockkeeper_core::{Load, Moment};
use mysql_async::Row;

use super::Store;
use super::fault::Trouble;
use super::lanes::{gathered, together};
use super::link::{Ask, Link, Reply};
use super::place::NOW;
use super::text::bytes;
use crate::name::{NameHash, micros_up, span};

/// The most looks in one statement, each of which is a SELECT.
pub(super) const LOOKS_MAX: usize = 200;

/// A claim as it is found again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) lock: NameHash,
    pub(super) id: [u8; 16],
    /// Its number in line, or of its grant.
    pub(super) seq: i64,
    /// Nobody in the line has a smaller number.
    pub(super) head: i64,
    pub(super) ttl: Duration,
    pub(super) load: Load,
    pub(super) view: View,
}

/// How much a look shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Whether we hold without company, or else as `Near`.
    Alone,
    /// Whether we hold, and whether somebody waits behind us.
    Near,
    /// Also how many wait before us, none if all of them fit beside us, and when a holder expires.
    Far,
}

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) what: What,
    /// The moment before it was asked for.
    pub(super) sent_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Nothing of us is there.
    Gone,
    /// We hold. A counter of 0 has not been given yet. For how long; whether somebody waits behind us; whether we
    /// stand in the lock's own row.
    Held { counter: u64, left: Duration, wanted: bool, alone: bool },
    /// We wait, behind so many others, if that was asked; when a holder expires, in microseconds; since when the line
    /// stands still; whether somebody waits behind us.
    Waiting { head: i64, before: Option<i64>, expiry: i64, still: Duration, wanted: bool },
}

/// A list of literals for `IN`.
pub(super) fn list<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let literals: Vec<String> = values.map(bytes).collect();
    literals.join(", ")
}

/// One claim's look: id, held, counter, microseconds left, wanted, alone, head, how many wait before, expiry, since when
/// the line stands still.
pub(super) fn look(mark: &Mark) -> String {
    let Mark { seq, head, load: Load { weight, capacity, .. }, view, .. } = *mark;
    let (lock, id) = (bytes(&mark.lock), bytes(&mark.id));
    let wanted = format!(
        "EXISTS (SELECT 1 FROM lockkeeper_claim AS w WHERE w.`lock` = {lock} AND {seq} < w.seq AND NOT w.held)"
    );
    let near = format!(
        "SELECT m.id, m.held, m.counter, m.expires - {NOW}, {wanted}, 0, {head}, -1, 0, 0 FROM lockkeeper_claim AS m \
         WHERE m.`lock` = {lock} AND m.seq = {seq} AND m.id = {id}"
    );
    match view {
        View::Near => near,
        View::Alone => format!(
            "SELECT id, 1, seq, expires - {NOW}, 0, 1, 0, -1, 0, 0 FROM lockkeeper_lock WHERE `lock` = {lock} AND id = {id} \
             UNION ALL {near}"
        ),
        // By numbers that we know, because a server reads all the line for numbers that it must find first.
        View::Far => format!(
            "SELECT m.id, m.held, m.counter, m.expires - {NOW}, {wanted}, 0, \
             (SELECT head FROM lockkeeper_lock WHERE `lock` = {lock}), x.waiting, x.expires - {NOW}, {NOW} - x.since \
             FROM lockkeeper_claim AS m JOIN (\
             SELECT IF(COALESCE(SUM(IF(c.held, 0, c.weight)), 0) + {weight} \
             <= LEAST(COALESCE(MIN(IF(c.held, NULL, c.capacity)), {capacity}), {capacity}), 0, \
             COALESCE(SUM(NOT c.held AND {NOW} < c.expires), 0)) AS waiting, \
             COALESCE(MIN(IF(c.held, c.expires, NULL)), 0) AS expires, \
             COALESCE(MAX(IF(c.held, c.since, NULL)), 0) AS since FROM lockkeeper_claim AS c \
             WHERE c.`lock` = {lock} AND {head} <= c.seq AND c.seq < {seq}) AS x \
             WHERE m.`lock` = {lock} AND m.seq = {seq} AND m.id = {id}"
        ),
    }
}

/// The looks of several claims in one statement.
fn looks<'a>(marks: impl Iterator<Item = &'a Mark>) -> String {
    marks.map(look).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The conditions for the rows of these claims in the line.
fn rows<'a>(marks: impl Iterator<Item = &'a Mark>) -> String {
    let row =
        |it: &Mark| format!("(`lock` = {} AND seq = {} AND id = {})", bytes(&it.lock), it.seq, bytes(&it.id));
    marks.map(row).collect::<Vec<_>>().join(" OR ")
}

/// The statement that prolongs what these claims have in the line.
fn prolong<'a>(marks: impl Iterator<Item = &'a Mark>) -> String {
    format!(
        "UPDATE lockkeeper_claim FORCE INDEX (PRIMARY) SET expires = {NOW} + ttl WHERE {NOW} < expires AND ({})",
        rows(marks)
    )
}

/// The statements that keep what this claim holds for a time of its own. A claim moves only from its lock's row to the
/// others of its line, so that whoever looks in this order finds it.
pub(super) fn linger(mark: &Mark, span: Duration) -> String {
    let (lock, id, span) = (bytes(&mark.lock), bytes(&mark.id), micros_up(span));
    format!(
        "UPDATE lockkeeper_lock SET expires = {NOW} + {span} WHERE `lock` = {lock} AND id = {id} AND {NOW} < expires; \
         UPDATE lockkeeper_claim FORCE INDEX (PRIMARY) SET expires = {NOW} + {span} \
         WHERE {NOW} < expires AND held AND {}",
        rows(std::iter::once(mark))
    )
}

/// What a row says.
fn understood(row: &Row) -> Option<(Vec<u8>, What)> {
    let number = |at: usize| row.get_opt::<i64, _>(at)?.ok();
    let (held, counter, left, wanted, alone) = (number(1)?, number(2)?, number(3)?, number(4)?, number(5)?);
    let what = if left <= 0 {
        What::Gone
    } else if held != 0 {
        What::Held {
            counter: counter.unsigned_abs(),
            left: span(left),
            wanted: wanted != 0,
            alone: alone != 0,
        }
    } else {
        let before = number(7)?;
        What::Waiting {
            head: number(6)?,
            before: (0 <= before).then_some(before),
            expiry: number(8)?,
            still: span(number(9)?),
            wanted: wanted != 0,
        }
    };
    Some((row.get_opt(0)?.ok()?, what))
}

/// What each claim was seen to have.
pub(super) fn sorted(marks: &[Mark], replies: &[Reply]) -> Vec<Seen> {
    let Some(sent_at) = replies.iter().map(|it| it.sent_at).min() else { return Vec::new() };
    let rows = replies.iter().flat_map(|it| it.rows.iter().flatten());
    let found: HashMap<Vec<u8>, What> = rows.filter_map(understood).collect();
    let what = |it: &Mark| found.get(it.id.as_slice()).copied().unwrap_or(What::Gone);
    marks.iter().map(|it| Seen { what: what(it), sent_at }).collect()
}

/// The way on which places look: nothing is locked, nothing written.
struct Looks(Arc<Store>, Arc<Link>);

impl Carry<Mark, Seen> for Looks {
    fn lane(&self) -> &Lane<Mark, Seen> {
        &self.1.lanes.looks
    }

    async fn carry(&self, marks: Vec<Mark>) -> Vec<Result<Seen>> {
        lane::each(marks.len(), self.send(&marks).await)
    }
}

impl Looks {
    async fn send(&self, marks: &[Mark]) -> Result<Vec<Seen>> {
        let ask = match marks {
            [mark] if mark.view == View::Near => near(mark),
            _ => Ask::Text(looks(marks.iter())),
        };
        let ttl = marks.iter().map(|it| it.ttl).min().unwrap_or_default();
        let links = &self.0.links;
        let reply =
            links.try_ask(&self.1, &ask, links.patience(ttl)).await.map_err(|it| it.fault("looking"))?;
        Ok(sorted(marks, &[reply]))
    }
}

/// The way on which those look who are idle: all of a process in one statement.
struct Idle(Arc<Store>, Arc<Link>);

impl Carry<Mark, Seen> for Idle {
    fn lane(&self) -> &Lane<Mark, Seen> {
        &self.1.lanes.idle
    }

    async fn carry(&self, marks: Vec<Mark>) -> Vec<Result<Seen>> {
        lane::each(marks.len(), self.send(&marks).await)
    }
}

impl Idle {
    /// Whoever is in its lock's row is there without company: who comes moves it away from there.
    async fn send(&self, marks: &[Mark]) -> Result<Vec<Seen>> {
        let (alone, joined): (Vec<&Mark>, Vec<&Mark>) = marks.iter().partition(|it| it.view == View::Alone);
        let mut parts = Vec::new();
        if !alone.is_empty() {
            let locks = list(alone.iter().map(|it| &it.lock[..]));
            parts.push(format!(
                "SELECT id, 1, seq, expires - {NOW}, 0, 1, 0, -1, 0, 0 FROM lockkeeper_lock FORCE INDEX (PRIMARY) \
                 WHERE `lock` IN ({locks}) AND id IS NOT NULL"
            ));
        }
        parts.extend(joined.chunks(LOOKS_MAX).map(|some| looks(some.iter().copied())));
        let ttl = marks.iter().map(|it| it.ttl).min().unwrap_or_default();
        let (links, ask) = (&self.0.links, Ask::Text(parts.join("; ")));
        let reply = links.try_ask(&self.1, &ask, links.patience(ttl)).await;
        Ok(sorted(marks, &[reply.map_err(|it| it.fault("looking while it is idle"))?]))
    }
}

/// The look that the next in line takes many times a second.
fn near(mark: &Mark) -> Ask {
    static NEAR: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        "SELECT m.id, m.held, m.counter, m.expires - {now}, \
         EXISTS (SELECT 1 FROM lockkeeper_claim AS w WHERE w.`lock` = ? AND ? < w.seq AND NOT w.held), 0, ?, -1, 0, 0 \
         FROM lockkeeper_claim AS m WHERE m.`lock` = ? AND m.seq = ? AND m.id = ?"
            .replace("{now}", NOW)
    });
    let (lock, id) = (mysql_async::Value::from(mark.lock.as_slice()), mark.id.as_slice().into());
    Ask::Prepared(&NEAR, vec![lock.clone(), mark.seq.into(), mark.head.into(), lock, mark.seq.into(), id])
}

/// The way on which places in line are kept.
struct Keeps(Arc<Store>, Arc<Link>);

impl Carry<Mark, Seen> for Keeps {
    fn lane(&self) -> &Lane<Mark, Seen> {
        &self.1.lanes.keeps
    }

    async fn carry(&self, marks: Vec<Mark>) -> Vec<Result<Seen>> {
        lane::each(marks.len(), self.send(&marks).await)
    }
}

impl Keeps {
    async fn send(&self, marks: &[Mark]) -> Result<Vec<Seen>> {
        let sql = format!("{}; {}", prolong(marks.iter()), looks(marks.iter()));
        let reply = self.0.renew_by(&self.1, marks, sql).await;
        Ok(sorted(marks, &[reply.map_err(|it| it.fault("keeping the place in line"))?]))
    }
}

/// The way on which holders renew.
struct Renewals(Arc<Store>, Arc<Link>);

impl Carry<Mark, Seen> for Renewals {
    fn lane(&self) -> &Lane<Mark, Seen> {
        &self.1.lanes.renewals
    }

    /// First those who hold without company, in their locks' rows. Who is not found there was joined by others: a
    /// claim moves only from its lock's row to the others of its line, so that whoever looks in this order finds it.
    async fn carry(&self, marks: Vec<Mark>) -> Vec<Result<Seen>> {
        lane::each(marks.len(), self.send(&marks).await)
    }
}

impl Renewals {
    async fn send(&self, marks: &[Mark]) -> Result<Vec<Seen>> {
        let told = |it: Trouble| it.fault("renewing the lock");
        let mut replies = Vec::new();
        let alone: Vec<&Mark> = marks.iter().filter(|it| it.view == View::Alone).collect();
        if !alone.is_empty() {
            let locks = list(alone.iter().map(|it| &it.lock[..]));
            let ids = list(alone.iter().map(|it| &it.id[..]));
            let sql = format!(
                "UPDATE lockkeeper_lock FORCE INDEX (PRIMARY) SET expires = {NOW} + ttl \
                 WHERE `lock` IN ({locks}) AND id IN ({ids}) AND {NOW} < expires; \
                 SELECT id, 1, seq, expires - {NOW}, 0, 1, 0, -1, 0, 0 FROM lockkeeper_lock FORCE INDEX (PRIMARY) \
                 WHERE `lock` IN ({locks}) AND id IS NOT NULL"
            );
            replies.push(self.0.renew_by(&self.1, marks, sql).await.map_err(told)?);
        }
        let seen = sorted(marks, &replies);
        let found = |at: usize| seen.get(at).is_some_and(|it| it.what != What::Gone);
        let joined = marks.iter().enumerate().filter(|(at, _)| !found(*at));
        let joined: Vec<Mark> = joined.map(|(_, it)| Mark { view: View::Near, ..*it }).collect();
        for some in joined.chunks(LOOKS_MAX) {
            let sql = format!("{} AND held; {}", prolong(some.iter()), looks(some.iter()));
            replies.push(self.0.renew_by(&self.1, marks, sql).await.map_err(told)?);
        }
        Ok(sorted(marks, &replies))
    }
}

impl Store {
    /// Send by the way for renewals or, if that finds no room at the server, by any that is connected.
    async fn renew_by(
        &self,
        way: &Arc<Link>,
        marks: &[Mark],
        sql: String,
    ) -> std::result::Result<Reply, Trouble> {
        let links = &self.links;
        let patience = links.renewal_patience(marks.iter().map(|it| it.ttl).min().unwrap_or_default());
        let ask = Ask::Text(sql);
        match links.try_ask(way, &ask, patience).await {
            Err(trouble) if trouble.is_crowded() => match links.connected() {
                Some(other) => links.try_ask(&other, &ask, patience).await,
                None => Err(trouble),
            },
            answer => answer,
        }
    }

    /// Look at a line.
    pub(super) async fn look(self: &Arc<Self>, way: Arc<Link>, mark: Mark) -> Result<Seen> {
        together(Looks(self.clone(), way), mark).await
    }

    /// Look at what is idle, with all that looks now.
    pub(super) async fn look_idle(self: &Arc<Self>, mark: Mark) -> Result<Seen> {
        let way = self.links.renewals();
        gathered(Idle(self.clone(), way), mark).await
    }

    /// Keep a place in line, and look.
    pub(super) async fn keep(self: &Arc<Self>, mark: Mark) -> Result<Seen> {
        let way = self.links.renewals();
        gathered(Keeps(self.clone(), way), mark).await
    }

    /// Renew what is held.
    pub(super) async fn renew(self: &Arc<Self>, mark: Mark) -> Result<Seen> {
        let way = self.links.renewals();
        gathered(Renewals(self.clone(), way), mark).await
    }
}
