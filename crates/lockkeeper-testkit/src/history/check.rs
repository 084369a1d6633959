//! The checkers: pure functions from a record to the first rule it breaks.

use std::collections::{BTreeMap, HashMap};

use lockkeeper_core::{ClaimId, Key, Load, Moment};

use super::{Ask, Event, Rule, Violation, What};

type Verdict = Result<(), Violation>;

/// The weight that believes to hold never exceeds the smallest capacity among those who do.
///
/// # Errors
/// The first moment at which too many believed so.
pub fn exclusion(events: &[Event]) -> Verdict {
    for (key, tenures) in tenures(events) {
        // At one moment, ends come before beginnings: a tenure does not contain its end.
        let mut edges: Vec<(Moment, bool, usize)> = Vec::new();
        for (index, it) in tenures.iter().enumerate().filter(|(_, it)| it.from < it.until) {
            edges.extend([(it.from, true, index), (it.until, false, index)]);
        }
        edges.sort_unstable();
        let mut inside: BTreeMap<usize, &Tenure> = BTreeMap::new();
        for (at, begins, index) in edges {
            if !begins {
                inside.remove(&index);
                continue;
            }
            inside.insert(index, &tenures[index]);
            let weight: u64 = inside.values().map(|it| u64::from(it.weight)).sum();
            let capacity = inside.values().map(|it| it.capacity).min().unwrap_or(0);
            if u64::from(capacity) < weight {
                let who: Vec<_> = inside.values().map(|it| (it.claim, it.fence, it.weight)).collect();
                let at = at.as_nanos();
                let what = format!(
                    "{weight} of {capacity} held at {at} ns; each as (claim, fence, weight): {who:?}"
                );
                return Err(Violation { rule: Rule::Exclusion, key, what });
            }
        }
    }
    Ok(())
}

/// Whoever asked after another was answered has the larger number, and no two grants share one.
///
/// # Errors
/// The first grant whose number does not grow.
pub fn fences(events: &[Event]) -> Verdict {
    for (key, mut grants) in tenures(events) {
        let broken = |what| Err(Violation { rule: Rule::Fence, key: key.clone(), what });
        let mut given_to: HashMap<u64, ClaimId> = HashMap::new();
        let mut shared = None;
        grants.retain(|it| match given_to.insert(it.fence, it.claim) {
            None => true,
            // The same claim told the same number again: the same grant.
            Some(other) if other == it.claim => false,
            Some(other) => {
                shared = Some((it.fence, it.claim, other));
                true
            }
        });
        if let Some((fence, one, other)) = shared {
            return broken(format!("{one:?} and {other:?} were both given {fence}"));
        }
        let mut by_ask: Vec<&Tenure> = grants.iter().collect();
        by_ask.sort_by_key(|it| it.asked.line);
        let mut answers = grants.iter().peekable();
        let mut largest: Option<&Tenure> = None;
        for it in by_ask {
            while let Some(answer) = answers.next_if(|other| other.line < it.asked.line) {
                largest = largest.filter(|it| answer.fence < it.fence).or(Some(answer));
            }
            if let Some(earlier) = largest.filter(|other| it.fence < other.fence) {
                return broken(format!(
                    "{:?} asked after {:?} was given {}, and was given only {}",
                    it.claim, earlier.claim, earlier.fence, it.fence
                ));
            }
        }
    }
    Ok(())
}

/// Nobody is granted before another who surely stood in line when he first asked, and surely still does, unless the two
/// fit together: those enter together, and which of them is told first says nothing.
///
/// Surely: the other had been told to wait, has not begun to leave, and asked often enough that the store
/// had no right to forget him. Who let his place lapse is not counted.
///
/// # Errors
/// The first grant that overtook somebody.
pub fn fifo(events: &[Event]) -> Verdict {
    let mut courses: BTreeMap<Key, BTreeMap<ClaimId, Course>> = BTreeMap::new();
    for (line, event) in events.iter().enumerate() {
        courses.entry(event.key.clone()).or_default().entry(event.claim).or_default().see(line, event);
    }
    for (key, courses) in courses {
        for (winner, won) in &courses {
            let (Some(grant), Some(first_asked)) = (won.grant, won.first_asked) else {
                continue;
            };
            let overtaken = courses.iter().find(|(claim, other)| {
                *claim != winner
                    && !won.fits_beside(other)
                    && other.first_wait.is_some_and(|it| it < first_asked)
                    && other.ended.is_none_or(|it| grant.line < it)
                    && other.grant.is_none_or(|it| grant.fence < it.fence)
                    && other.surely_in_line_at(grant.at)
            });
            if let Some((claim, _)) = overtaken {
                let what =
                    format!("{winner:?} was granted ({}) before {claim:?}, who stood before it", grant.fence);
                return Err(Violation { rule: Rule::Fifo, key, what });
            }
        }
    }
    Ok(())
}

