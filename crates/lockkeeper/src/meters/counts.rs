//! The numbers of one locker, as atomics: nothing is locked and nothing allocated on the path of a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{Event, Observer, Verb};

use super::classes::{Classes, Known, OTHER};
use super::places::Places;
use super::table::{self, End, KINDS, LOSSES, Meter, PARTS, RENEWED, SECONDS, VERBS, Way};
use super::text::{Series, Value};

/// How many checkers of fences are told apart.
const CHECKERS_MAX: usize = 16;

/// Relaxed: only counted. Whoever is alone in its place may read and then write; `places.rs` says who that is.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    /// One more. Where others count, too.
    #[inline]
    fn add(&self) {
        more(&self.0, 1, false);
    }

    /// One more. Perhaps nobody else counts here.
    #[inline]
    fn add_where(&self, alone: bool) {
        more(&self.0, 1, alone);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whoever is alone need not lock what it adds to. A number of its own: nothing is read or written because of it.
#[inline]
fn more(number: &AtomicU64, by: u64, alone: bool) {
    if alone {
        number.store(number.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    } else {
        number.fetch_add(by, Ordering::Relaxed);
    }
}

/// How many were how long. What it counted in all is the sum of its buckets, so that the two never disagree.
#[derive(Debug)]
pub(super) struct Buckets<const N: usize> {
    counts: [Count; N],
    /// In billionths. Relaxed: only counted.
    sum: AtomicU64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Buckets { counts: std::array::from_fn(|_| Count::default()), sum: AtomicU64::new(0) }
    }
}

impl<const N: usize> Buckets<N> {
    #[inline]
    pub(super) fn add(&self, bounds: &[u64], value: u64) {
        self.add_where(bounds, value, false);
    }

    #[inline]
    fn add_where(&self, bounds: &[u64], value: u64, alone: bool) {
        let at = bounds.iter().position(|it| value <= *it).unwrap_or(bounds.len());
        if let Some(count) = self.counts.get(at) {
            count.add_where(alone);
        }
        if value != 0 {
            more(&self.sum, value, alone);
        }
    }

    /// What several counted together.
    pub(super) fn value_of(all: &[&Self], bounds: &'static [f64]) -> Value {
        let counts = (0..N).map(|at| all.iter().map(|it| it.counts[at].get()).sum()).collect();
        let sum = all.iter().map(|it| it.sum.load(Ordering::Relaxed)).sum();
        Value::Histogram { bounds, counts, sum: billionths(sum) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|it| it.get() == 0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days of waiting, exact to the nanosecond")]
fn billionths(sum: u64) -> f64 {
    sum as f64 / 1e9
}

const TIMES: usize = SECONDS.len() + 1;

/// [`SECONDS`] in nanoseconds: a lock is too short for floating point.
pub(super) const NANOS: [u64; SECONDS.len()] = in_billionths(SECONDS);
const PART_BILLIONTHS: [u64; PARTS.len()] = in_billionths(PARTS);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the bounds are positive and far below 2^64 billionths"
)]
const fn in_billionths<const N: usize>(bounds: &[f64]) -> [u64; N] {
    let (mut out, mut at) = ([0; N], 0);
    while at < N {
        out[at] = (bounds[at] * 1e9 + 0.5) as u64;
        at += 1;
    }
    out
}

/// Without the 128 bits of `Duration::as_nanos`.
#[inline]
pub(super) fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(span.subsec_nanos()))
}

pub(super) type Times = Buckets<TIMES>;

/// What is told apart by class.
#[derive(Debug, Default)]
struct Classed {
    arrived: Count,
    begun: Count,
    acquire: [Times; Way::ALL.len()],
    hold: [Times; End::ALL.len()],
}

impl Classed {
    /// What happens to every lock stands first.
    #[inline]
    fn observe(&self, event: &Event<'_>, alone: bool) {
        match event {
            Event::Arrived { .. } => return self.arrived.add_where(alone),
            Event::Granted { begins: true, .. } => self.begun.add_where(alone),
            Event::Released { .. } | Event::Lost { .. } => {
                if let Some((end, held)) = End::of(event) {
                    self.hold[end as usize].add_where(&NANOS, nanos(held), alone);
                }
                return;
            }
            _ => {}
        }
        if let Some((way, took)) = Way::of(event) {
            self.acquire[way as usize].add_where(&NANOS, nanos(took), alone);
        }
    }

