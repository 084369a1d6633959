//! A claim at all nodes: two rounds to take the lock, one to renew it, one to leave.
//!
//! ```text
//!   turn  ─▶ round 1: `turn` on every node ─ a majority gave it ─▶ counter = the largest they gave
//!         ─▶ round 2: `raise` that counter, and ask for the standing, on those that gave it
//!                       ─ one knows a larger counter ─▶ once more, with that
//!                       ─ a majority still is ours, is old enough, is several servers ─▶ Held
//!         any other way ─▶ leave every node that may have heard of us ─▶ Wait a random while, or Err
//! ```
//!
//! Why two rounds order the fences: the majorities that confirmed two grants share a node. It held first the one,
//! then the other, and told the second of a larger counter than it had confirmed to the first. `lockkeeper-redlock-model`
//! shows what happens without the second round, and without the restart guard.
//!
//! Every attempt has an id of its own, so that a call of an earlier attempt which is still under way can
//! neither take nor give back anything for this one.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, FaultKind, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use lockkeeper_core::{Claim, ClaimId, Moment};

use crate::quorum::{self, Round, Say, count};
use crate::retake::Retake;
use crate::seat::{Cleaner, Seat};
use crate::{NAME, Shared};

const TAKING: &str = "taking the lock";
const RENEWING: &str = "renewing the lock";
const LEAVING: &str = "giving the lock back";

/// The shortest pause after a lost race is drawn from this span.
const RETRY_MIN: Duration = Duration::from_millis(2);

/// One claim's places at all nodes.
pub struct RedlockPlace<B: Node> {
    shared: Arc<Shared<B>>,
    cleaner: Cleaner,
    /// What nodes are told: the id of this attempt, and never to keep us in a line.
    claim: Claim,
    /// The id we were given, from which those of the attempts are made.
    id: ClaimId,
    attempt: u64,
    /// A node may have heard of this attempt.
    asked: bool,
    /// The counter of our grant, while we hold.
    fence: Option<u64>,
    /// Attempts in a row that failed.
    failures: u32,
    seats: Vec<Seat<B::Place>>,
}

/// What a node says in the second round.
struct Confirmed {
    /// The counter it knows us by; `None` if it does not.
    counter: Option<u64>,
    standing: Standing,
}

/// Where one node stands after both rounds.
enum Vote {
    /// It gave the lock, for so long, and confirmed it.
    For(Duration),
    /// It said no.
    Against,
    /// It cannot be counted, and why.
    Out(String, FaultKind),
}

impl<B: Node> fmt::Debug for RedlockPlace<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RedlockPlace { claim, attempt, .. } = self;
        f.debug_struct("RedlockPlace").field("claim", claim).field("attempt", attempt).finish_non_exhaustive()
    }
}

