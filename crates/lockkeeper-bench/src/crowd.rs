//! Many who want one lock: tasks of this process, or of several. The one crowd of all suites, so that a column means the
//! same for every store.
//!
//! Whoever fights writes down when it asked for the lock, had it and gave it back, by the clock that all processes
//! share, and adds one to a number that only the lock guards. What a crowd reached is reckoned from that.

mod parties;
mod shared;
mod worker;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use lockkeeper_core::{Clock, Moment};

use crate::Answer;
use crate::measure::{jain, median, per, quantile, rate};
use crate::report::say;
use crate::rival::Rival;
pub(crate) use parties::{Parties, Plan, Worker};
use shared::Shared;
pub(crate) use worker::{WORKER, answer, heard, work};

/// Everybody has begun by then. What counts begins here, so that nobody has the lock to itself in it.
const WARM_UP: Duration = Duration::from_millis(500);
/// And so much more for each process, for its first turn.
const WARM_UP_EACH: Duration = Duration::from_millis(15);

/// What most crowds ask for.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// One guarded round, in nanoseconds of the clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    asked: u64,
    had: u64,
    /// Right before it was given back.
    gave: u64,
}

/// When a task ends: at a moment, or after so many rounds.
#[derive(Clone, Copy, Debug)]
struct Limit {
    until: Moment,
    rounds: usize,
}

/// What the tasks of one process did.
#[derive(Debug, Default)]
struct Party {
    rounds: Vec<Round>,
    refused: u64,
}

/// What a crowd reached.
#[derive(Debug)]
pub(crate) struct Crowd {
    parties: Vec<Party>,
    /// What counts.
    window: Range<u64>,
    /// The number that everybody added to.
    sum: u64,
}

/// The span that counts, if so many parties begin now.
fn soon(span: Duration, parties: usize) -> Range<Moment> {
    let parties = u32::try_from(parties).unwrap_or(u32::MAX);
    let from = Clock::boot().now().after(WARM_UP + WARM_UP_EACH * parties);
    from..from.after(span)
}

/// A crowd in this process. Each rival is a party of its own, with so many tasks.
pub(crate) async fn here<R: Rival>(rivals: Vec<R>, tasks: usize, key: &str, span: Duration) -> Answer<Crowd> {
    let (shared, window) = (Shared::memory(), soon(span, rivals.len()));
    let limit = Limit { until: window.end, rounds: usize::MAX };
    let fights = rivals.iter().map(|it| fight(it, tasks, key, limit, &shared));
    let parties = try_join_all(fights).await?;
    Crowd::of(parties, window.start.as_nanos()..window.end.as_nanos(), &shared)
}

/// Fight for the lock with so many tasks.
async fn fight<R: Rival>(rival: &R, tasks: usize, key: &str, limit: Limit, shared: &Shared) -> Answer<Party> {
    let fighter = Fighter {
        rival: rival.clone(),
        key: key.into(),
        clock: Clock::boot(),
        limit,
        shared: shared.clone(),
    };
    let tasks = (0..tasks).map(|_| tokio::spawn(fighter.clone().run()));
    let mut all = Party::default();
    for party in join_all(tasks).await {
        let mut party = party?;
        all.rounds.append(&mut party.rounds);
        all.refused += party.refused;
    }
    Ok(all)
}

/// One task.
#[derive(Clone)]
struct Fighter<R> {
    rival: R,
    key: Arc<str>,
    clock: Clock,
    limit: Limit,
    shared: Shared,
}

impl<R: Rival> Fighter<R> {
    /// To the end, or to the first refusal.
    async fn run(mut self) -> Party {
        let mut party = Party::default();
        while party.rounds.len() < self.limit.rounds {
            let asked = self.clock.now();
            if self.limit.until <= asked {
                break;
            }
            if let Err(error) = self.round(asked, &mut party.rounds).await {
                say(&format!("refused: {error}"));
                party.refused += 1;
                break;
            }
        }
        party
    }

    async fn round(&mut self, asked: Moment, rounds: &mut Vec<Round>) -> Answer<()> {
        let taken = self.rival.take(&self.key).await?;
        let had = self.clock.now();
        self.shared.add_one()?;
        let gave = self.clock.now();
        rounds.push(Round { asked: asked.as_nanos(), had: had.as_nanos(), gave: gave.as_nanos() });
        self.rival.give_back(taken).await
    }
}

impl Crowd {
    /// What these did, if no two held the lock at once.
    fn of(parties: Vec<Party>, window: Range<u64>, shared: &Shared) -> Answer<Self> {
        let crowd = Crowd { parties, window, sum: shared.read()? };
        let held = crowd.in_order();
        match held.windows(2).find(|it| it[1].1.had < it[0].1.gave) {
            None => Ok(crowd),
            Some(two) => Err(format!("two held it at once: {two:?}").into()),
        }
    }

