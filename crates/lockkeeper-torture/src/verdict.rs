//! What a run showed: figures by episode, the last line, and what to do to see it again.

use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use crate::{Counts, Findings, History, Starved};

/// One fault, from its beginning until everybody was served again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Episode {
    /// The fault's name.
    pub fault: String,
    /// Why two guards may be valid at once in it, if the store does not promise otherwise.
    pub unpromised: Option<&'static str>,
    /// In nanoseconds of the clock that all processes share.
    pub span: Range<u64>,
    /// E in it.
    pub lost: u64,
    /// F in it, as the witness saw it.
    pub fenced_lost: u64,
    /// Stale reads and writes that fences kept out.
    pub refused: u64,
    /// What was left in the store although nobody wanted it any more.
    pub orphans: Vec<String>,
    /// Who was not served after it.
    pub stuck: Vec<String>,
}

impl Episode {
    /// One that has just begun.
    pub fn begin(fault: &str, unpromised: Option<&'static str>, at: u64) -> Self {
        Episode {
            fault: fault.to_owned(),
            unpromised,
            span: at..at,
            lost: 0,
            fenced_lost: 0,
            refused: 0,
            orphans: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// It is over, and the witness has counted so much in it.
    pub fn end(&mut self, at: u64, before: Counts, after: Counts) {
        self.span.end = at;
        self.lost = after.lost - before.lost;
        self.fenced_lost = after.fenced_lost - before.fenced_lost;
        self.refused = after.refused - before.refused;
    }
}

/// What a run showed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Verdict {
    /// The store.
    pub store: String,
    /// Names everything that was left to chance.
    pub seed: u64,
    /// The mistake that was planted, or `none`.
    pub mutant: String,
    /// The faults.
    pub episodes: Vec<Episode>,
    /// What the checks found.
    pub findings: Findings,
    /// Guards that were told of their loss in contradiction to what they say.
    pub late: Vec<String>,
    /// Requests without a guard, by how they ended.
    pub failed: Vec<(String, u64)>,
    /// Requests that were given up because they had waited too long.
    pub starved: Vec<Starved>,
    /// Whether the store promises that whoever asks first is served first, also beside faults: then nobody may starve.
    pub in_order: bool,
    /// What nobody was ever given, in words: the run says nothing of it.
    pub untried: Vec<String>,
}

/// A loser that is told by so much later than the next one had the lock is told too late, in nanoseconds: no machine is so
/// slow. Less is a figure, because a machine may be busy.
const LATE_MAX: i64 = 10_000_000_000;

/// How a request may not end.
const FOR_GOOD: &[&str] = &["refused-for-good", "invalid", "closed", "other"];

impl Verdict {
    /// What the histories and the episodes of a run amount to.
    pub fn new(store: &str, seed: u64, history: History, findings: Findings, episodes: Vec<Episode>) -> Self {
        let mut verdict = Verdict {
            store: store.to_owned(),
            seed,
            mutant: "none".to_owned(),
            episodes,
            findings,
            late: history.late,
            failed: history.failed.into_iter().collect(),
            starved: history.starved,
            in_order: false,
            untried: Vec::new(),
        };
        let lags = verdict.lags_behind().into_iter().filter(|it| LATE_MAX < *it);
        let late = lags.map(|it| format!("a loser was told {} after the next had the lock", span(it)));
        verdict.late.extend(late.collect::<Vec<_>>());
        verdict
    }

    /// By how much losers were told later than the next one had the lock, where exclusion is promised; in nanoseconds.
    pub fn lags_behind(&self) -> Vec<i64> {
        let lags = self.findings.lags.iter();
        lags.filter(|it| 0 < it.1 && !self.excused(it.0)).map(|it| it.1).collect()
    }

    fn excused(&self, at: u64) -> bool {
        let last = self.episodes.iter().rfind(|it| it.span.start <= at);
        last.is_some_and(|it| it.unpromised.is_some())
    }

    /// What broke no promise and should be known, in sentences.
    pub fn remarks(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.untried.iter().map(|it| format!("{it}: this run says nothing of it.")).collect();
        if !self.starved.is_empty() && !self.in_order {
            all.push(format!(
                "{} requests were given up after a minute in vain: who comes first is not promised here, or not \
                 beside faults.",
                self.starved.len()
            ));
        }
        let lags = self.lags_behind();
        if let Some(worst) = lags.iter().max() {
            all.push(format!(
                "{} losers were told later than the next had the lock, by {} at most; their guards said so before.",
                lags.len(),
                span(*worst)
            ));
        }
        all
    }

    /// Guards that were given.
    pub fn grants(&self) -> usize {
        self.findings.grants.len()
    }

