//! A claim: one process's wish for one key, and the name under which a store knows it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_fork::Origin;

use crate::error::Error;
use crate::key::Key;
use crate::spi::fault::Fault;
use crate::spi::trace::TraceContext;

/// What a backend needs to know to take a place in line. Made by the keeper, read by backends.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::backend::{Backend as _, Place as _, Turn};
/// use lockkeeper_core::{Claim, Key, Load, Memory};
///
/// let claim = Claim::new(Key::new("orders/42")?, Duration::from_secs(10))?;
/// assert_eq!(claim.load, Load::MUTEX);
/// let mut place = Memory::default().enter(claim.impatient());
/// assert!(matches!(place.turn().await?, Turn::Held(_)));
/// place.leave().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// What is to be locked.
    pub key: Key,
    /// Our name in the store. Repeating a verb with the same id must be harmless.
    pub id: ClaimId,
    /// How long the store keeps the lock or the place without hearing from us.
    pub ttl: Duration,
    /// How much of the room we take, and how much it holds.
    pub load: Load,
    /// `false` for a try: do not join a line we do not head.
    pub patient: bool,
    /// Who we are, for people.
    pub label: Arc<Label>,
}

impl Claim {
    /// A patient claim on a mutex, under a fresh random id, labelled with this process.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the operating system has no randomness to give.
    pub fn new(key: Key, ttl: Duration) -> Result<Self, Error> {
        Ok(Claim::known_as(ClaimId::random()?, key, ttl))
    }

    /// The same under an id of the caller's choice.
    pub fn known_as(id: ClaimId, key: Key, ttl: Duration) -> Self {
        let label = Arc::new(Label::of_this_process());
        Claim { key, id, ttl, load: Load::MUTEX, patient: true, label }
    }

    /// With another load than a mutex's.
    #[must_use]
    pub fn load(mut self, load: Load) -> Self {
        self.load = load;
        self
    }

    /// For another key.
    #[must_use]
    pub fn of(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// With another ttl.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// A try: it does not join a line that it does not head.
    #[must_use]
    pub fn impatient(mut self) -> Self {
        self.patient = false;
        self
    }

    /// With another label.
    #[must_use]
    pub fn labelled(mut self, label: Arc<Label>) -> Self {
        self.label = label;
        self
    }
}

impl Claim {
    /// Refuse a claim that can never be let in, before it stands in a line and blocks those behind it.
    ///
    /// # Errors
    /// A permanent fault of this backend.
    pub fn check_load(&self, backend: &'static str) -> Result<(), Fault> {
        if self.load.can_fit() {
            return Ok(());
        }
        let Load { weight, capacity } = self.load;
        let what = format!(
            "a weight of {weight} is never let in where the capacity is {capacity}: ask for at least 1 and at most that"
        );
        Err(Fault::permanent(backend, "taking the lock", what))
    }
}

/// How much of a room a claim takes, and how much the room holds: weight of capacity. A mutex is 1 of 1, a
/// permit 1 of n. Where claims of one key disagree about the capacity, the smallest counts.
///
/// ```
/// use lockkeeper_core::Load;
///
/// let permits = Load::new(2, 5);
/// assert_eq!((permits.weight, permits.capacity, permits.to_string()), (2, 5, "2 of 5".to_owned()));
/// assert!(permits.can_fit() && !Load::new(3, 2).can_fit() && !Load::new(0, 2).can_fit());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Load {
    /// How much of the room the claim takes.
    pub weight: u32,
    /// How much the room holds.
    pub capacity: u32,
}

impl Load {
    /// One holder at a time.
    pub const MUTEX: Load = Load::new(1, 1);

    /// One of any number of readers: nobody who writes is beside it.
    pub const READER: Load = Load::new(1, u32::MAX);

    /// One who writes: nobody is beside it, of any kind.
    pub const WRITER: Load = Load::new(u32::MAX, u32::MAX);

    /// A weight of a capacity.
    pub const fn new(weight: u32, capacity: u32) -> Self {
        Load { weight, capacity }
    }

    /// Whether nobody fits beside it, whatever the other's load.
    pub const fn is_exclusive(self) -> bool {
        self.weight == self.capacity
    }

    /// Whether two such claims fit together.
    pub const fn fits_beside(self, other: Load) -> bool {
        let capacity = if self.capacity < other.capacity { self.capacity } else { other.capacity };
        match self.weight.checked_add(other.weight) {
            Some(weight) => weight <= capacity,
            None => false,
        }
    }

    /// Two claims of one owner, as others have to see them: what they weigh together, of the smaller total.
    #[must_use]
    pub(crate) fn with(self, other: Load) -> Self {
        Load::new(self.weight.saturating_add(other.weight), self.capacity.min(other.capacity))
    }

    /// The stronger of two wishes for one name: alone before shared, more permits before fewer.
    #[must_use]
    pub fn stronger(self, other: Load) -> Self {
        match (self.is_exclusive(), other.is_exclusive()) {
            (true, _) => self,
            (false, true) => other,
            (false, false) => Load::new(self.weight.max(other.weight), self.capacity.min(other.capacity)),
        }
    }