    /// The same, counted while all parties take part: from when the last has asked until the first is done.
    fn while_all_run(mut self) -> Self {
        let asked = |it: &Party| it.rounds.iter().map(|it| it.asked).min().unwrap_or(u64::MAX);
        let gave = |it: &Party| it.rounds.iter().map(|it| it.gave).max().unwrap_or(0);
        let from = self.parties.iter().map(asked).max().unwrap_or(0);
        self.window = from..self.parties.iter().map(gave).min().unwrap_or(0);
        self
    }

    /// All rounds in the order in which the lock was had, with the party of each.
    fn in_order(&self) -> Vec<(usize, Round)> {
        let numbered = self.parties.iter().enumerate();
        let mut all: Vec<(usize, Round)> =
            numbered.flat_map(|(at, it)| it.rounds.iter().map(move |round| (at, *round))).collect();
        all.sort_unstable_by_key(|it| it.1.had);
        all
    }

    /// Guards in all, also before and after what counts.
    pub(crate) fn total(&self) -> u64 {
        self.parties.iter().map(|it| it.rounds.len() as u64).sum()
    }

    /// How often somebody did not get the lock, or could not give it back.
    pub(crate) fn refused(&self) -> u64 {
        self.parties.iter().map(|it| it.refused).sum()
    }

    /// The number that everybody added to: the guards in all, if no update was lost.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// Itself, if nobody was refused.
    pub(crate) fn all_served(self) -> Answer<Self> {
        match self.refused() {
            0 => Ok(self),
            some => Err(format!("{some} were refused").into()),
        }
    }

    /// Itself, if nobody was refused and no update was lost.
    pub(crate) fn sound(self) -> Answer<Self> {
        match (self.sum, self.total()) {
            (sum, total) if sum == total => self.all_served(),
            (sum, total) => Err(format!("{total} guards, but {sum} updates").into()),
        }
    }

    /// The guards of each party.
    pub(crate) fn guards(&self) -> Vec<u64> {
        let count = |it: &Party| it.rounds.iter().filter(|it| self.window.contains(&it.had)).count() as u64;
        self.parties.iter().map(count).collect()
    }

    /// Guards per second.
    pub(crate) fn rate(&self) -> f64 {
        let span = Duration::from_nanos(self.window.end.saturating_sub(self.window.start));
        rate(self.guards().iter().sum(), span)
    }

    /// How evenly the parties are served.
    pub(crate) fn jain(&self) -> f64 {
        jain(&self.guards())
    }

    /// From the release by one party to the grant in another, in microseconds: the median and the 99th percentile.
    pub(crate) fn hand_on(&self) -> (f64, f64) {
        let all = self.in_order();
        let between = all.windows(2).filter(|it| it[0].0 != it[1].0 && self.window.contains(&it[1].1.had));
        let mut spans: Vec<f64> = between.map(|it| per(it[1].1.had - it[0].1.gave, 1000)).collect();
        (median(&mut spans), quantile(&mut spans, 99))
    }

    /// How long after the first had begun the last party had its first guard.
    pub(crate) fn last_served_after(&self) -> Duration {
        let rounds = || self.parties.iter().flat_map(|it| &it.rounds);
        let begun = rounds().map(|it| it.asked).min().unwrap_or(0);
        let first = |it: &Party| it.rounds.iter().map(|it| it.had).min().unwrap_or(u64::MAX);
        Duration::from_nanos(self.parties.iter().map(first).max().unwrap_or(0).saturating_sub(begun))
    }

    /// From asking to having, in milliseconds: what so many per cent of the rounds that count do not exceed.
    pub(crate) fn wait(&self, percent: usize) -> f64 {
        let rounds = self.parties.iter().flat_map(|it| &it.rounds).filter(|it| self.window.contains(&it.had));
        let mut waits: Vec<f64> = rounds.map(|it| per(it.had - it.asked, 1_000_000)).collect();
        quantile(&mut waits, percent)
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        let rounds = self.parties.iter().flat_map(|it| &it.rounds);
        Duration::from_nanos(rounds.map(|it| it.had - it.asked).max().unwrap_or(0))
    }

    /// How many rounds were had before one that was surely asked for earlier, by another party, and still waited.
    pub(crate) fn overtaking(&self) -> usize {
        // A claim needs a moment to reach the store; only a clear lead counts as having come first.
        self.overtaking_by(Duration::from_millis(20))
    }

    /// The same as a share of all rounds, where coming first means by ten hand-offs: a line of a few processes moves on
    /// so quickly that nothing in it is late by more, unless somebody was passed over.
    pub(crate) fn passed_over(&self) -> f64 {
        let hand_off = Duration::from_secs_f64(1.0 / self.rate().max(1.0));
        per(self.overtaking_by(hand_off * 10) as u64, self.total())
    }