    /// G where exclusion is promised, guards that do not fit together and hand-ons by losers: what lies in an episode without that promise, or in the moments after it, is not counted.
    pub fn overlaps(&self) -> Vec<&str> {
        self.findings.overlaps.iter().filter(|it| !self.excused(it.0)).map(|it| it.1.as_str()).collect()
    }

    /// Those who stood in line and were passed again and again, where the store promises an order: while nothing was broken,
    /// because a process that stands still or is cut off loses its place.
    pub fn passed(&self) -> Vec<&str> {
        let is_calm = |from: u64, at: u64| {
            let is_struck = |it: &Episode| it.fault != "calm" && it.span.start <= at && from < it.span.end;
            !self.episodes.iter().any(is_struck)
        };
        let all = self.findings.passed.iter().filter(|it| self.in_order && is_calm(it.from, it.at));
        all.map(|it| it.what.as_str()).collect()
    }

    /// E.
    pub fn lost(&self) -> u64 {
        self.episodes.iter().map(|it| it.lost).sum()
    }

    /// F: fenced updates that were lost, and fences that did not grow, but for hand-ons by losers.
    pub fn fenced(&self) -> u64 {
        self.episodes.iter().map(|it| it.fenced_lost).sum::<u64>() + self.findings.disorder.len() as u64
    }

    /// What was left in the store.
    pub fn orphans(&self) -> Vec<&str> {
        self.episodes.iter().flat_map(|it| &it.orphans).map(String::as_str).collect()
    }

    /// Whoever was not served, or was told that he never will be: no fault of ours lasts for ever.
    pub fn stuck(&self) -> Vec<String> {
        let told =
            |it: &Episode| it.stuck.iter().map(|who| format!("{}: {who}", it.fault)).collect::<Vec<_>>();
        let is_for_good = |it: &str| {
            let word = it.trim_start_matches("release: ");
            FOR_GOOD.contains(&word.split(':').next().unwrap_or(word))
        };
        let refused = self.failed.iter().filter(|it| is_for_good(&it.0));
        let refused = refused.map(|(word, count)| format!("{count} requests ended with: {word}"));
        let starved = self.starved.iter().filter(|_| self.in_order);
        let starved = starved.map(|it| {
            let waited = it.until.saturating_sub(it.asked);
            format!("{} asked for {} and gave up after {}", it.who, it.key, seconds(waited))
        });
        self.episodes.iter().flat_map(told).chain(refused).chain(starved).collect()
    }

    /// Whether nothing happened that no machine can be blamed for, however busy it was: two holders, a fence that fell, a
    /// lock that stays, a loser that is not told.
    pub fn is_safe(&self) -> bool {
        self.overlaps().is_empty() && self.fenced() == 0 && self.orphans().is_empty() && self.late.is_empty()
    }

    /// Whether every promise was kept, and something was tried at all.
    pub fn is_kept(&self) -> bool {
        self.grants() != 0 && self.is_safe() && self.passed().is_empty() && self.stuck().is_empty()
    }

    /// The broken promises, a line for each, at most so many of a kind.
    pub fn complaints(&self, most: usize) -> String {
        let mut text = String::new();
        let mut add = |what: &str, all: Vec<&str>| {
            for it in all.iter().take(most) {
                let _ = writeln!(text, "{what}: {it}");
            }
            if most < all.len() {
                let _ = writeln!(text, "{what}: and {} more", all.len() - most);
            }
        };
        add("G", self.overlaps());
        add("F", self.findings.disorder.iter().map(|it| it.1.as_str()).collect());
        let fenced: u64 = self.episodes.iter().map(|it| it.fenced_lost).sum();
        let fenced = format!("{fenced} updates were lost although fences were checked");
        add("F", if fenced.starts_with("0 ") { Vec::new() } else { vec![&fenced] });
        add("orphan", self.orphans());
        add("order", self.passed());
        add("late", self.late.iter().map(String::as_str).collect());
        add("stuck", self.stuck().iter().map(String::as_str).collect());
        text
    }

    /// A line for each episode.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for it in &self.episodes {
            let within = |at: &u64| it.span.contains(at);
            let overlaps = self.findings.overlaps.iter().filter(|found| within(&found.0)).count();
            let disorder = self.findings.disorder.iter().filter(|found| within(&found.0)).count() as u64;
            let (grants, gap) = (self.findings.grants_in(&it.span), seconds(self.findings.gap_in(&it.span)));
            let fenced = it.fenced_lost + disorder;
            let _ = writeln!(
                text,
                "{:<16} grants={grants} G={overlaps} E={} F={fenced} refused={} orphans={} gap={gap}",
                it.fault,
                it.lost,
                it.refused,
                it.orphans.len()
            );
        }
        text
    }
}

