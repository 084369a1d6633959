//! The verbs as they run on the connection's thread: each reads one line and changes it by the rule.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Renewal, Turn};
use lockkeeper_core::{Claim, Load};

use crate::fault::{Result, Trouble};
use crate::line::{Entry, Line, Scan, Spot, Tx};
use crate::options::Durability;
use crate::work::{Look, Verb};

/// The shortest time after which a waiter is told to ask again by itself.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// A waiter writes to the file when less than this of its ttl is left, not each time it asks.
fn kept_for(ttl: Duration) -> Duration {
    ttl / 3 * 2
}

/// See [`Place::turn`](lockkeeper_core::backend::Place::turn).
#[derive(Debug)]
pub(crate) struct AskTurn {
    pub(crate) claim: Arc<Claim>,
    /// Where we wait, if the last answer was to wait: perhaps we were let in since.
    pub(crate) waits: Option<Spot>,
    /// The claim never asked before: the file does not know it.
    is_new: bool,
    /// Whether we expect to get in.
    pub(crate) hopes: bool,
    /// What a look before the transaction found.
    scan: Scan,
}

impl AskTurn {
    pub(crate) fn new(claim: Arc<Claim>, waits: Option<Spot>) -> Self {
        AskTurn { claim, waits, is_new: false, hopes: waits.is_none(), scan: Scan::default() }
    }

    /// It is the claim's first, or is not.
    pub(crate) fn first(mut self, is_new: bool) -> Self {
        self.is_new = is_new;
        self
    }
}

/// What a `turn` found, and where the claim stands now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) turn: Turn,
    pub(crate) spot: Option<Spot>,
    /// How many wait before it.
    pub(crate) waiting_before: u64,
}

impl Answer {
    fn held(turn: Turn, spot: Spot) -> Self {
        Answer { turn, spot: Some(spot), waiting_before: 0 }
    }
}

impl Verb for AskTurn {
    type Answer = Answer;
    const DOING: &'static str = "taking the lock";
    const IS_SHORT: bool = true;

    /// Whoever left may have let us in. Then we are the holder already, and a look is enough: the hand-on cost one
    /// commit, the leaver's. And whoever waits need not write to keep a place that is good for long enough.
    fn look(&mut self, look: &Look<'_>) -> Result<Option<Answer>> {
        let (Some(spot), claim) = (self.waits, &*self.claim) else {
            // A look costs much less than waiting for the disk in vain.
            if look.options.durability == Durability::Full {
                self.hopes = !Line::wanted(look.connection, &self.claim.key, look.now)?;
            }
            if !self.hopes {
                // Counting a long line now is better than while all others wait for us.
                self.scan = Scan::default().go_on(look.connection, &self.claim, self.is_new, look.now)?;
            }
            return Ok(None);
        };
        let Some(me) = spot.find(look.connection, &claim.key)? else {
            return Ok(None);
        };
        let left = me.expires - look.now;
        if me.held {
            // With little time left, writing is better: it extends.
            if left < claim.ttl / 2 {
                return Ok(None);
            }
            let wanted = Line::wanted(look.connection, &claim.key, look.now)?;
            let grant = Grant::new(me.counter.unsigned_abs(), left.min(claim.ttl)).wanted(wanted);
            return Ok(Some(Answer::held(Turn::Held(grant.sent_at(look.now)), spot)));
        }
        let before = spot.before(look.connection, &claim.key, look.now)?;
        let is_kept = claim.patient && kept_for(claim.ttl) < left;
        if !is_kept || Line::read(look.connection, &claim.key, look.now)?.has_room_for(claim.id) {
            return Ok(None);
        }
        let recheck = left.saturating_sub(kept_for(claim.ttl)).max(RECHECK_MIN);
        let turn = Turn::wait(recheck, Some(before.all));
        Ok(Some(Answer { turn, spot: Some(spot), waiting_before: before.waiting }))
    }

    fn run(&self, tx: &mut Tx<'_>) -> Result<Answer> {
        let claim = &*self.claim;
        if !claim.load.can_fit() {
            let (weight, capacity) = (claim.load.weight, claim.load.capacity);
            return Err(Trouble::permanent(format!(
                "a claim of weight {weight} never fits into a room of capacity {capacity}; \
                 ask for at least 1, and at most the capacity"
            )));
        }
        let line = tx.line(&claim.key)?;
        if let Some(spot) = self.waits
            && stands(tx, claim, spot)?
        {
            return ask_again(tx, claim, line, spot);
        }
        let scan = if line.is_whole {
            Scan::of(&line, claim)
        } else {
            self.scan.go_on(tx.connection, claim, self.is_new, tx.now)?
        };
        match scan.spot {
            Some(spot) if stands(tx, claim, spot)? => ask_again(tx, claim, line, spot),
            _ => arrive(tx, claim, line, &scan),
        }
    }

    fn may_grant(&self) -> bool {
        self.hopes
    }

    fn keeps_a_place(&self) -> bool {
        self.waits.is_some()
    }
}

/// Whether the claim is still there.
fn stands(tx: &Tx<'_>, claim: &Claim, spot: Spot) -> Result<bool> {
    let found = spot.find(tx.connection, &claim.key)?;
    Ok(found.is_some_and(|it| tx.now < it.expires))
}