    fn overtaking_by(&self, lead: Duration) -> usize {
        let lead = u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX);
        let mut all = self.in_order();
        all.sort_unstable_by_key(|it| it.1.asked);
        // Of those with a clear lead, each party's latest grant: most often there are millions of rounds.
        let (mut latest, mut ahead) = (Latest::default(), all.iter().peekable());
        let overtook = all.iter().filter(|(party, round)| {
            while let Some((earlier, it)) =
                ahead.next_if(|(_, it)| it.asked.saturating_add(lead) < round.asked)
            {
                latest.add(*earlier, it.had);
            }
            latest.of_others(*party).is_some_and(|had| round.had < had)
        });
        overtook.count()
    }
}

/// The latest grant so far, and the latest of another party than that one's.
#[derive(Default)]
struct Latest {
    first: Option<(usize, u64)>,
    second: Option<(usize, u64)>,
}

impl Latest {
    fn add(&mut self, party: usize, had: u64) {
        let later = |than: Option<(usize, u64)>| than.is_none_or(|it| it.1 < had);
        if self.first.is_some_and(|it| it.0 != party) && later(self.first) {
            self.second = self.first.take();
        }
        if self.first.is_none_or(|it| it.0 == party) {
            if later(self.first) {
                self.first = Some((party, had));
            }
        } else if later(self.second) {
            self.second = Some((party, had));
        }
    }

    fn of_others(&self, party: usize) -> Option<u64> {
        [self.first, self.second].into_iter().flatten().find(|it| it.0 != party).map(|it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(rounds: &[(u64, u64, u64)]) -> Party {
        let rounds = rounds.iter().map(|&(asked, had, gave)| Round { asked, had, gave }).collect();
        Party { rounds, refused: 0 }
    }

    fn counted(count: u64) -> Shared {
        let shared = Shared::memory();
        (0..count).for_each(|_| shared.add_one().unwrap());
        shared
    }

    #[test]
    fn what_a_crowd_reached_is_reckoned_from_its_rounds() {
        let parties = vec![
            party(&[(0, 1_000, 2_000), (2_000, 5_000, 6_000)]),
            party(&[(0, 3_000, 4_000), (4_000, 9_000, 9_500)]),
        ];
        let crowd = Crowd::of(parties, 0..9_000, &counted(4)).unwrap();
        assert_eq!((crowd.total(), crowd.guards()), (4, vec![2, 1]));
        // Three grants follow one of the other party, two of them in time: 1 µs each.
        assert_eq!(format!("{:?}", crowd.hand_on()), "(1.0, 1.0)");
        assert_eq!(crowd.last_served_after(), Duration::from_micros(3));
        assert_eq!(crowd.longest_wait(), Duration::from_micros(5));
        assert_eq!(format!("{:.3}", crowd.wait(99)), "0.003", "the longest is not in the time that counts");
        assert_eq!(crowd.while_all_run().window, 0..6_000);
    }

    #[test]
    fn two_holders_at_once_and_lost_updates_are_errors() {
        let both = || vec![party(&[(0, 1, 5)]), party(&[(0, 4, 9)])];
        assert!(Crowd::of(both(), 0..9, &counted(2)).unwrap_err().to_string().contains("at once"));
        let apart = vec![party(&[(0, 1, 3)]), party(&[(0, 4, 9)])];
        let lost = Crowd::of(apart, 0..9, &counted(1)).unwrap().sound();
        assert!(lost.unwrap_err().to_string().contains("1 updates"));
    }

    #[test]
    fn whoever_clearly_came_later_and_was_served_first_overtook() {
        let ms = |it: u64| it * 1_000_000;
        let parties = vec![party(&[(0, ms(100), ms(101))]), party(&[(ms(30), ms(40), ms(41))])];
        let crowd = Crowd::of(parties, 0..1, &counted(2)).unwrap();
        assert_eq!(crowd.overtaking(), 1);
        assert_eq!(crowd.overtaking_by(Duration::from_millis(31)), 0, "not by so much");
    }

    #[test]
    fn overtaking_is_counted_as_by_comparing_each_with_each() {
        // Each takes turns with itself, and in no order with the others.
        let mut seed = 7_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        for _ in 0..200 {
            let mut rounds = vec![Vec::new(); 4];
            let (mut asked, mut now) = ([0; 4], 0);
            for _ in 0..60 {
                let who = usize::try_from(below(4)).unwrap();
                now = asked[who].max(now) + 1 + below(20);
                rounds[who].push((asked[who], now, now + 1));
                asked[who] = now + 1 + below(30);
                now += 1;
            }
            let parties: Vec<Party> = rounds.iter().map(|it| party(it)).collect();
            let crowd = Crowd::of(parties, 0..1, &counted(240)).unwrap();
            for lead in [0, 7, 40] {
                let all = crowd.in_order();
                let before = |one: &(usize, Round), other: &(usize, Round)| {
                    other.0 != one.0 && other.1.asked + lead < one.1.asked && one.1.had < other.1.had
                };
                let counted = all.iter().filter(|it| all.iter().any(|other| before(it, other))).count();
                assert_eq!(crowd.overtaking_by(Duration::from_nanos(lead)), counted);
            }
        }
    }
}
