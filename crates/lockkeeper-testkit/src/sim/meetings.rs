//! Users of a simulation that have jobs, latches, barriers and roles, and what they tell each other about them.
//!
//! What is checked is what holds whoever dies or stands still: nobody begins what it could have known to be done; a latch forgets
//! nobody and counts nobody who did not come; all hear one verdict of a round; a term has one leader, and between two terms
//! somebody who looks sees that nobody leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::barrier::{Meeting, Verdict};
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Error, Fence, LatchStatus, Leader, Once};

use super::users::{User, walk_away};

/// So few that many meet.
const TICKS: u64 = 4;
const ROUNDS: u64 = 3;
const PARTIES: u32 = 2;
pub(super) const ROLE: &str = "simulated/role";

/// What users were told. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Minutes(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    /// Ticks whose job has ended well at least once, and those of which somebody was told so.
    ended: BTreeSet<u64>,
    done: BTreeSet<u64>,
    /// Who has begun to arrive for each round of the latch, and who was told that it has.
    coming: BTreeMap<u64, BTreeSet<String>>,
    arrived: BTreeMap<u64, BTreeSet<String>>,
    /// How many began to wait at the barrier, and what was heard of each round, by how many.
    waits: usize,
    heard: BTreeMap<u64, (Verdict, usize)>,
    /// What the leader of each term was seen to say.
    said: BTreeMap<Fence, String>,
}

impl Minutes {
    fn book<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        f(&mut locked(&self.0))
    }
}

impl Book {
    /// What is wrong with what was told of a latch, asked for when these were known to have arrived.
    fn latch(&mut self, round: u64, before: &BTreeSet<String>, told: &LatchStatus) -> Option<String> {
        let there: BTreeSet<String> = told.arrived.iter().cloned().collect();
        let coming = self.coming.entry(round).or_default();
        let wrong =
            !there.is_subset(coming) || !before.is_subset(&there) || there.len() != told.arrived.len();
        wrong.then(|| {
            format!("round {round} of the latch: {told:?}, when {coming:?} came and {before:?} were there")
        })
    }

    /// What is wrong with what was heard of a round.
    fn met(&mut self, meeting: &Meeting) -> Option<String> {
        let Meeting { round, verdict, .. } = *meeting;
        let (first, count) = self.heard.entry(round).or_insert((verdict, 0));
        *count += 1;
        let (first, count, parties) = (*first, *count, usize::try_from(PARTIES).unwrap_or(0));
        let opened = self.heard.values().filter(|it| it.0 == Verdict::Open).count();
        if first != verdict {
            return Some(format!("of round {round} one heard {first:?} and another {verdict:?}"));
        }
        if parties < count {
            return Some(format!("{count} took part in round {round} of {parties}"));
        }
        (self.waits < opened * parties)
            .then(|| format!("{opened} rounds opened for {parties} each, and {} came", self.waits))
    }
}

/// How a job ends.
enum Job {
    OnPurpose,
    Failed(Error),
}

impl From<Error> for Job {
    fn from(error: Error) -> Self {
        Job::Failed(error)
    }
}

impl User {
    /// One of the things that are done together with others.
    pub(super) async fn live_with_others(&mut self) {
        match self.chance.below(5) {
            0 => self.live_by_ticks().await,
            1 => self.arrive().await,
            2 => self.meet().await,
            3 => self.lead().await,
            _ => self.look_who_leads().await,
        }
    }

    /// A good request may fail only because the store cannot be reached, or somebody else is in the way for too long.
    fn excuse(&self, error: &Error) {
        match error {
            Error::TimedOut { .. } | Error::Unavailable { .. } | Error::Lost { .. } => {
                self.witness.count(|it| it.refused += 1);
            }
            error => self.witness.accuse(format!("a good request was answered with: {error}")),
        }
    }

    async fn live_by_ticks(&mut self) {
        let (tick, minutes) = (self.chance.below(TICKS), self.minutes.clone());
        let (span, bored, wait) =
            (self.chance.span(self.ttl / 2), self.chance.span(self.ttl * 4), self.chance.span(self.ttl * 4));
        let fails = self.chance.per_mille(300);
        let known_done = minutes.book(|it| it.done.contains(&tick));
        let (witness, clock, body) = (self.witness.clone(), self.clock.clone(), minutes.clone());
        let once = self.locker.once("simulated/job", tick.to_string()).ttl(self.ttl).wait_at_most(wait);
        let run = once.run(async |_| {
            if known_done {
                witness.accuse(format!("tick {tick} is done, and begun again by one who asked afterwards"));
            }
            clock.sleep(span).await;
            if fails {
                return Err(Job::OnPurpose);
            }
            body.book(|it| it.ended.insert(tick));
            Ok(())
        });
        match walk_away(run, self.clock.sleep(bored)).await {
            Ok(Some(Once::Ran(()))) => {
                minutes.book(|it| it.done.insert(tick));
                self.witness.count(|it| it.ran += 1);
            }
            Ok(Some(Once::Done)) if !minutes.book(|it| it.ended.contains(&tick)) => {
                self.witness
                    .accuse(format!("tick {tick} is said to be done, and no job of it has ended well"));
            }
            Ok(Some(_)) | Err(Job::OnPurpose) => {}
            Ok(None) => self.witness.count(|it| it.cancelled += 1),
            Err(Job::Failed(error)) => self.excuse(&error),
        }
    }