impl<B: Node> RedlockPlace<B> {
    pub(crate) fn new(shared: Arc<Shared<B>>, claim: Claim) -> Self {
        let forgets_after = claim.ttl + shared.options.drift(claim.ttl);
        let (clock, spawner, trust) = (shared.clock.clone(), shared.spawner.clone(), shared.trust.clone());
        let cleaner = Cleaner { clock, spawner, trust, forgets_after };
        let seats = shared.nodes.iter().map(|_| Seat::Empty).collect();
        let (id, claim) = (claim.id, claim.impatient());
        RedlockPlace { shared, cleaner, claim, id, attempt: 0, asked: false, fence: None, failures: 0, seats }
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    fn timeout(&self) -> Duration {
        self.shared.options.timeout_for(self.claim.ttl)
    }

    /// Enter where we have no place, at those nodes.
    fn fill(&mut self, at_node: impl Fn(usize) -> bool) {
        for (at, (seat, node)) in self.seats.iter_mut().zip(&self.shared.nodes).enumerate() {
            if at_node(at) && seat.is_vacant() {
                *seat = Seat::Here(node.enter(self.claim.clone()));
            }
        }
    }

    /// Round 1: who gives us the lock? Nodes that failed lately are asked where the others cannot decide.
    async fn ask(&mut self) -> Vec<Say<Turn>> {
        let (majority, now, trust) = (self.shared.majority(), self.now(), self.shared.trust.clone());
        let trusted = trust.iter().filter(|it| !it.is_doubted()).count();
        let due = trust.iter().map(|it| it.is_due(now) || trusted < majority);
        let due: Vec<bool> = due.collect();
        let silent: Vec<Say<Turn>> = trust.iter().map(|_| Say::Silent).collect();
        let mut given = self.ask_some(&due, &silent).await;
        let held = count(&given, is_held);
        if held < majority && majority <= held + due.iter().filter(|it| !**it).count() {
            let others: Vec<bool> = due.iter().map(|it| !it).collect();
            return self.ask_some(&others, &given).await;
        }
        for (said, trust) in given.iter_mut().zip(trust.iter()).zip(due).filter(|it| !it.1).map(|it| it.0) {
            *said = trust.fault().map_or(Say::Silent, Say::Failed);
        }
        given
    }

    /// Ask some nodes; the others have said something already.
    async fn ask_some(&mut self, some: &[bool], others: &[Say<Turn>]) -> Vec<Say<Turn>> {
        let (nodes, majority, timeout) = (self.seats.len(), self.shared.majority(), self.timeout());
        self.fill(|at| some[at]);
        let round = Round::begin(
            &mut self.seats,
            &self.cleaner,
            |at| some[at],
            |_, mut place: B::Place| {
                Box::pin(async move {
                    let answer = place.turn().await;
                    (Some(place), answer)
                })
            },
        );
        let (gave, refused) = (count(others, is_held), count(others, |it| !is_held(it)));
        let said = round.run(timeout, |said| {
            majority <= gave + count(said, is_held)
                || nodes - majority < refused + count(said, |it| !is_held(it))
        });
        let said = said.await.into_iter().zip(others).zip(some);
        said.map(|((said, other), asked)| if *asked { said } else { other.clone() }).collect()
    }

    /// Round 2: do those who gave it still know us, with this counter, and may they vote?
    async fn confirm(&mut self, given: &[Say<Turn>], counter: u64) -> Vec<Say<Confirmed>> {
        let gave = |at: usize| counter_of(&given[at]).is_some_and(|it| it <= counter);
        let (nodes, majority, timeout) = (self.shared.nodes.clone(), self.shared.majority(), self.timeout());
        let round = Round::begin(&mut self.seats, &self.cleaner, gave, move |at, mut place: B::Place| {
            let node = nodes[at].clone();
            Box::pin(async move {
                let (counter, standing) = tokio::join!(place.raise(counter), node.standing());
                let said = counter.and_then(|counter| Ok(Confirmed { counter, standing: standing? }));
                (Some(place), said)
            })
        });
        round.run(timeout, |said| majority <= count(said, |it| it.counter.is_some())).await
    }

    /// The counter to begin the second round with; `None` if too few gave the lock.
    ///
    /// The largest that was given. But if a majority tells one and the same, it is that of a grant we have already,
    /// which a node that joins late with a larger one must not change. Any counter that is not below those of
    /// some majority is as good for the order of fences.
    fn first_counter(&self, given: &[Say<Turn>]) -> Option<u64> {
        let mut counters: Vec<_> = given.iter().filter_map(counter_of).collect();
        counters.sort_unstable();
        let majority = self.shared.majority();
        let agreed = counters.windows(majority).find(|it| it.first() == it.last()).and_then(|it| it.last());
        agreed.or(counters.last()).filter(|_| majority <= counters.len()).copied()
    }

    /// The second round, repeated if a node knows of a larger counter than its `turn` told of.
    async fn settle(&mut self, given: &[Say<Turn>], counter: u64) -> (u64, Vec<Say<Confirmed>>) {
        let confirmed = self.confirm(given, counter).await;
        let largest = confirmed.iter().filter_map(|it| it.told()?.counter).max().unwrap_or(0);
        if largest <= counter {
            return (counter, confirmed);
        }
        (largest, self.confirm(given, largest).await)
    }

    /// Count both rounds, node by node.
    fn votes(
        &self,
        given: &[Say<Turn>],
        confirmed: &[Say<Confirmed>],
        fence: u64,
        started: Moment,
    ) -> Vec<Vote> {
        let silent = |said: Option<&Fault>| match said {
            Some(fault) => Vote::Out(fault.message.clone(), fault.kind),
            None => Vote::Out("no answer in time".into(), FaultKind::Transient),
        };
        let second_vote = |at: usize, grant: &Grant| match confirmed.get(at) {
            // Too few gave it, so there was no second round.
            None => Vote::For(grant.valid_for),
            Some(_) if fence < grant.counter => Vote::Against,
            Some(Say::Told(it)) if it.counter != Some(fence) => Vote::Against,
            Some(Say::Told(it)) => match self.too_young(&it.standing, started) {
                None => Vote::For(grant.valid_for),
                Some(why) => Vote::Out(why, FaultKind::Transient),
            },
            Some(Say::Failed(fault)) => silent(Some(fault)),
            Some(Say::Silent) => silent(None),
        };
        let vote = |(at, given): (usize, &Say<Turn>)| match given {
            Say::Told(Turn::Held(grant)) => second_vote(at, grant),
            Say::Told(Turn::Wait { .. }) => Vote::Against,
            Say::Failed(fault) => silent(Some(fault)),
            Say::Silent => silent(None),
        };
        given.iter().enumerate().map(vote).collect()
    }

    /// The restart guard: whoever may have forgotten a lease that still runs has no vote.
    fn too_young(&self, standing: &Standing, started: Moment) -> Option<String> {
        let (guard, remembers) = (self.shared.options.restart_guard?, standing.remembers?);
        let needed = guard + self.shared.options.drift(guard) + (self.now() - started);
        let left = needed.checked_sub(remembers).filter(|it| !it.is_zero())?;
        Some(format!("it lost its memory {remembers:.1?} ago and may vote in {left:.1?}"))
    }

    /// Take the lock back, in the background, at nodes that forgot it. The next renewal finds what came of it.
    fn retake(&mut self, at_node: impl Fn(usize) -> bool) {
        let Some(counter) = self.fence else { return };
        let options = &self.shared.options;
        let age_min = options.restart_guard.map(|it| it + options.drift(it));
        for (at, seat) in self.seats.iter_mut().enumerate().filter(|it| at_node(it.0)) {
            let retake = Retake { node: self.shared.nodes[at].clone(), counter, age_min };
            let verb = seat.begin(move |mut place: B::Place| {
                Box::pin(async move {
                    let answer = retake.run(&mut place).await;
                    (Some(place), answer)
                })
            });
            if let Some(verb) = verb {
                *seat = self.cleaner.adopt(verb);
            }
        }
    }

    /// Leave everywhere, and tell why there is no lock: somebody has it, or too few nodes could be asked.
    async fn fail(&mut self, given: &[Say<Turn>], votes: Vec<Vote>) -> Result<Turn> {
        // Who said no to an impatient claim has forgotten it already.
        self.give_up(|at| !matches!(given[at], Say::Told(Turn::Wait { .. }))).await;
        self.failures = self.failures.saturating_add(1);
        let (nodes, majority) = (votes.len(), self.shared.majority());
        let out = |(at, it)| if let Vote::Out(why, kind) = it { Some((at, why, kind)) } else { None };
        let reasons: Vec<_> = votes.into_iter().enumerate().filter_map(out).collect();
        if nodes - reasons.len() < majority {
            return Err(quorum::from_reasons(TAKING, majority, nodes, &reasons));
        }
        Ok(Turn::wait(self.pause(), None))
    }

    /// Give back what nodes may have given, and begin a new attempt. What cannot be confirmed now is repeated
    /// in the background.
    async fn give_up(&mut self, from: impl Fn(usize) -> bool) {
        // A call that was too slow before is not waited for again.
        for (at, seat) in self.seats.iter_mut().enumerate() {
            match seat {
                Seat::Away { .. } => self.cleaner.abandon(seat),
                Seat::Here(_) if !from(at) => *seat = Seat::Empty,
                _ => {}
            }
        }
        let said = self.leave_seats().await;
        self.begin_anew(&said);
    }

    async fn leave_seats(&mut self) -> Vec<Say<()>> {
        let (majority, timeout) = (self.shared.majority(), self.timeout());
        let vacant: Vec<bool> = self.seats.iter_mut().map(Seat::is_vacant).collect();
        let left_before = vacant.iter().filter(|it| **it).count();
        let round = Round::begin(
            &mut self.seats,
            &self.cleaner,
            |_| true,
            |_, mut place: B::Place| {
                Box::pin(async move {
                    let answer = place.leave().await;
                    (Some(place), answer)
                })
            },
        );
        let said = round.run(timeout, |said| majority <= left_before + count(said, |()| true)).await;
        said.into_iter().zip(vacant).map(|(said, vacant)| if vacant { Say::Told(()) } else { said }).collect()
    }

    /// The next attempt has a new id; whoever did not confirm that we left is told again in the background.
    fn begin_anew(&mut self, left: &[Say<()>]) {
        for (seat, said) in self.seats.iter_mut().zip(left) {
            match (&seat, said) {
                (Seat::Here(_), Say::Told(())) => *seat = Seat::Empty,
                _ => self.cleaner.abandon(seat),
            }
        }
        self.attempt += 1;
        (self.asked, self.fence) = (false, None);
        self.claim.id = id_of_attempt(self.id, self.attempt);
    }

    /// A random pause, so that contenders do not split the vote for ever; longer after every failure.
    fn pause(&self) -> Duration {
        let longest = self.shared.options.retry_max.min(self.claim.ttl / 4);
        let span = (RETRY_MIN * (1 << self.failures.min(10))).min(longest);
        let share = u32::from(self.shared.draw());
        (span / 4 + span * 3 / 4 * share / u32::from(u16::MAX)).max(Duration::from_millis(1))
    }

    fn check_room(&self) -> Result<()> {
        if self.claim.load.weight == 1 && self.claim.load.capacity == 1 {
            return Ok(());
        }
        Err(Fault::permanent(
            NAME,
            TAKING,
            "a majority of nodes can hold a mutex only: weight 1 of capacity 1",
        ))
    }

    /// How long a majority keeps what it said it would keep for so long each.
    fn kept(&self, spans: Vec<Duration>) -> Option<Duration> {
        let span = quorum::reached_by(self.shared.majority(), spans)?;
        Some(span.saturating_sub(self.shared.options.drift(span)))
    }
}

impl<B: Node> Place for RedlockPlace<B> {
    async fn turn(&mut self) -> Result<Turn> {
        self.check_room()?;
        let started = self.now();
        self.asked = true;
        let given = self.ask().await;
        let (counter, confirmed) = match self.first_counter(&given) {
            Some(counter) => self.settle(&given, counter).await,
            None => (0, Vec::new()),
        };
        let standings: Vec<_> = confirmed.iter().map(Say::standing).collect();
        if let Some(what) = quorum::same_server(&standings) {
            self.give_up(|_| true).await;
            return Err(Fault::permanent(NAME, TAKING, what));
        }
        let votes = self.votes(&given, &confirmed, counter, started);
        let spans = votes.iter().filter_map(|it| if let Vote::For(span) = it { Some(*span) } else { None });
        match self.kept(spans.collect()) {
            Some(valid_for) if self.now() < started.after(valid_for) => {
                (self.failures, self.fence) = (0, Some(counter));
                Ok(Turn::Held(Grant::new(counter, valid_for).wanted(false)))
            }
            _ => self.fail(&given, votes).await,
        }
    }

