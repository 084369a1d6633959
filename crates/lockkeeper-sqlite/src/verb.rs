//! The verbs as they run on the connection's thread: each reads one line and changes it by the rule.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Renewal, Turn};
use lockkeeper_core::{Claim, Moment};

use crate::connection::{Look, Verb};
use crate::fault::{Result, Trouble};
use crate::line::{Line, Standing, Tx};

/// The shortest time after which a waiter is told to ask again by itself.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// See [`Place::turn`](lockkeeper_core::backend::Place::turn).
#[derive(Debug)]
pub(crate) struct AskTurn {
    pub(crate) claim: Arc<Claim>,
    /// When the verb was called.
    pub(crate) called: Moment,
    /// The last answer was to wait: perhaps we were let in since.
    pub(crate) waits: bool,
}

impl Verb for AskTurn {
    type Answer = Turn;
    const DOING: &'static str = "taking the lock";

    /// Whoever left may have let us in. Then we are the holder already, and a look is enough: the hand-on
    /// cost one commit, the leaver's.
    fn look(&self, look: &Look<'_>) -> Result<Option<Turn>> {
        if !self.waits {
            return Ok(None);
        }
        let line = Line::read(look.connection, &self.claim.key, look.now)?;
        let me = line.standings.iter().find(|it| it.id == self.claim.id && it.held);
        // With little time left, writing is better: it extends.
        Ok(me.filter(|it| self.claim.ttl / 2 <= it.expires - look.now).map(|me| {
            Turn::Held(
                Grant::new(me.counter.unsigned_abs(), (me.expires - self.called).min(self.claim.ttl))
                    .wanted(line.is_wanted()),
            )
        }))
    }

    fn run(&self, tx: &mut Tx<'_>) -> Result<Turn> {
        let claim = &*self.claim;
        if claim.load.capacity < claim.load.weight {
            let (weight, capacity) = (claim.load.weight, claim.load.capacity);
            return Err(Trouble::permanent(format!(
                "a claim of weight {weight} never fits into a room of capacity {capacity}; ask for less"
            )));
        }
        let mut line = tx.line(&claim.key)?;
        match line.position(claim.id) {
            Some(at) => ask_again(tx, claim, &mut line, at),
            None => arrive(tx, claim, &mut line),
        }
    }
}

/// A claim that the file knows: keep its place, and see whether it may enter.
fn ask_again(tx: &mut Tx<'_>, claim: &Claim, line: &mut Line, at: usize) -> Result<Turn> {
    tx.settle(&claim.key, line, Some(at))?;
    let (me, turn) = (line.standings[at], answer(tx, claim, line, at));
    if me.held || claim.patient {
        tx.extend(claim, me.seq)?;
        return Ok(turn);
    }
    line.standings.remove(at);
    tx.remove(&claim.key, me.seq)?;
    tx.settle(&claim.key, line, None)?;
    Ok(turn)
}

/// A claim that the file does not know. It gets its number only when something of it is to stay.
fn arrive(tx: &mut Tx<'_>, claim: &Claim, line: &mut Line) -> Result<Turn> {
    let at = line.standings.len();
    line.standings.push(Standing {
        seq: 0,
        id: claim.id,
        counter: 0,
        held: false,
        expires: tx.now.after(claim.ttl),
        weight: claim.load.weight,
        capacity: claim.load.capacity,
    });
    let mut entered = line.admit(Some(at));
    let held = entered.pop_if(|it| *it == at).is_some();
    tx.write_entered(&claim.key, line, &entered)?;
    if held || claim.patient {
        let number = tx.next_number()?;
        tx.insert(claim, number, held)?;
        line.standings[at].counter = number;
    }
    Ok(answer(tx, claim, line, at))
}

/// What to tell the claim that stands at `at`.
fn answer(tx: &Tx<'_>, claim: &Claim, line: &Line, at: usize) -> Turn {
    let me = &line.standings[at];
    if !me.held {
        return Turn::wait(
            (line.next_expiry(at) - tx.now).min(claim.ttl / 3).max(RECHECK_MIN),
            u64::try_from(at).ok(),
        );
    }
    Turn::Held(Grant::new(me.counter.unsigned_abs(), claim.ttl).wanted(line.is_wanted()))
}

/// See [`Place::renew`](lockkeeper_core::backend::Place::renew).
#[derive(Debug)]
pub(crate) struct AskRenew(pub(crate) Arc<Claim>);

impl Verb for AskRenew {
    type Answer = Renewal;
    const DOING: &'static str = "renewing the lock";

    fn run(&self, tx: &mut Tx<'_>) -> Result<Renewal> {
        let claim = &*self.0;
        let mut line = tx.line(&claim.key)?;
        let me = line.standings.iter().find(|it| it.id == claim.id && it.held).copied();
        tx.settle(&claim.key, &mut line, None)?;
        let Some(me) = me else {
            return Ok(Renewal::Lost);
        };
        tx.extend(claim, me.seq)?;
        Ok(Renewal::held(claim.ttl, line.is_wanted()))
    }
}

/// See [`Place::leave`](lockkeeper_core::backend::Place::leave).
#[derive(Debug)]
pub(crate) struct AskLeave(pub(crate) Arc<Claim>);

impl Verb for AskLeave {
    type Answer = ();
    const DOING: &'static str = "giving up the lock";

    fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let claim = &*self.0;
        let mut line = tx.line(&claim.key)?;
        if let Some(at) = line.position(claim.id) {
            let me = line.standings.remove(at);
            tx.remove(&claim.key, me.seq)?;
        }
        // The leaver lets the next one in: it is the holder before it hears of it.
        match tx.settle(&claim.key, &mut line, None) {
            // The file is not ours any more, as after an upgrade. We may still go.
            Err(Trouble::Refused { .. }) => Ok(()),
            settled => settled,
        }
    }
}