/// A claim that the file knows: keep its place, and see whether it may enter.
fn ask_again(tx: &mut Tx<'_>, claim: &Claim, mut line: Line, spot: Spot) -> Result<Answer> {
    tx.settle(&claim.key, &mut line)?;
    let me = line.position(claim.id).map(|at| line.entries[at]).filter(|it| it.held);
    let (turn, waiting_before) = if let Some(me) = me {
        (granted(tx, claim, &line, me.counter), 0)
    } else {
        let before = spot.before(tx.connection, &claim.key, tx.now)?;
        (told_to_wait(tx, claim, &line, before.waiting == 0, Some(before.all)), before.waiting)
    };
    if me.is_some() || claim.patient {
        tx.extend(claim, spot.seq)?;
        return Ok(Answer { turn, spot: Some(spot), waiting_before });
    }
    tx.remove(&claim.key, spot.seq)?;
    let mut line = tx.line(&claim.key)?;
    tx.settle(&claim.key, &mut line)?;
    Ok(Answer { turn, spot: None, waiting_before })
}

/// A claim that the file does not know. It gets its number only when something of it is to stay.
fn arrive(tx: &mut Tx<'_>, claim: &Claim, mut line: Line, scan: &Scan) -> Result<Answer> {
    let (at, is_next) = (line.entries.len(), !line.is_wanted());
    line.entries.push(Entry {
        seq: 0,
        id: claim.id,
        counter: 0,
        held: false,
        expires: tx.now.after(claim.ttl),
        weight: claim.load.weight,
        capacity: claim.load.capacity,
    });
    let mut entered = line.admit();
    let held = entered.pop_if(|it| *it == at).is_some();
    tx.write_entered(&claim.key, &mut line, &entered)?;
    if held {
        let number = tx.next_grants(1)?;
        tx.insert(claim, number, true)?;
        let spot = Spot { id: claim.id, seq: number };
        return Ok(Answer::held(granted(tx, claim, &line, number), spot));
    }
    let turn = told_to_wait(tx, claim, &line, is_next, scan.count());
    let waiting_before = if is_next { 0 } else { scan.at_least().saturating_sub(line.holders()).max(1) };
    if !claim.patient {
        let turn = turn.may_be_idle(Some(tx.may_be_idle(&claim.key)?));
        return Ok(Answer { turn, spot: None, waiting_before });
    }
    let seq = tx.next_numbers(1)?;
    tx.insert(claim, seq, false)?;
    if is_next {
        // The first who waits: whoever holds may want to hear of it.
        tx.called.extend(line.entries.iter().filter(|it| it.held).map(|it| it.id));
    }
    Ok(Answer { turn, spot: Some(Spot { id: claim.id, seq }), waiting_before })
}

/// What was written now is good for a ttl from now, however long it waited for the connection.
fn granted(tx: &Tx<'_>, claim: &Claim, line: &Line, counter: i64) -> Turn {
    Turn::Held(Grant::new(counter.unsigned_abs(), claim.ttl).wanted(line.is_wanted()).sent_at(tx.now))
}

/// The next in line asks again when a holder's time is over; those behind it only to keep their places.
fn told_to_wait(tx: &Tx<'_>, claim: &Claim, line: &Line, is_next: bool, ahead: Option<u64>) -> Turn {
    let kept = claim.ttl.saturating_sub(kept_for(claim.ttl));
    let recheck = if is_next { (line.next_expiry() - tx.now).min(kept) } else { kept };
    let theirs = claim.load.differing(line.entries.iter().map(|it| Load::new(it.weight, it.capacity)));
    Turn::wait(recheck.max(RECHECK_MIN), ahead).theirs(theirs)
}

/// See [`Place::renew`](lockkeeper_core::backend::Place::renew).
#[derive(Debug)]
pub(crate) struct AskRenew(pub(crate) Arc<Claim>);

impl Verb for AskRenew {
    type Answer = Renewal;
    const DOING: &'static str = "renewing the lock";
    const IS_URGENT: bool = true;

    fn run(&self, tx: &mut Tx<'_>) -> Result<Renewal> {
        let claim = &*self.0;
        let mut line = tx.line(&claim.key)?;
        let me = line.entries.iter().find(|it| it.id == claim.id && it.held).copied();
        tx.settle(&claim.key, &mut line)?;
        let Some(me) = me else {
            return Ok(Renewal::Lost);
        };
        tx.extend(claim, me.seq)?;
        Ok(Renewal::held(claim.ttl, line.is_wanted()).sent_at(tx.now))
    }
}

/// See [`Place::leave`](lockkeeper_core::backend::Place::leave).
#[derive(Debug)]
pub(crate) struct AskLeave {
    pub(crate) claim: Arc<Claim>,
    /// Where it should stand.
    pub(crate) spot: Option<Spot>,
    /// Somebody is known to wait behind us.
    pub(crate) wanted: bool,
}

impl Verb for AskLeave {
    type Answer = ();
    const DOING: &'static str = "giving the lock back";
    const IS_SHORT: bool = true;

    fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let claim = &*self.claim;
        let is_gone = self.spot.map_or(Ok(false), |it| tx.remove_spot(&claim.key, it))?;
        if !is_gone {
            tx.remove_id(&claim.key, claim.id)?;
        }
        // The leaver lets the next ones in: they are holders before they hear of it.
        let mut line = tx.line(&claim.key)?;
        match tx.settle(&claim.key, &mut line) {
            // The file is not ours any more, as after an upgrade. We may still go.
            Err(Trouble::Refused { .. }) => Ok(()),
            settled => settled,
        }
    }

    fn may_grant(&self) -> bool {
        self.wanted
    }
}