    /// Nodes keep no line for us, so nobody calls.
    async fn changed(&mut self) {
        pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.fill(|_| true);
        let (nodes, majority, timeout) = (self.seats.len(), self.shared.majority(), self.timeout());
        let round = Round::begin(
            &mut self.seats,
            &self.cleaner,
            |_| true,
            |_, mut place: B::Place| {
                Box::pin(async move {
                    let answer = place.renew().await;
                    (Some(place), answer)
                })
            },
        );
        let lost = |it: &Renewal| matches!(it, Renewal::Lost);
        let said = round
            .run(timeout, |said| {
                majority <= count(said, |it| !lost(it)) || nodes - majority < count(said, lost)
            })
            .await;
        let spans = said.iter().filter_map(|it| match it.told()? {
            Renewal::Held { valid_for, .. } => Some(*valid_for),
            Renewal::Lost => None,
        });
        match self.kept(spans.collect()) {
            // No node keeps a line, so nobody can tell whether others wait. To be fair, assume it.
            Some(valid_for) => {
                self.retake(|at| said[at].told().is_some_and(lost));
                Ok(Renewal::held(valid_for, true))
            }
            None if nodes - majority < count(&said, lost) => Ok(Renewal::Lost),
            None => Err(quorum::too_few(RENEWING, majority, &said)),
        }
    }