    /// Whether it is about permits, which are counted: no mutex, and neither reader nor writer.
    pub const fn is_counted(self) -> bool {
        1 < self.capacity && self.capacity < u32::MAX
    }

    /// The smallest capacity that others name for a room whose permits are counted, if it is not ours.
    ///
    /// ```
    /// use lockkeeper_core::Load;
    ///
    /// let ours = Load::new(1, 5);
    /// assert!(ours.is_counted());
    /// assert_eq!(ours.differing([Load::new(2, 5), Load::new(1, 8), Load::new(1, 7)]), Some(7));
    /// assert_eq!(ours.differing([Load::READER, Load::MUTEX]), None); // they count nothing
    /// assert_eq!(Load::READER.differing([ours]), None);
    /// ```
    pub fn differing(self, others: impl IntoIterator<Item = Load>) -> Option<u32> {
        if !self.is_counted() {
            return None;
        }
        let differs = |it: &Load| it.is_counted() && it.capacity != self.capacity;
        others.into_iter().filter(differs).map(|it| it.capacity).min()
    }

    /// Whether such a claim can ever be let in: it weighs something, and no more than the room holds.
    pub const fn can_fit(self) -> bool {
        0 < self.weight && self.weight <= self.capacity
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.weight, self.capacity)
    }
}

/// What a claim is known by: 128 random bits from the operating system, or, where no other process can reach the
/// store, a number that this process has not used before. A store that names its claims itself (etcd) does not keep it.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::ClaimId;
///
/// let id = ClaimId::random()?;
/// assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
/// assert_eq!(ClaimId::from_bytes(*id.as_bytes()), id);
/// assert_ne!(ClaimId::local(), ClaimId::local());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

/// Ids drawn per call to the operating system; a call costs more than an in-process lock.
const IDS_PER_DRAW: usize = 64;

impl ClaimId {
    /// A fresh id.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the operating system has no randomness to give.
    pub fn random() -> Result<Self, Error> {
        thread_local! {
            static DRAWN: RefCell<(Option<Origin>, Vec<[u8; 16]>)> = const { RefCell::new((None, Vec::new())) };
        }
        DRAWN.with_borrow_mut(|(origin, drawn)| {
            // A fork copies what was drawn, and both sides would use it.
            if !origin.is_some_and(Origin::is_here) {
                *origin = Some(Origin::here());
                drawn.clear();
            }
            if let Some(id) = drawn.pop() {
                return Ok(ClaimId(id));
            }
            let mut bytes = [0; 16 * IDS_PER_DRAW];
            getrandom::fill(&mut bytes).map_err(|it| Error::unavailable("the system's random source", it))?;
            drawn.extend(bytes.as_chunks::<16>().0);
            Ok(ClaimId(drawn.pop().unwrap_or_default()))
        })
    }

    /// An id that is unique in this process only. It costs next to nothing, and is enough for a store that
    /// no other process can reach.
    pub fn local() -> Self {
        // Only that each is given once matters: Relaxed.
        static THREADS: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NEXT: Cell<u128> = Cell::new(u128::from(THREADS.fetch_add(1, Ordering::Relaxed)) << 64);
        }
        let id = NEXT.get();
        NEXT.set(id + 1);
        ClaimId(id.to_be_bytes())
    }

    /// The id as bytes, for stores with binary keys.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// An id read back from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        ClaimId(bytes)
    }

    /// An id read back from its 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|it| ClaimId(it.to_be_bytes()))
    }

    /// All 32 hexadecimal digits, for stores with text keys.
    pub fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Shows the first six digits only: whoever knows an id can release the lock.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}…", self.0[0], self.0[1], self.0[2])
    }
}

/// The longest owner name or note, in bytes; longer ones are cut at a character.
pub const LABEL_BYTES_MAX: usize = 256;

/// Who stands behind a claim, for `ls` and `show`. Free text: escape it before you print it.
///
/// ```
/// use lockkeeper_core::Label;
///
/// let label = Label::of_this_process().with(Some("import"), Some("release 1.4"));
/// assert_eq!(label.pid, std::process::id());
/// assert_eq!(label.owner.as_deref(), Some("import"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Label {
    /// The host's name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
    /// The logical caller, if it has a name.
    pub owner: Option<String>,
    /// What the caller wanted to say.
    pub note: Option<String>,
    /// The span from which it asked, if that is recorded.
    pub trace: Option<TraceContext>,
    /// What it holds may stay with its process while nobody has it: a warm lock, which may be idle.
    pub warm: bool,
}

/// The end of a note of whoever keeps its lock warm, before a trace.
const WARM: &str = "lockkeeper.warm";

impl Label {
    /// The label of a process, read back from a store.
    pub fn new(host: impl Into<String>, pid: u32, owner: Option<String>, note: Option<String>) -> Self {
        let (note, trace) = note.map(TraceContext::out_of).unwrap_or_default();
        let (note, warm) = note.map(warm_out_of).unwrap_or_default();
        Label { host: host.into(), pid, owner, note, trace, warm }
    }