/// Nobody is still in the store at `at` who has left it, or has been silent for his whole ttl.
///
/// `remains` is what was found in the store at that moment, whether holding or waiting.
///
/// # Errors
/// The first claim that should be gone.
pub fn abandoned(events: &[Event], remains: &[(Key, ClaimId)], at: Moment) -> Verdict {
    for (key, claim) in remains {
        let broken = |what: &str| {
            let what = format!("{claim:?} {what} and is still in the store");
            Err(Violation { rule: Rule::Abandoned, key: key.clone(), what })
        };
        let life: Vec<&Event> = events.iter().filter(|it| it.claim == *claim && it.key == *key).collect();
        let Some(last) = life.last() else {
            return broken("was never heard of");
        };
        if life.iter().any(|it| it.what == What::Left) {
            return broken("has left");
        }
        if last.at.after(last.ttl) < at {
            return broken("was silent for its whole ttl");
        }
    }
    Ok(())
}

/// A stretch of time in which a claim believed that it held.
#[derive(Debug)]
struct Tenure {
    claim: ClaimId,
    weight: u32,
    capacity: u32,
    asked: Ask,
    line: usize,
    from: Moment,
    until: Moment,
    fence: u64,
}

/// All tenures by key, in the order in which their grants were answered.
fn tenures(events: &[Event]) -> BTreeMap<Key, Vec<Tenure>> {
    let mut all: BTreeMap<Key, Vec<Tenure>> = BTreeMap::new();
    let mut last: HashMap<(&Key, ClaimId), usize> = HashMap::new();
    // Where claims share, a store may appoint several at once, and each learns of it when it asks next: its
    // number was given some time after the question that was answered by "wait".
    let mut waits: HashMap<(&Key, ClaimId), Ask> = HashMap::new();
    for (line, event) in events.iter().enumerate() {
        let of_key = all.entry(event.key.clone()).or_default();
        let slot = last.get(&(&event.key, event.claim)).copied();
        match event.what {
            What::Granted { asked, fence, valid_until } => {
                let waited = waits.remove(&(&event.key, event.claim));
                let asked = waited.filter(|_| event.weight < event.capacity).unwrap_or(asked);
                last.insert((&event.key, event.claim), of_key.len());
                // Told again of what it has: one belief goes on, under the later deadline.
                let before = slot.and_then(|it| of_key.get_mut(it));
                if let Some(it) = before.filter(|it| it.fence == fence && event.at < it.until) {
                    it.until = it.until.max(valid_until);
                    last.insert((&event.key, event.claim), slot.unwrap_or_default());
                    continue;
                }
                let (claim, weight, capacity) = (event.claim, event.weight, event.capacity);
                let (from, until) = (event.at, valid_until);
                of_key.push(Tenure { claim, weight, capacity, asked, line, from, until, fence });
            }
            What::Extended { valid_until } => {
                let tenure = slot.and_then(|it| of_key.get_mut(it));
                // A renewal confirmed after the deadline revives nothing: loss is final.
                if let Some(it) = tenure.filter(|it| event.at < it.until) {
                    it.until = it.until.max(valid_until);
                }
            }
            What::Lost | What::Leaves | What::Left | What::Crashed => {
                if let Some(it) = slot.and_then(|it| of_key.get_mut(it)) {
                    it.until = it.until.min(event.at);
                }
            }
            What::Waits { asked } => {
                waits.insert((&event.key, event.claim), asked);
            }
        }
    }
    all
}

/// What one claim did in one line, for the FIFO checker.
#[derive(Debug, Default)]
struct Course {
    load: Option<Load>,
    first_asked: Option<usize>,
    first_wait: Option<usize>,
    /// When each answered question was asked, when it was answered, and until when that kept the place.
    turns: Vec<(Moment, Moment)>,
    grant: Option<Won>,
    ended: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Won {
    line: usize,
    at: Moment,
    fence: u64,
}

impl Course {
    fn fits_beside(&self, other: &Course) -> bool {
        self.load.zip(other.load).is_some_and(|(one, two)| one.fits_beside(two))
    }

    fn see(&mut self, line: usize, event: &Event) {
        self.load = Some(Load::new(event.weight, event.capacity));
        match event.what {
            What::Waits { asked } => {
                self.first_asked.get_or_insert(asked.line);
                self.first_wait.get_or_insert(line);
                self.turns.push((event.at, asked.at.after(event.ttl)));
            }
            What::Granted { asked, fence, .. } => {
                self.first_asked.get_or_insert(asked.line);
                self.turns.push((event.at, asked.at.after(event.ttl)));
                self.grant.get_or_insert(Won { line, at: event.at, fence });
            }
            What::Lost | What::Leaves | What::Left | What::Crashed => {
                self.ended.get_or_insert(line);
            }
            What::Extended { .. } => {}
        }
    }

    /// Whether every answer came before the place that the question before it had kept could lapse.
    fn surely_in_line_at(&self, at: Moment) -> bool {
        let mut kept_until = None;
        for (answered, keeps_until) in &self.turns {
            if kept_until.is_some_and(|it| it <= *answered) {
                return false;
            }
            kept_until = Some(*keeps_until);
            if at < *keeps_until {
                return true;
            }
        }
        false
    }
}