    async fn leave(&mut self) -> Result<()> {
        if !self.asked && 0 < self.attempt {
            return Ok(());
        }
        // Nodes that were passed over know nothing of us. If none was asked, another place of this claim may have.
        let asked = self.asked;
        self.fill(|_| !asked);
        let said = self.leave_seats().await;
        let majority = self.shared.majority();
        if count(&said, |()| true) < majority {
            return Err(quorum::too_few(LEAVING, majority, &said));
        }
        // The lock is free: no majority of nodes knows us any more. The others hear it from the background.
        self.begin_anew(&said);
        Ok(())
    }
}

/// A call that is still under way must not leave anything behind when nobody waits for it.
impl<B: Node> Drop for RedlockPlace<B> {
    fn drop(&mut self) {
        for seat in &mut self.seats {
            if let Seat::Away { .. } = seat {
                self.cleaner.abandon(seat);
            }
        }
    }
}

fn is_held(turn: &Turn) -> bool {
    matches!(turn, Turn::Held(_))
}

/// The counter of a node that gave the lock.
fn counter_of(said: &Say<Turn>) -> Option<u64> {
    match said.told()? {
        Turn::Held(grant) => Some(grant.counter),
        Turn::Wait { .. } => None,
    }
}

/// The id of a later attempt: as unguessable as the claim's, and the same for the same claim.
fn id_of_attempt(id: ClaimId, attempt: u64) -> ClaimId {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mut bits = u128::from_be_bytes(*id.as_bytes()) ^ u128::from(attempt).wrapping_mul(ODD);
    for _ in 0..3 {
        bits = (bits ^ (bits >> 61)).wrapping_mul(ODD);
    }
    ClaimId::from_bytes((bits ^ (bits >> 64)).to_be_bytes())
}

impl Say<Confirmed> {
    fn standing(&self) -> Say<Standing> {
        self.told().map_or(Say::Silent, |it| Say::Told(it.standing.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn attempts_of_neighbouring_claims_never_share_an_id() {
        let ids = (0_u128..200).map(|it| ClaimId::from_bytes(it.to_be_bytes()));
        let derived: HashSet<_> = ids.flat_map(|id| (1..200).map(move |it| id_of_attempt(id, it))).collect();
        assert_eq!(derived.len(), 200 * 199);
    }
}
