//! The verbs of many tasks on one connection: alone each is a statement of its own; a crowd's share statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::{Claim, Moment};
use tokio_postgres::types::Type;

use super::NAME;
use super::session::Param;
use super::way::{Answer, Way};
use crate::name::{NameHash, micros_up, printable, span};
use crate::patience::patience;
use lockkeeper_core::kit::lane::{Carry, Lane};

pub(crate) const TAKING: &str = "taking the lock";
pub(crate) const LEAVING: &str = "giving the lock back";
const LOOKING: &str = "looking at the line";

/// From so many statements of one kind under way on, further requests go together.
const WIDTH: usize = 8;
/// The most in one statement: each keeps its line from others until all are done.
const TOGETHER: usize = 64;

/// So many who stand before us are counted while the line is locked.
const COUNTED: i64 = 32;

/// A claim, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub(crate) lock: NameHash,
    pub(crate) claim: Arc<Claim>,
    /// Its number in line; 0 if it has none, or it did not hear of it.
    pub(crate) seq: i64,
    /// The session that holds its bell; 0 if none does.
    pub(crate) bell: i64,
}

impl Position {
    pub(crate) fn patience(&self, way: &Way) -> Duration {
        patience(self.claim.ttl, way.shared.options.common.timeout)
    }
}

/// The patience of whoever has the least.
pub(crate) fn least_patience<'a>(way: &Way, all: impl Iterator<Item = &'a Position>) -> Duration {
    all.map(|it| it.patience(way)).min().unwrap_or(way.shared.options.common.timeout)
}

/// Ask for the first time: many who do may be served by one statement.
#[derive(Clone, Debug)]
pub(crate) struct First(pub(crate) Turning);

/// Ask whether it is our turn.
#[derive(Clone, Debug)]
pub(crate) struct Turning {
    pub(crate) at: Position,
    /// Where we can be called, if we can.
    pub(crate) wake: Option<Arc<str>>,
    /// Whether the session shall hold a bell for those behind us.
    pub(crate) bell: bool,
    /// Nobody has heard of us; until it is sent, by whichever way. Acquire and Release are more than enough: those ways are gone one
    /// after the other.
    pub(crate) fresh: Arc<AtomicBool>,
}

/// Leave.
#[derive(Clone, Debug)]
pub(crate) struct Leaving(pub(crate) Position);

/// Look at the line without changing anything.
#[derive(Clone, Debug)]
pub(crate) struct Looking(pub(crate) Position);

/// The answer to `turn`.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) held: bool,
    pub(crate) counter: u64,
    pub(crate) wanted: bool,
    /// How many stand before us; `None` if they are many.
    pub(crate) ahead: Option<i64>,
    /// How many of them wait, of many only some.
    pub(crate) ahead_waiting: i64,
    /// Microseconds until somebody at the front of the line expires; if held, for how long it is, 0 for the ttl.
    pub(crate) front: i64,
    pub(crate) seq: i64,
    /// The session that holds our bell since now; 0 if none does.
    pub(crate) bell: i64,
    /// The number of the bell of whoever stands right before us, if it has one.
    pub(crate) before: Option<i64>,
    pub(crate) sent_at: Moment,
}

/// What one who waits sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Nothing to be done but to wait.
    pub(crate) waits: bool,
    pub(crate) ahead_waiting: i64,
    /// Microseconds until somebody at the front of the line expires.
    pub(crate) front: i64,
    /// For how long whoever was let in last has held.
    pub(crate) held_for: Duration,
}

impl Seen {
    /// How many numbers tell it.
    pub(crate) const NUMBERS: usize = 4;

    pub(crate) fn read(numbers: &[i64]) -> Option<Self> {
        let [state, ahead_waiting, front, held_for] = *numbers else { return None };
        Some(Seen { waits: state == 0, ahead_waiting, front, held_for: span(held_for) })
    }
}

/// A command connection and the queues in front of it.
pub(crate) struct Link {
    pub(crate) way: Arc<Way>,
    firsts: Lane<First, Option<Told>>,
    turns: Lane<Turning, Told>,
    leaves: Lane<Leaving, i64>,
    looks: Lane<Looking, Seen>,
}

impl Link {
    pub(crate) fn new(way: Arc<Way>) -> Self {
        Link {
            way,
            firsts: Lane::new(WIDTH, TOGETHER),
            turns: Lane::new(WIDTH, 1),
            leaves: Lane::new(WIDTH, TOGETHER),
            looks: Lane::new(WIDTH, 1),
        }
    }