fn span(nanos: i64) -> String {
    format!("{} ms", nanos / 1_000_000)
}

fn seconds(nanos: u64) -> String {
    format!("{:.2}s", Duration::from_nanos(nanos).as_secs_f64())
}

/// The last line.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "torture: {} grants={} G={} E={} F={} orphans={} late={} mutant={}",
            self.store,
            self.grants(),
            self.overlaps().len(),
            self.lost(),
            self.fenced(),
            self.orphans().len(),
            self.late.len(),
            self.mutant
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Passed;

    fn verdict(overlaps: &[u64], unpromised: Option<&'static str>) -> Verdict {
        let findings = Findings {
            grants: vec![10, 20, 40],
            overlaps: overlaps.iter().map(|it| (*it, "two at once".to_owned())).collect(),
            ..Findings::default()
        };
        let mut one = Episode::begin("calm", None, 0);
        one.end(15, Counts::default(), Counts { lost: 2, ..Counts::default() });
        let mut two = Episode::begin("failover", unpromised, 15);
        two.end(50, Counts::default(), Counts::default());
        Verdict::new("redis", 7, History::default(), findings, vec![one, two])
    }

    #[test]
    fn the_last_line_is_as_it_was_agreed_on() {
        let kept = verdict(&[], None);
        assert_eq!(kept.to_string(), "torture: redis grants=3 G=0 E=2 F=0 orphans=0 late=0 mutant=none");
        assert!(kept.is_kept() && kept.complaints(3).is_empty());
    }

    #[test]
    fn whoever_is_told_of_its_loss_after_the_next_is_counted_where_exclusion_is_promised() {
        let told = |lags: &[(u64, i64)], unpromised| {
            let findings = Findings { grants: vec![10], lags: lags.to_vec(), ..Findings::default() };
            let calm = Episode::begin("calm", None, 0);
            let failover = Episode::begin("failover", unpromised, 20);
            Verdict::new("redis", 7, History::default(), findings, vec![calm, failover])
        };
        let early = told(&[(5, -9), (25, 0)], None);
        assert!(early.is_kept() && early.remarks().is_empty());
        let late = told(&[(5, 30_000_000), (25, LATE_MAX + 1)], Some("copies are made later"));
        assert!(late.is_kept());
        assert!(late.remarks()[0].starts_with("1 losers were told") && late.remarks()[0].contains("30 ms"));
        let broken = told(&[(25, LATE_MAX + 1)], None);
        assert!(!broken.is_kept() && broken.to_string().contains("late=1"), "{broken}");
    }

    #[test]
    fn what_is_not_promised_breaks_no_promise_and_the_rest_does() {
        let excused = verdict(&[20], Some("copies are made later"));
        assert!(excused.is_kept() && excused.table().contains("failover         grants=2 G=1"));
        let broken = verdict(&[5, 20], Some("copies are made later"));
        assert!(!broken.is_kept() && broken.complaints(3) == "G: two at once\n");
        let mut stuck = verdict(&[], None);
        stuck.episodes[1].stuck.push("w1".to_owned());
        assert!(!broken.is_safe() && stuck.is_safe(), "a busy machine serves late, and gives nothing twice");
        assert!(!stuck.is_kept() && stuck.complaints(3).contains("stuck: failover: w1"));
        let mut starved = verdict(&[], None);
        let who = Starved { who: "w1".to_owned(), key: "k".to_owned(), asked: 0, until: 60_000_000_000 };
        starved.starved.push(who);
        assert!(starved.is_kept() && starved.remarks()[0].contains("1 requests were given up"));
        starved.in_order = true;
        assert!(
            !starved.is_kept() && starved.complaints(3).contains("w1 asked for k and gave up after 60.00s")
        );
        let mut passed = verdict(&[], None);
        let by = |from, at| Passed { from, at, what: "k: passed".to_owned() };
        passed.findings.passed = vec![by(5, 14), by(5, 20), by(20, 30)];
        assert!(passed.is_kept(), "no order is promised");
        passed.in_order = true;
        assert!(!passed.is_kept() && passed.complaints(3) == "order: k: passed\n", "only while all is calm");
        let mut refused = verdict(&[], None);
        let why = "release: refused-for-good: its disk: gone".to_owned();
        refused.failed = vec![("cancelled".to_owned(), 3), (why, 2)];
        assert_eq!(refused.stuck(), ["2 requests ended with: release: refused-for-good: its disk: gone"]);
        assert!(
            !Verdict { findings: Findings::default(), ..verdict(&[], None) }.is_kept(),
            "nothing was tried"
        );
    }
}