    /// What several counted together.
    fn series(all: &[&Classed], labels: &Labels<'_>, out: &mut Vec<Series>) {
        let counted = |of: fn(&Classed) -> &[Times]| {
            all.iter().flat_map(|it| of(it)).flat_map(|it| &it.counts).map(Count::get).sum::<u64>()
        };
        // Ends are read before beginnings: nothing ends that has not begun, so no gauge falls below zero.
        let (left, ended) = (counted(|it| &it.acquire), counted(|it| &it.hold));
        let gauge = |begun: fn(&Classed) -> &Count, ended: u64| {
            Value::Gauge(all.iter().map(|it| begun(it).get()).sum::<u64>().saturating_sub(ended))
        };
        out.push(labels.series(&table::WAITING, &[], gauge(|it| &it.arrived, left)));
        out.push(labels.series(&table::HELD, &[], gauge(|it| &it.begun, ended)));
        for (at, way) in Way::ALL.into_iter().enumerate() {
            let times: Vec<&Times> = all.iter().map(|it| &it.acquire[at]).collect();
            if !times.iter().all(|it| it.is_empty()) {
                out.push(labels.series(&table::ACQUIRE, &way.words(), Buckets::value_of(&times, SECONDS)));
            }
        }
        for (at, end) in End::ALL.into_iter().enumerate() {
            let times: Vec<&Times> = all.iter().map(|it| &it.hold[at]).collect();
            if !times.iter().all(|it| it.is_empty()) {
                out.push(labels.series(&table::HOLD, &[end.word()], Buckets::value_of(&times, SECONDS)));
            }
        }
    }
}

/// The labels that all series of a locker share.
struct Labels<'a> {
    store: &'a str,
    locker: &'a str,
    class: Option<&'a str>,
}

impl Labels<'_> {
    fn series(&self, meter: &'static Meter, values: &[&str], value: Value) -> Series {
        let mut labels = vec![("store", self.store.to_owned())];
        let optional = [("locker", self.locker), ("class", self.class.unwrap_or_default())];
        let own = meter.labels.iter().copied().zip(values.iter().copied());
        let optional = optional.into_iter().filter(|it| it.0 != "class" || meter.has_class);
        labels.extend(optional.chain(own).filter(|it| !it.1.is_empty()).map(|it| (it.0, it.1.to_owned())));
        Series { meter, labels, value }
    }
}

/// All numbers of one locker.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) store: String,
    pub(super) locker: String,
    all: Places<Classed>,
    /// Apart by class, if that was asked for: then `all` has those of the class beyond the cap.
    classes: Option<Known<Arc<Classed>>>,
    wait: [Times; 2],
    store_times: [Times; VERBS.len()],
    margin: Buckets<{ PARTS.len() + 1 }>,
    renewals: [Count; RENEWED.len()],
    lost: [Count; LOSSES.len()],
    faults: [[Count; KINDS.len()]; VERBS.len()],
    abandoned: Count,
    fences_refused: Mutex<Vec<(&'static str, u64)>>,
}

fn place(words: &[&str], word: &str) -> usize {
    words.iter().position(|it| *it == word).unwrap_or(words.len() - 1)
}

fn of_verb(verb: Verb) -> usize {
    VERBS.iter().position(|it| *it == verb).unwrap_or_default()
}

impl Counts {
    pub(super) fn new(store: &str, locker: &str, classes: Option<Classes>) -> Self {
        Counts {
            store: store.to_owned(),
            locker: locker.to_owned(),
            all: Places::default(),
            classes: classes.map(Known::new),
            wait: Default::default(),
            store_times: Default::default(),
            margin: Buckets::default(),
            renewals: Default::default(),
            lost: Default::default(),
            faults: Default::default(),
            abandoned: Count::default(),
            fences_refused: Mutex::default(),
        }
    }

    #[inline]
    fn observe_here(&self, event: &Event<'_>) {
        let (mine, alone) = self.all.mine();
        mine.observe(event, alone);
    }