    async fn turn(&self, asked: &Turning) -> Result<Told> {
        let (claim, label) = (&asked.at.claim, &asked.at.claim.label);
        let optional = |it: &Option<String>| it.as_deref().map(printable);
        let mut params: [Param<'_>; 14] = [
            (&asked.at.lock.as_slice(), Type::BYTEA),
            (&claim.id.as_bytes().as_slice(), Type::BYTEA),
            (&asked.at.seq, Type::INT8),
            (&claim.key.as_str(), Type::TEXT),
            (&micros_up(claim.ttl), Type::INT8),
            (&i64::from(claim.load.weight), Type::INT8),
            (&i64::from(claim.load.capacity), Type::INT8),
            (&claim.patient, Type::BOOL),
            (&printable(&label.host), Type::TEXT),
            (&i64::from(label.pid), Type::INT8),
            (&optional(&label.owner), Type::TEXT),
            (&optional(&label.note), Type::TEXT),
            (&asked.wake.as_deref(), Type::TEXT),
            (&asked.bell, Type::BOOL),
        ];
        // If it must be sent again, somebody may have heard of us.
        let again = params.clone();
        if let Some(seq) = params.get_mut(2).filter(|_| asked.fresh.swap(false, Ordering::AcqRel)) {
            seq.0 = &-1_i64;
        }
        let (sql, patience) = (&self.way.shared.sql.turn, asked.at.patience(&self.way));
        let answer = self.way.ask_or_again(TAKING, sql, [&params, &again], patience).await?;
        let [held, counter, wanted, ahead, ahead_waiting, front, seq, bell, has_bell, before] =
            answer.numbers(TAKING)?[..]
        else {
            return Err(odd(TAKING));
        };
        Ok(Told {
            held: held != 0,
            counter: counter.unsigned_abs(),
            wanted: wanted != 0,
            ahead: (ahead < COUNTED).then_some(ahead),
            ahead_waiting,
            front,
            seq,
            bell: if bell == 0 { 0 } else { answer.by },
            before: (has_bell != 0).then_some(before),
            sent_at: answer.sent_at,
        })
    }

    /// Take those that are free.
    async fn take_many(&self, asked: &[First]) -> Result<Vec<Option<Told>>> {
        let of = |it: &First| (it.0.at.claim.clone(), it.0.at.lock);
        let all: Vec<_> = asked.iter().map(of).collect();
        let locks: Vec<&[u8]> = all.iter().map(|it| it.1.as_slice()).collect();
        let ids: Vec<&[u8]> = all.iter().map(|it| it.0.id.as_bytes().as_slice()).collect();
        let names: Vec<&str> = all.iter().map(|it| it.0.key.as_str()).collect();
        let ttls: Vec<i64> = all.iter().map(|it| micros_up(it.0.ttl)).collect();
        let weights: Vec<i64> = all.iter().map(|it| it.0.load.weight.into()).collect();
        let capacities: Vec<i64> = all.iter().map(|it| it.0.load.capacity.into()).collect();
        let hosts: Vec<String> = all.iter().map(|it| printable(&it.0.label.host)).collect();
        let pids: Vec<i64> = all.iter().map(|it| it.0.label.pid.into()).collect();
        let owners: Vec<_> = all.iter().map(|it| it.0.label.owner.as_deref().map(printable)).collect();
        let notes: Vec<_> = all.iter().map(|it| it.0.label.note.as_deref().map(printable)).collect();
        let wake = asked.first().and_then(|it| it.0.wake.as_deref());
        let params: [Param<'_>; 11] = [
            (&locks, Type::BYTEA_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&weights, Type::INT8_ARRAY),
            (&capacities, Type::INT8_ARRAY),
            (&hosts, Type::TEXT_ARRAY),
            (&pids, Type::INT8_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&notes, Type::TEXT_ARRAY),
            (&wake, Type::TEXT),
        ];
        let bears = least_patience(&self.way, asked.iter().map(|it| &it.0.at));
        let answer = self.way.ask(TAKING, &self.way.shared.sql.turn_many, &params, bears).await?;
        let told = |counter: i64| Told {
            held: true,
            counter: counter.unsigned_abs(),
            wanted: false,
            ahead: Some(0),
            ahead_waiting: 0,
            front: 0,
            seq: counter,
            bell: 0,
            before: None,
            sent_at: answer.sent_at,
        };
        if answer.again {
            // One that is not free may be so because the first of these statements took it.
            for it in asked {
                it.0.fresh.store(false, Ordering::Release);
            }
        }
        let counters = answer.numbers(TAKING)?;
        Ok(counters.into_iter().map(|it| (it != 0).then(|| told(it))).collect())
    }