    async fn arrive(&mut self) {
        let (round, minutes) = (self.chance.below(ROUNDS), self.minutes.clone());
        let party = format!("party {}", self.chance.below(u64::from(PARTIES) + 1));
        let latch = self.locker.latch("simulated/latch", PARTIES + 1).round(round.to_string());
        let waits = self.chance.per_mille(400);
        let (wait, bored) = (self.chance.span(self.ttl * 2), self.chance.span(self.ttl * 2));
        let before = minutes.book(|it| it.arrived.entry(round).or_default().clone());
        let told = if waits {
            walk_away(latch.wait_at_most(wait), self.clock.sleep(bored)).await
        } else {
            minutes.book(|it| it.coming.entry(round).or_default().insert(party.clone()));
            walk_away(latch.arrive(&party), self.clock.sleep(bored)).await
        };
        match told {
            Ok(Some(told)) => {
                if !waits {
                    minutes.book(|it| it.arrived.entry(round).or_default().insert(party));
                }
                self.witness.count(|it| it.opened += u64::from(told.is_open()));
                if let Some(wrong) = minutes.book(|it| it.latch(round, &before, &told)) {
                    self.witness.accuse(wrong);
                }
            }
            Ok(None) => self.witness.count(|it| it.cancelled += 1),
            Err(error) => self.excuse(&error),
        }
    }

    async fn meet(&mut self) {
        let (barrier, minutes) = (self.locker.barrier("simulated/barrier", PARTIES), self.minutes.clone());
        let barrier = barrier.ttl(self.ttl);
        let (wait, bored) = (self.chance.span(self.ttl * 4), self.chance.span(self.ttl * 8));
        minutes.book(|it| it.waits += 1);
        match walk_away(barrier.wait_at_most(&self.name, wait), self.clock.sleep(bored)).await {
            Ok(Some(meeting)) => {
                self.witness.count(|it| it.met += u64::from(meeting.verdict == Verdict::Open));
                if let Some(wrong) = minutes.book(|it| it.met(&meeting)) {
                    self.witness.accuse(wrong);
                }
            }
            Ok(None) => self.witness.count(|it| it.cancelled += 1),
            Err(error) => self.excuse(&error),
        }
    }

    async fn lead(&mut self) {
        let (wait, bored) = (self.chance.span(self.ttl * 4), self.chance.span(self.ttl * 4));
        let campaign = self.locker.campaign(ROLE, self.name.as_str()).ttl(self.ttl).wait_at_most(wait);
        let leads = match walk_away(campaign.win(), self.clock.sleep(bored)).await {
            Ok(Some(leads)) => self.witness.leads(self.process.id(), leads),
            Ok(None) => return self.witness.count(|it| it.cancelled += 1),
            Err(error) => return self.excuse(&error),
        };
        let span = self.chance.span(self.ttl * 2);
        drop(leads.run(self.clock.sleep(span)).await);
        let Some(leads) = Arc::into_inner(leads) else {
            return self.witness.accuse("a role was shared by mistake of the simulation".to_owned());
        };
        if self.chance.per_mille(700) {
            drop(walk_away(leads.resign(), self.clock.sleep(span)).await);
        }
    }

    /// Look for a while. Of two who are seen one after the other somebody sees that the first has gone.
    async fn look_who_leads(&mut self) {
        let Ok(mut leaders) = self.locker.leaders(ROLE) else { return };
        let until = self.clock.now().after(self.chance.span(self.ttl * 6));
        let mut before: Option<Leader> = None;
        while self.clock.now() < until {
            match walk_away(leaders.next(), self.clock.sleep_until(until)).await {
                Ok(Some(seen)) => {
                    if let Some(leader) = &seen {
                        self.judge(before.as_ref(), leader);
                    }
                    before = seen;
                }
                Ok(None) => return,
                Err(error) => {
                    self.excuse(&error);
                    self.clock.sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    fn judge(&self, before: Option<&Leader>, seen: &Leader) {
        let (term, value) = (seen.term, &seen.value);
        if before.is_some_and(|it| it.term != term) {
            self.witness
                .accuse(format!("{before:?} and then {seen:?} are seen, and never that nobody leads"));
        }
        let said = self.minutes.book(|it| it.said.entry(term).or_insert_with(|| value.clone()).clone());
        if said != *value {
            self.witness.accuse(format!("{said} and {value} were both seen to lead in term {term}"));
        }
        self.witness.count(|it| it.seen += 1);
    }
}
