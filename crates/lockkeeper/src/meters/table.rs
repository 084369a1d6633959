//! The one table of meters: what each is called, what it counts, and what an event means to it.

use std::time::Duration;

use lockkeeper_core::LostReason;
use lockkeeper_core::observe::{Answer, Event, GrantedBy, Verb};

/// How a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// As many as there are right now.
    Gauge,
    /// How many were how large.
    Histogram,
}

/// One of the things that are counted. All carry the labels `store` and, if the locker has a name, `locker`, too.
///
/// ```
/// use lockkeeper::meters::{self, Kind, METERS};
///
/// let lost = METERS.iter().find(|it| it.name == "lockkeeper.lost").ok_or("it is there")?;
/// assert_eq!((lost.kind, lost.labels), (Kind::Counter, &["reason"][..]));
/// assert_eq!(lost.openmetrics_name(), "lockkeeper_lost_total");
/// assert_eq!(meters::HOLD.openmetrics_name(), "lockkeeper_hold_duration_seconds");
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meter {
    /// As OpenTelemetry writes names.
    pub name: &'static str,
    /// How it counts.
    pub kind: Kind,
    /// `s`, or nothing.
    pub unit: &'static str,
    /// What it tells, in a sentence.
    pub help: &'static str,
    /// What its numbers are told apart by. Never the key.
    pub labels: &'static [&'static str],
    /// Whether it is told apart by [class](super::Meters::by_class), too.
    pub has_class: bool,
}

impl Meter {
    /// As Prometheus writes it, with unit and, for a counter, `_total`.
    pub fn openmetrics_name(&self) -> String {
        self.family() + if self.kind == Kind::Counter { "_total" } else { "" }
    }

    /// The name of all its series together.
    pub(super) fn family(&self) -> String {
        self.name.replace('.', "_") + if self.unit == "s" { "_seconds" } else { "" }
    }

    const fn new(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Meter { name, kind, unit: "", help, labels, has_class: false }
    }

    const fn seconds(self) -> Self {
        Meter { unit: "s", ..self }
    }

    const fn classed(self) -> Self {
        Meter { has_class: true, ..self }
    }
}

use Kind::{Counter, Gauge, Histogram};

/// How long callers took to get an answer, by its outcome.
pub const ACQUIRE: Meter = Meter::new(
    Histogram,
    "lockkeeper.acquire.duration",
    &["outcome", "by"],
    "How long callers took to get an answer, the time in both lines included.",
)
.seconds()
.classed();
/// How long callers that got the lock had stood in each queue.
pub const WAIT: Meter = Meter::new(
    Histogram,
    "lockkeeper.wait.duration",
    &["tier"],
    "How long callers that got the lock had stood in this process's queue (local) and at the store (remote).",
)
.seconds();
/// How long locks were held.
pub const HOLD: Meter = Meter::new(
    Histogram,
    "lockkeeper.hold.duration",
    &["end"],
    "How long locks were held, by how that ended.",
)
.seconds()
.classed();
/// Locks that are held now.
pub const HELD: Meter =
    Meter::new(Gauge, "lockkeeper.held", &[], "Locks that this process holds now.").classed();
/// Callers that have asked and have no answer yet.
pub const WAITING: Meter = Meter::new(
    Gauge,
    "lockkeeper.waiting",
    &[],
    "Callers that have asked for a lock and have no answer yet.",
)
.classed();
/// How much of the ttl was left when a renewal was confirmed.
pub const MARGIN: Meter = Meter::new(
    Histogram,
    "lockkeeper.renewal.margin",
    &[],
    "The part of the ttl that was left when a renewal was confirmed; near zero, the next one may come too late.",
);
/// Answers to renewals.
pub const RENEWALS: Meter =
    Meter::new(Counter, "lockkeeper.renewals", &["outcome"], "Renewals, by what the store said.");
/// Locks that were lost.
pub const LOST: Meter =
    Meter::new(Counter, "lockkeeper.lost", &["reason"], "Held locks that were lost, by how.");