    async fn leave_many(&self, asked: &[Leaving]) -> Result<Answer> {
        let bears = least_patience(&self.way, asked.iter().map(|it| &it.0));
        let sql = &self.way.shared.sql;
        if let [Leaving(it)] = asked {
            let id = it.claim.id.as_bytes();
            let params: [Param<'_>; 4] = [
                (&it.lock.as_slice(), Type::BYTEA),
                (&id.as_slice(), Type::BYTEA),
                (&it.seq, Type::INT8),
                (&it.bell, Type::INT8),
            ];
            return self.way.ask(LEAVING, &sql.leave, &params, bears).await;
        }
        let (locks, ids, seqs) = columns(asked.iter().map(|it| &it.0));
        let bells: Vec<i64> = asked.iter().map(|it| it.0.bell).collect();
        let params: [Param<'_>; 4] = [
            (&locks, Type::BYTEA_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&bells, Type::INT8_ARRAY),
        ];
        self.way.ask(LEAVING, &sql.leave_many, &params, bears).await
    }

    async fn look(&self, it: &Position) -> Result<Seen> {
        let id = it.claim.id.as_bytes();
        let params: [Param<'_>; 3] =
            [(&it.lock.as_slice(), Type::BYTEA), (&id.as_slice(), Type::BYTEA), (&it.seq, Type::INT8)];
        let sql = &self.way.shared.sql.look;
        let answer = self.way.ask(LOOKING, sql, &params, it.patience(&self.way)).await?;
        Seen::read(&answer.numbers(LOOKING)?).ok_or_else(|| odd(LOOKING))
    }
}

/// Locks, ids and numbers in line, for a statement about many.
pub(crate) fn columns<'a>(
    all: impl Iterator<Item = &'a Position>,
) -> (Vec<&'a [u8]>, Vec<&'a [u8]>, Vec<i64>) {
    let (mut locks, mut ids, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
    for it in all {
        locks.push(it.lock.as_slice());
        ids.push(it.claim.id.as_bytes().as_slice());
        seqs.push(it.seq);
    }
    (locks, ids, seqs)
}

pub(crate) fn odd(doing: &'static str) -> Fault {
    Fault::permanent(NAME, doing, "the answer has another form than expected")
}

/// The same answer for all who asked together.
pub(crate) fn shared_by<A: Clone>(count: usize, answer: Result<A>) -> Vec<Result<A>> {
    vec![answer; count]
}

impl Carry<First, Option<Told>> for Link {
    fn lane(&self) -> &Lane<First, Option<Told>> {
        &self.firsts
    }

    async fn carry(&self, items: Vec<First>) -> Vec<Result<Option<Told>>> {
        if let [First(alone)] = items.as_slice() {
            return vec![self.turn(alone).await.map(Some)];
        }
        match self.take_many(&items).await {
            Ok(told) if told.len() == items.len() => told.into_iter().map(Ok).collect(),
            Ok(_) => shared_by(items.len(), Err(odd(TAKING))),
            Err(fault) => shared_by(items.len(), Err(fault)),
        }
    }
}

impl Carry<Turning, Told> for Link {
    fn lane(&self) -> &Lane<Turning, Told> {
        &self.turns
    }

    async fn carry(&self, items: Vec<Turning>) -> Vec<Result<Told>> {
        let mut told = Vec::with_capacity(items.len());
        for it in &items {
            told.push(self.turn(it).await);
        }
        told
    }
}

/// Answers which session it was.
impl Carry<Leaving, i64> for Link {
    fn lane(&self) -> &Lane<Leaving, i64> {
        &self.leaves
    }

    async fn carry(&self, items: Vec<Leaving>) -> Vec<Result<i64>> {
        shared_by(items.len(), self.leave_many(&items).await.map(|it| it.by))
    }
}

impl Carry<Looking, Seen> for Link {
    fn lane(&self) -> &Lane<Looking, Seen> {
        &self.looks
    }

    async fn carry(&self, items: Vec<Looking>) -> Vec<Result<Seen>> {
        let mut seen = Vec::with_capacity(items.len());
        for it in &items {
            seen.push(self.look(&it.0).await);
        }
        seen
    }
}