    /// The label of this process.
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Label { host, pid: std::process::id(), ..Label::default() }
    }

    /// The same label with an owner's name and a note, each cut to [`LABEL_BYTES_MAX`].
    #[must_use]
    pub fn with(&self, owner: Option<&str>, note: Option<&str>) -> Self {
        let cut = |it: &str| cut(it, LABEL_BYTES_MAX).to_owned();
        Label { owner: owner.map(cut), note: note.map(cut), trace: None, ..self.clone() }
    }

    /// The same label, made ready for a store: with the span from which the lock is asked for, also at the end of the note,
    /// where it survives the way through every store. A note that leaves no room for it is cut. [`Label::new`] takes it
    /// out again.
    ///
    /// ```
    /// use lockkeeper_core::Label;
    /// use lockkeeper_core::observe::TraceContext;
    ///
    /// let span = TraceContext::new([0x4b; 16], [0xf0; 8]);
    /// let kept = Label::of_this_process().with(None, Some("release 1.4")).traced(span);
    /// let seen = Label::new(kept.host, kept.pid, kept.owner, kept.note);
    /// assert_eq!((seen.note.as_deref(), seen.trace), (Some("release 1.4"), Some(span)));
    /// ```
    #[must_use]
    pub fn traced(&self, trace: TraceContext) -> Self {
        self.made_ready(Some(trace), false)
    }

    /// The same label, made ready for a store: what a reader shall know besides is at the end of the note.
    pub(crate) fn made_ready(&self, trace: Option<TraceContext>, warm: bool) -> Self {
        let mut tail = trace.map(TraceContext::in_note);
        if warm {
            tail = Some(tail.map_or_else(|| WARM.to_owned(), |it| format!("{WARM} {it}")));
        }
        let Some(tail) = tail else { return self.clone() };
        let written = self.note.as_deref().map(|it| cut(it, LABEL_BYTES_MAX - tail.len() - 1));
        let note = written.map_or_else(|| tail.clone(), |it| format!("{it} {tail}"));
        Label { note: Some(note), trace, warm, ..self.clone() }
    }

    /// The same label for a store inside this process, where nothing needs to be written.
    pub(crate) fn warmed(&self) -> Self {
        Label { warm: true, ..self.clone() }
    }
}

/// What the caller wrote into a note, and whether the lock may be idle.
fn warm_out_of(note: String) -> (Option<String>, bool) {
    match note.strip_suffix(WARM) {
        Some("") => (None, true),
        Some(written) if written.ends_with(' ') => (Some(written[..written.len() - 1].to_owned()), true),
        _ => (Some(note), false),
    }
}

/// As much of a text as fits, to the end of a character.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_survive_the_trip_through_hex() {
        let ids: HashSet<_> = (0..10_000).map(|_| ClaimId::random().unwrap()).collect();
        assert_eq!(ids.len(), 10_000);
        for id in ids.into_iter().take(100) {
            assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
        }
        for bad in ["", "+0000000000000000000000000000000", "zz", "é"] {
            assert_eq!(ClaimId::from_hex(bad), None);
        }
    }

    #[test]
    fn debug_never_shows_a_whole_id() {
        let id = ClaimId::from_bytes([0xab; 16]);
        assert_eq!(format!("{id:?}"), "ababab…");
    }

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let label = Label::of_this_process().with(None, Some(&"é".repeat(LABEL_BYTES_MAX)));
        assert_eq!(label.note.as_ref().unwrap().len(), LABEL_BYTES_MAX);
        let (span, written) = (TraceContext::new([1; 16], [2; 8]), label.note.clone().unwrap());
        let kept = label.traced(span);
        assert!(kept.note.as_ref().unwrap().len() <= LABEL_BYTES_MAX, "{kept:?}");
        let seen = Label::new(kept.host, kept.pid, kept.owner, kept.note);
        assert!(written.starts_with(&seen.note.unwrap()) && seen.trace == Some(span));
    }

    #[test]
    fn that_a_lock_may_be_idle_survives_the_trip_through_a_note() {
        let span = TraceContext::new([1; 16], [2; 8]);
        let notes = [None, Some("import".to_owned()), Some("é".repeat(LABEL_BYTES_MAX))];
        for (note, trace) in notes.into_iter().flat_map(|it| [(it.clone(), None), (it, Some(span))]) {
            let label = Label::of_this_process().with(None, note.as_deref());
            let kept = label.made_ready(trace, true);
            assert!(kept.note.as_ref().unwrap().len() <= LABEL_BYTES_MAX, "{kept:?}");
            let seen = Label::new(kept.host, kept.pid, kept.owner, kept.note);
            assert!(seen.warm && seen.trace == trace, "{seen:?}");
            assert_eq!(seen.note.is_some(), note.is_some());
            assert!(label.note.unwrap_or_default().starts_with(&seen.note.unwrap_or_default()));
        }
        for note in ["", "lockkeeper.warm is on", "xlockkeeper.warm"] {
            let seen = Label::new("host", 1, None, Some(note.to_owned()));
            assert_eq!((seen.note.as_deref(), seen.warm), (Some(note), false));
        }
    }
}