/// Faults of the store.
pub const FAULTS: Meter = Meter::new(
    Counter,
    "lockkeeper.faults",
    &["verb", "kind"],
    "Times the store gave no usable answer, by what it was asked.",
);
/// Places that the store must forget by itself.
pub const ABANDONED: Meter = Meter::new(
    Counter,
    "lockkeeper.abandoned",
    &[],
    "Locks and places that the store did not confirm to have taken back.",
);
/// Trips to the store.
pub const STORE: Meter = Meter::new(
    Histogram,
    "lockkeeper.store.duration",
    &["verb"],
    "How long the store took to answer, by what it was asked.",
)
.seconds();
/// Late writes that a checker of fences refused.
pub const FENCES_REFUSED: Meter = Meter::new(
    Counter,
    "lockkeeper.fences.refused",
    &["checker"],
    "Late writes that a checker of fences refused, as told by `Locker::observe_fenced`.",
);

/// How long callers of `commit` took to get an answer, by its outcome. How many there were is its count.
pub const TWO_PHASE: Meter = Meter::new(
    Histogram,
    "lockkeeper.twophase.duration",
    &["outcome"],
    "How long two-phase commits took until their callers had an answer.",
)
.seconds();
/// Branches in doubt at each participant.
pub const IN_DOUBT: Meter = Meter::new(
    Gauge,
    "lockkeeper.twophase.in_doubt",
    &["participant"],
    "Transactions with a branch at this participant that are not finished, when somebody looked last.",
);
/// How old the oldest of what is in doubt is.
pub const IN_DOUBT_AGE: Meter = Meter::new(
    Gauge,
    "lockkeeper.twophase.in_doubt.age.max",
    &[],
    "How long ago the oldest unfinished transaction was begun, when somebody looked last.",
)
.seconds();
/// Branches that did the opposite of what was decided.
pub const DAMAGED: Meter = Meter::new(
    Gauge,
    "lockkeeper.twophase.damaged",
    &["participant"],
    "Branches that did the opposite of what was decided, as the log remembers them.",
);

/// The meters of two-phase commit. They have no `store` and no `locker`.
pub const TWO_PHASE_METERS: &[Meter] = &[TWO_PHASE, IN_DOUBT, IN_DOUBT_AGE, DAMAGED];

/// All meters of locks.
pub const METERS: &[Meter] =
    &[ACQUIRE, WAIT, HOLD, HELD, WAITING, MARGIN, RENEWALS, LOST, FAULTS, ABANDONED, STORE, FENCES_REFUSED];

/// The upper bounds of the buckets of times, in seconds.
pub const SECONDS: &[f64] = &[
    0.00001, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 300.0,
];

/// The upper bounds of the buckets of parts of a ttl.
pub const PARTS: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// The bounds of a histogram's buckets; the last bucket has none.
///
/// ```
/// use lockkeeper::meters::{MARGIN, PARTS, SECONDS, STORE, bounds};
///
/// assert_eq!((bounds(&STORE), bounds(&MARGIN)), (SECONDS, PARTS));
/// ```
pub fn bounds(meter: &Meter) -> &'static [f64] {
    if meter.name == MARGIN.name { PARTS } else { SECONDS }
}

/// What an event adds to one meter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// To which.
    pub meter: &'static Meter,
    /// With these labels, besides `store`, `locker` and class. Those without a value are left out.
    pub labels: [(&'static str, &'static str); 2],
    /// For a histogram the value, for a counter how many more, for a gauge the change.
    pub value: f64,
}

impl Reading {
    pub(super) fn of(meter: &'static Meter, values: [&'static str; 2], value: f64) -> Self {
        let label = |at: usize| (meter.labels.get(at).copied().unwrap_or_default(), values[at]);
        Reading { meter, labels: [label(0), label(1)], value }
    }

    /// The labels that it has.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.labels.into_iter().filter(|it| !it.1.is_empty())
    }
}