    /// What is rarer than a lock.
    #[cold]
    fn observe_rest(&self, event: &Event<'_>) {
        match event {
            Event::Granted { local, remote, .. } => {
                for (times, wait) in self.wait.iter().zip([local, remote]) {
                    if !wait.is_zero() {
                        times.add(&NANOS, nanos(*wait));
                    }
                }
            }
            Event::Asked { verb, took, answer, .. } => {
                self.store_times[of_verb(*verb)].add(&NANOS, nanos(*took));
                if *verb == Verb::Renew {
                    self.renewals[place(&RENEWED, table::renewal(*answer))].add();
                }
            }
            Event::Renewed { ttl, left, .. } => {
                let part = Duration::from_secs_f64(table::part(*left, *ttl));
                self.margin.add(&PART_BILLIONTHS, nanos(part));
            }
            Event::Faulted { verb, fault, .. } => {
                self.faults[of_verb(*verb)][usize::from(!fault.is_transient())].add();
            }
            Event::Lost { reason, .. } => self.lost[place(&LOSSES, table::loss(*reason))].add(),
            Event::Abandoned { .. } => self.abandoned.add(),
            Event::FenceRefused { checker, .. } => self.refused(checker),
            _ => {}
        }
    }

    fn refused(&self, checker: &'static str) {
        let mut known = locked(&self.fences_refused);
        let full = CHECKERS_MAX <= known.len();
        let name = if full && !known.iter().any(|it| it.0 == checker) { OTHER } else { checker };
        match known.iter_mut().find(|it| it.0 == name) {
            Some(it) => it.1 += 1,
            None => known.push((name, 1)),
        }
    }

    /// All series, as they are now.
    pub(super) fn series(&self, out: &mut Vec<Series>) {
        let Counts { store, locker, .. } = self;
        let class = self.classes.as_ref().map(|_| OTHER);
        let labels = Labels { store, locker, class };
        Classed::series(&self.all.all(), &labels, out);
        if let Some(classes) = &self.classes {
            classes.for_each(|class, counts| {
                Classed::series(&[&**counts], &Labels { store, locker, class: Some(class) }, out);
            });
        }
        let mut times = |meter, word, it: &Times| {
            if !it.is_empty() {
                out.push(labels.series(meter, &[word], Buckets::value_of(&[it], SECONDS)));
            }
        };
        for (tier, it) in ["local", "remote"].into_iter().zip(&self.wait) {
            times(&table::WAIT, tier, it);
        }
        for (verb, it) in VERBS.into_iter().zip(&self.store_times) {
            times(&table::STORE, verb.word(), it);
        }
        if !self.margin.is_empty() {
            out.push(labels.series(&table::MARGIN, &[], Buckets::value_of(&[&self.margin], PARTS)));
        }
        self.counters(&labels, out);
    }

    /// Those of [`table::counters_at_zero`] are there from the start.
    fn counters(&self, labels: &Labels<'_>, out: &mut Vec<Series>) {
        let mut count = |meter, words: &[&str], it: &Count| {
            out.push(labels.series(meter, words, Value::Counter(it.get())));
        };
        for (outcome, it) in RENEWED.into_iter().zip(&self.renewals) {
            count(&table::RENEWALS, &[outcome], it);
        }
        for (reason, it) in LOSSES.into_iter().zip(&self.lost) {
            count(&table::LOST, &[reason], it);
        }
        for (verb, of_verb) in VERBS.into_iter().zip(&self.faults) {
            for (kind, it) in KINDS.into_iter().zip(of_verb) {
                count(&table::FAULTS, &[verb.word(), kind], it);
            }
        }
        count(&table::ABANDONED, &[], &self.abandoned);
        let refused = locked(&self.fences_refused);
        for (checker, number) in refused.iter() {
            out.push(labels.series(&table::FENCES_REFUSED, &[checker], Value::Counter(*number)));
        }
    }
}

/// The observer of one locker.
#[derive(Debug)]
pub(super) struct OfLocker(pub(super) Arc<Counts>);

impl Observer for OfLocker {
    fn observe(&self, event: &Event<'_>) {
        let counts = &*self.0;
        match &counts.classes {
            None => counts.observe_here(event),
            Some(classes) => match classes.of(event.key(), |_| Arc::default()) {
                Some(of_class) => of_class.observe(event, false),
                None => counts.observe_here(event),
            },
        }
        match event {
            // Nothing else is to be counted of most locks.
            Event::Arrived { .. }
            | Event::Released { .. }
            | Event::Granted { local: Duration::ZERO, remote: Duration::ZERO, .. } => {}
            _ => counts.observe_rest(event),
        }
    }

    fn observe_at_once(&self, arrived: &Event<'_>, granted: &Event<'_>) {
        let counts = &*self.0;
        if counts.classes.is_some() {
            self.observe(arrived);
            self.observe(granted);
            return;
        }
        // It did not wait, so nothing else is to be counted.
        let (mine, alone) = counts.all.mine();
        mine.observe(arrived, alone);
        mine.observe(granted, alone);
    }
}