/// Say what an event adds to which meters. Adapters to other libraries stand on this, so that all have the same table.
///
/// ```
/// use lockkeeper::meters::{Reading, readings};
/// use lockkeeper::observe::{Event, Observer};
///
/// #[derive(Debug)]
/// struct Printing;
///
/// impl Observer for Printing {
///     fn observe(&self, event: &Event<'_>) {
///         readings(event, &mut |it: Reading| {
///             println!("{} {:?} {}", it.meter.name, it.labels().collect::<Vec<_>>(), it.value);
///         });
///     }
/// }
/// # let _ = Printing;
/// ```
pub fn readings(event: &Event<'_>, tell: &mut dyn FnMut(Reading)) {
    let mut add = |meter, values, value| tell(Reading::of(meter, values, value));
    if let Some((way, took)) = Way::of(event) {
        add(&ACQUIRE, way.words(), took.as_secs_f64());
        add(&WAITING, ["", ""], -1.0);
    }
    match event {
        Event::Arrived { .. } => add(&WAITING, ["", ""], 1.0),
        Event::Granted { begins, local, remote, .. } => {
            for (tier, wait) in [("local", local), ("remote", remote)] {
                if !wait.is_zero() {
                    add(&WAIT, [tier, ""], wait.as_secs_f64());
                }
            }
            if *begins {
                add(&HELD, ["", ""], 1.0);
            }
        }
        Event::Asked { verb, took, answer, .. } => {
            add(&STORE, [verb.word(), ""], took.as_secs_f64());
            if *verb == Verb::Renew {
                add(&RENEWALS, [renewal(*answer), ""], 1.0);
            }
        }
        Event::Renewed { ttl, left, .. } => add(&MARGIN, ["", ""], part(*left, *ttl)),
        Event::Faulted { verb, fault, .. } => {
            add(&FAULTS, [verb.word(), KINDS[usize::from(!fault.is_transient())]], 1.0);
        }
        Event::Lost { reason, .. } => add(&LOST, [loss(*reason), ""], 1.0),
        Event::Abandoned { .. } => add(&ABANDONED, ["", ""], 1.0),
        Event::FenceRefused { checker, .. } => add(&FENCES_REFUSED, [checker, ""], 1.0),
        _ => {}
    }
    if let Some((end, held)) = End::of(event) {
        add(&HOLD, [end.word(), ""], held.as_secs_f64());
        add(&HELD, ["", ""], -1.0);
    }
}

/// The counters that are there from the start, each at zero. Whoever looks at the growth of a counter must see the first
/// one, too: a series that is born with one has not grown. Counters of what has no fixed list of words, such as the
/// checkers of fences, are not among them.
///
/// ```
/// use lockkeeper::meters::{LOST, counters_at_zero};
///
/// let mut losses = counters_at_zero().into_iter().filter(|it| it.meter == &LOST);
/// assert!(losses.any(|it| it.labels().any(|label| label == ("reason", "taken")) && it.value == 0.0));
/// ```
pub fn counters_at_zero() -> Vec<Reading> {
    let mut all = vec![Reading::of(&ABANDONED, ["", ""], 0.0)];
    all.extend(RENEWED.map(|outcome| Reading::of(&RENEWALS, [outcome, ""], 0.0)));
    all.extend(LOSSES.map(|reason| Reading::of(&LOST, [reason, ""], 0.0)));
    for verb in VERBS {
        all.extend(KINDS.map(|kind| Reading::of(&FAULTS, [verb.word(), kind], 0.0)));
    }
    all
}

/// What a store is asked.
pub(super) const VERBS: [Verb; 4] = [Verb::Turn, Verb::Renew, Verb::Lower, Verb::Leave];
/// The kinds of faults.
pub(super) const KINDS: [&str; 2] = ["transient", "permanent"];
/// The answers to renewals.
pub(super) const RENEWED: [&str; 3] = ["ok", "lost", "fault"];

/// The part of a ttl that is left.
pub(super) fn part(left: Duration, ttl: Duration) -> f64 {
    if ttl.is_zero() { 0.0 } else { left.as_secs_f64() / ttl.as_secs_f64() }
}

pub(super) fn renewal(answer: Answer) -> &'static str {
    match answer {
        Answer::Held => RENEWED[0],
        Answer::Lost => RENEWED[1],
        _ => RENEWED[2],
    }
}

pub(super) const LOSSES: [&str; 6] = ["expired", "taken", "max_hold", "closed", "released", "other"];

pub(super) fn loss(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => LOSSES[0],
        LostReason::Taken => LOSSES[1],
        LostReason::MaxHold => LOSSES[2],
        LostReason::Closed => LOSSES[3],
        LostReason::Released => LOSSES[4],
        _ => LOSSES[5],
    }
}

/// The ways out for a caller.
#[derive(Clone, Copy)]
pub(super) enum Way {
    FromStore,
    HandedOn,
    Reentered,
    Shared,
    Warm,
    Busy,
    TimedOut,
    Refused,
    Cancelled,
    Failed,
}

impl Way {
    pub(super) const ALL: [Way; 10] = [
        Way::FromStore,
        Way::HandedOn,
        Way::Reentered,
        Way::Shared,
        Way::Warm,
        Way::Busy,
        Way::TimedOut,
        Way::Refused,
        Way::Cancelled,
        Way::Failed,
    ];

    /// The way out that an event tells, and how long it took.
    #[inline]
    pub(super) fn of(event: &Event<'_>) -> Option<(Way, Duration)> {
        Some(match event {
            Event::Granted { by, local, remote, .. } => {
                let way = match by {
                    GrantedBy::HandOn => Way::HandedOn,
                    GrantedBy::Reentry => Way::Reentered,
                    GrantedBy::Sharing => Way::Shared,
                    GrantedBy::Warm => Way::Warm,
                    _ => Way::FromStore,
                };
                (way, local.saturating_add(*remote))
            }
            Event::Busy { waited, .. } => (Way::Busy, *waited),
            Event::TimedOut { waited, .. } => (Way::TimedOut, *waited),
            Event::Refused { .. } => (Way::Refused, Duration::ZERO),
            Event::Withdrawn { waited, .. } => (Way::Cancelled, *waited),
            Event::Failed { waited, .. } => (Way::Failed, *waited),
            _ => return None,
        })
    }

    /// `outcome` and `by`.
    pub(super) fn words(self) -> [&'static str; 2] {
        match self {
            Way::FromStore => ["granted", "store"],
            Way::HandedOn => ["granted", "hand_on"],
            Way::Reentered => ["granted", "reentry"],
            Way::Shared => ["granted", "sharing"],
            Way::Warm => ["granted", "warm"],
            Way::Busy => ["busy", ""],
            Way::TimedOut => ["timed_out", ""],
            Way::Refused => ["refused", ""],
            Way::Cancelled => ["cancelled", ""],
            Way::Failed => ["failed", ""],
        }
    }
}

/// The ends of a hold.
#[derive(Clone, Copy)]
pub(super) enum End {
    Released,
    HandedOn,
    Lost,
}

impl End {
    pub(super) const ALL: [End; 3] = [End::Released, End::HandedOn, End::Lost];

    /// The end that an event tells, and how long the hold was.
    #[inline]
    pub(super) fn of(event: &Event<'_>) -> Option<(End, Duration)> {
        match event {
            Event::Released { handed_on: false, held, .. } => Some((End::Released, *held)),
            Event::Released { held, .. } => Some((End::HandedOn, *held)),
            Event::Lost { held: Some(held), .. } => Some((End::Lost, *held)),
            _ => None,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            End::Released => "released",
            End::HandedOn => "handed_on",
            End::Lost => "lost",
        }
    }
}
