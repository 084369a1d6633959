//! A store small enough to be read at a glance, into which one flaw at a time can be planted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::locked;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::{Claim, ClaimId, Clock, Key, Load, Moment, admission};
use tokio::sync::Notify;

mod flaw;
mod memos;

pub(crate) use flaw::Flaw;

#[derive(Clone)]
pub(crate) struct Toy {
    store: Arc<Mutex<Store>>,
    bell: Arc<Notify>,
    clock: Clock,
    flaw: Flaw,
}

#[derive(Default)]
struct Store {
    rows: BTreeMap<String, Row>,
    places: u64,
    counter: u64,
    /// The last version of a memo.
    versions: u64,
    memos: BTreeMap<String, memos::Kept>,
}

#[derive(Default)]
struct Row {
    held: Vec<Entry>,
    line: Vec<Entry>,
    counter: u64,
    /// Who held last, for the flaw that revives.
    last: Option<Entry>,
}

#[derive(Clone)]
struct Entry {
    id: (ClaimId, u64),
    weight: u32,
    capacity: u32,
    asked_at: Moment,
    expires_at: Moment,
    counter: u64,
    asks: u32,
}

impl Toy {
    pub(crate) fn new(clock: Clock, flaw: Flaw) -> Self {
        Toy { store: Arc::default(), bell: Arc::default(), clock, flaw }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn row_of(&self, key: &Key) -> String {
        let name = key.as_str();
        match self.flaw {
            Flaw::KeysFoldCase => name.to_lowercase(),
            Flaw::KeysTrimmed => name.trim_end().to_owned(),
            Flaw::KeysCut => name.chars().take(64).collect(),
            Flaw::KeysAllOne => String::new(),
            _ => name.to_owned(),
        }
    }
}

impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Toy({:?})", self.flaw)
    }
}

impl Backend for Toy {
    type Place = ToyPlace;

    fn profile(&self) -> Profile {
        let sessions = self.is(Flaw::NoneWithSessions) || self.is(Flaw::GrantTooOptimisticWithSessions);
        let profile = Profile::new("toy", Reach::Process).fifo().weighted().lingering().lowering();
        let profile = profile.ttl(Duration::from_millis(1), Duration::from_secs(3600));
        // Whoever hears something renews: with a mistake elsewhere, too often for it to show.
        let notifies = matches!(
            self.flaw,
            Flaw::None
                | Flaw::NoneWithSessions
                | Flaw::HolderNotNotified
                | Flaw::LossNotTold
                | Flaw::LossToldToListenersOnly
        );
        let profile = if notifies { profile.notifying() } else { profile };
        if sessions { profile.by_session() } else { profile }
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }

    fn enter(&self, claim: Claim) -> ToyPlace {
        if self.is(Flaw::EnteringNeedsARuntime) {
            let _ = tokio::runtime::Handle::current();
        }
        let mut store = locked(&self.store);
        store.places += 1;
        let twin = if self.is(Flaw::TwinIsAStranger) { store.places } else { 0 };
        drop(store);
        let (entered_at, asked, left, woken, renewals) = (self.clock.now(), false, false, true, 0);
        let place = ToyPlace { toy: self.clone(), claim, twin, entered_at, asked, left, woken, renewals };
        if self.is(Flaw::EnteringJoins) {
            place.with_row(|row, now| row.line.push(place.entry(now)));
        }
        place
    }
}

pub(crate) struct ToyPlace {
    toy: Toy,
    claim: Claim,
    twin: u64,
    entered_at: Moment,
    asked: bool,
    left: bool,
    woken: bool,
    renewals: u32,
}

impl ToyPlace {
    fn id(&self) -> (ClaimId, u64) {
        (self.claim.id, self.twin)
    }

    fn expires_at(&self, now: Moment) -> Moment {
        let from = if self.toy.is(Flaw::ExpiryFromEntering) { self.entered_at } else { now };
        from.after(self.claim.ttl)
    }

    fn entry(&self, now: Moment) -> Entry {
        let (weight, capacity, expires_at) =
            (self.claim.load.weight, self.claim.load.capacity, self.expires_at(now));
        Entry { id: self.id(), weight, capacity, asked_at: now, expires_at, counter: 0, asks: 0 }
    }

    fn with_row<T>(&self, f: impl FnOnce(&mut Row, Moment) -> T) -> T {
        let (toy, now) = (&self.toy, self.toy.clock.now());
        let mut store = locked(&toy.store);
        let mut counter = store.counter;
        let name = toy.row_of(&self.claim.key);
        let row = store.rows.entry(name.clone()).or_default();
        row.counter = counter;
        let alive = |it: &Entry, never: Flaw| {
            let by_asker = it.asked_at.after(self.claim.ttl);
            let until = if toy.is(Flaw::ExpiryByTheAskersTtl) { by_asker } else { it.expires_at };
            now < until || toy.is(never)
        };
        row.held.retain(|it| alive(it, Flaw::HolderNeverForgotten));
        row.line.retain(|it| alive(it, Flaw::WaiterNeverForgotten));
        let out = f(row, now);
        counter = row.counter;
        if row.held.is_empty() && row.line.is_empty() && toy.is(Flaw::CounterForgotten) {
            counter = 0;
        }
        store.counter = counter;
        drop(store);
        toy.bell.notify_waiters();
        out
    }

    fn fits(&self, row: &Row) -> bool {
        let holders = row.held.iter().map(|it| it.capacity).min().unwrap_or(u32::MAX);
        let capacity = match self.toy.flaw {
            Flaw::NewcomersCapacityIgnored if !row.held.is_empty() => holders,
            Flaw::HoldersCapacityIgnored => self.claim.load.capacity,
            _ => holders.min(self.claim.load.capacity),
        };
        if self.toy.is(Flaw::WeightIgnored) {
            return row.held.len() < capacity as usize;
        }
        let in_use: u64 = row.held.iter().map(|it| u64::from(it.weight)).sum();
        in_use + u64::from(self.claim.load.weight) <= u64::from(capacity)
    }

    /// Whether all who stand before it enter now, and it fits beside them.
    fn fits_behind(&self, row: &Row, before: &[Entry]) -> bool {
        let load = |it: &Entry| Load::new(it.weight, it.capacity);
        let line: Vec<Load> = row.held.iter().chain(before).map(load).chain([self.claim.load]).collect();
        before.is_empty() || admission::inside(&line) == line.len()
    }

    fn grant(&self, row: &mut Row, now: Moment) -> Turn {
        self.leave_line(row);
        row.counter += u64::from(!self.toy.is(Flaw::CounterRepeats) || row.counter == 0);
        let entry = Entry { counter: row.counter, ..self.entry(now) };
        row.last = Some(entry.clone());
        row.held.push(entry);
        self.held(row, row.counter)
    }

    fn held(&self, row: &Row, counter: u64) -> Turn {
        let optimistic =
            self.toy.is(Flaw::GrantTooOptimistic) || self.toy.is(Flaw::GrantTooOptimisticWithSessions);
        let valid_for = if optimistic { self.claim.ttl * 2 } else { self.claim.ttl };
        Turn::Held(Grant::new(counter, valid_for).wanted(self.wanted(row)))
    }

    fn wanted(&self, row: &Row) -> bool {
        let waits = !row.line.is_empty() && !self.toy.is(Flaw::WantedNever);
        waits || self.toy.is(Flaw::WantedAlways)
    }

    fn turn_in(&self, row: &mut Row, now: Moment) -> Turn {
        let (toy, id) = (&self.toy, self.id());
        if let Some(at) = row.held.iter().position(|it| it.id == id) {
            if !toy.is(Flaw::RepeatedGrantNotExtended) {
                row.held[at].asked_at = now;
                row.held[at].expires_at = self.expires_at(now);
            }
            if toy.is(Flaw::AskingTwiceGrantsTwice) {
                row.held.remove(at);
                return self.grant(row, now);
            }
            if !toy.is(Flaw::OwnGrantNotRecognised) {
                return self.held(row, row.held[at].counter);
            }
        }
        let place = row.line.iter().position(|it| it.id == id);
        let before = &row.line[..place.unwrap_or(row.line.len())];
        let may_enter =
            if toy.is(Flaw::EntersOneByOne) { before.is_empty() } else { self.fits_behind(row, before) };
        let passes = toy.is(Flaw::LineBarges)
            || (toy.is(Flaw::ImpatientOvertakes) && !self.claim.patient)
            || (toy.is(Flaw::LightOvertakes) && self.claim.load.weight == 1);
        let insists = toy.is(Flaw::PersistenceWins) && place.is_some_and(|it| 1 <= row.line[it].asks);
        if ((may_enter || passes) && self.fits(row)) || insists {
            return self.grant(row, now);
        }
        match place {
            Some(at) if !toy.is(Flaw::AskingTwiceJoinsTwice) => {
                let mut entry = row.line.remove(at);
                (entry.asked_at, entry.expires_at, entry.asks) = (now, self.expires_at(now), entry.asks + 1);
                let back = toy.is(Flaw::AskingAgainGoesBack);
                row.line.insert(if back { row.line.len() } else { at }, entry);
            }
            _ if self.claim.patient || toy.is(Flaw::ImpatientJoins) => row.line.push(self.entry(now)),
            _ => {}
        }
        let late = toy.is(Flaw::RecheckTooLate);
        Turn::wait(if late { self.claim.ttl * 2 } else { self.claim.ttl / 4 }, None)
    }

    fn renew_in(&self, row: &mut Row, now: Moment) -> Renewal {
        let toy = &self.toy;
        let held = Renewal::held(self.claim.ttl, self.wanted(row));
        if toy.is(Flaw::RenewalAlwaysConfirmed) {
            return held;
        }
        if toy.is(Flaw::RenewalOnlyOnce) && 1 < self.renewals {
            return Renewal::Lost;
        }
        let expires_at = self.expires_at(now);
        if let Some(entry) = row.held.iter_mut().find(|it| it.id == self.id()) {
            if !toy.is(Flaw::RenewalNotExtended) {
                (entry.asked_at, entry.expires_at) = (now, expires_at);
            }
            return held;
        }
        if toy.is(Flaw::RenewalOfAWaiterConfirmed) && row.line.iter().any(|it| it.id == self.id()) {
            return held;
        }
        if toy.is(Flaw::RenewalRecreates) {
            row.held = vec![Entry { counter: row.counter, ..self.entry(now) }];
            return held;
        }
        let last = row.last.clone().filter(|it| it.id == self.id() && row.held.is_empty() && !self.left);
        if let (true, Some(entry)) = (toy.is(Flaw::RenewalRevivesTheExpired), last) {
            row.held.push(Entry { expires_at, ..entry });
            return held;
        }
        Renewal::Lost
    }

    fn leave_in(&self, row: &mut Row) {
        if self.toy.is(Flaw::ReleasesWithoutComparing) {
            row.held.clear();
        }
        row.held.retain(|it| it.id != self.id());
        self.leave_line(row);
    }

    fn leave_line(&self, row: &mut Row) {
        let first = row.line.iter().position(|it| it.id == self.id());
        first.map(|it| row.line.remove(it));
        if !self.toy.is(Flaw::AskingTwiceJoinsTwice) {
            row.line.retain(|it| it.id != self.id());
        }
    }
}

impl ToyPlace {
    /// It was made holder, and is not known any more.
    fn has_lost(&self) -> bool {
        let told_late = !self.toy.is(Flaw::LossNotTold) && !self.toy.is(Flaw::LossToldToListenersOnly);
        let id = self.id();
        let is_known = |row: &mut Row, _| row.held.iter().chain(&row.line).any(|it| it.id == id);
        told_late && self.asked && !self.left && !self.with_row(is_known)
    }

    fn holds_what_is_wanted(&self) -> bool {
        self.with_row(|row, _| row.held.iter().any(|it| it.id == self.id()) && !row.line.is_empty())
    }
}

impl Place for ToyPlace {
    async fn turn(&mut self) -> Result<Turn> {
        if self.toy.is(Flaw::WakeUpNeeded) && !self.woken {
            return Ok(Turn::wait(self.claim.ttl / 4, None));
        }
        if !self.claim.load.can_fit() && !self.toy.is(Flaw::UnfitStandsInLine) {
            return Err(Fault::permanent(
                "toy",
                "taking the lock",
                format!("{} never fits", self.claim.load),
            ));
        }
        (self.asked, self.left) = (true, false);
        let turn = self.with_row(|row, now| self.turn_in(row, now));
        self.woken = matches!(turn, Turn::Held(_));
        Ok(turn)
    }

    async fn changed(&mut self) {
        if self.holds_what_is_wanted() {
            if self.toy.is(Flaw::HolderNotNotified) {
                std::future::pending::<()>().await;
            }
            return;
        }
        if self.has_lost() {
            return;
        }
        let release = self.toy.is(Flaw::ListeningReleases).then(|| Release(self));
        self.toy.bell.clone().notified().await;
        drop(release);
        self.woken = true;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.renewals += 1;
        Ok(self.with_row(|row, now| self.renew_in(row, now)))
    }

    async fn leave(&mut self) -> Result<()> {
        let twice = self.left && self.toy.is(Flaw::LeavingTwiceFails);
        let unasked = !self.asked && self.toy.is(Flaw::LeavingUnaskedFails);
        if twice || unasked {
            return Err(Fault::permanent("toy", "giving the lock back", "there is nothing to give back"));
        }
        self.left = true;
        self.with_row(|row, _| self.leave_in(row));
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        let is = |flaw| self.toy.is(flaw);
        self.with_row(|row, now| {
            let until = if is(Flaw::LingeringByTheTtl) { self.expires_at(now) } else { now.after(span) };
            row.held.iter_mut().filter(|it| it.id == self.id()).for_each(|it| it.expires_at = until);
            if is(Flaw::LingeringIsLeaving) {
                self.leave_in(row);
            }
        });
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        let is = |flaw| self.toy.is(flaw);
        let (id, lowered) = (self.id(), self.entry(self.toy.clock.now()));
        Ok(self.with_row(|row, _| {
            let Some(entry) = row.held.iter_mut().find(|it| it.id == id) else {
                return is(Flaw::LoweringIsAlwaysConfirmed);
            };
            if !is(Flaw::LoweringIsIgnored) {
                (entry.weight, entry.capacity) = (load.weight, load.capacity);
            }
            if is(Flaw::LoweringIsLeaving) {
                row.held.retain(|it| it.id != id);
                row.line.push(lowered);
            }
            true
        }))
    }

    fn turn_at_once(&mut self, _now: Moment) -> Option<Turn> {
        if self.toy.is(Flaw::AnswersAtOnceLie) {
            return Some(Turn::Held(Grant::new(1, self.claim.ttl)));
        }
        Some(self.with_row(|row, now| self.turn_in(row, now)))
    }

    fn leave_at_once(&mut self) -> bool {
        self.with_row(|row, _| self.leave_in(row));
        true
    }
}

/// Releases when it goes, for the flaw of that name.
struct Release<'a>(&'a ToyPlace);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.with_row(|row, _| row.held.retain(|it| it.id != self.0.id()));
    }
}

impl Inspect for Toy {
    async fn list(&self, _prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(Vec::new())
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let mut store = locked(&self.store);
        let Some(row) = store.rows.get_mut(&self.row_of(key)) else {
            return Ok(None);
        };
        let now = self.clock.now();
        let seen = |entries: &[Entry]| {
            entries.iter().filter(|it| now < it.expires_at).map(|it| occupant(it, now)).collect()
        };
        let (holders, waiters): (Vec<_>, Vec<_>) = (seen(&row.held), seen(&row.line));
        let anybody = !(holders.is_empty() && waiters.is_empty());
        Ok(anybody.then(|| LockInfo::new(key.clone(), holders, waiters)))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let mut store = locked(&self.store);
        let Some(row) = store.rows.get_mut(&self.row_of(key)) else {
            return Ok(Vec::new());
        };
        let now = self.clock.now();
        let named = row.held.iter().map(|it| occupant(it, now)).collect();
        if !self.is(Flaw::BreakReleasesNothing) {
            row.held.clear();
        }
        drop(store);
        if !self.is(Flaw::LossNotTold) {
            self.bell.notify_waiters();
        }
        Ok(named)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

fn occupant(entry: &Entry, now: Moment) -> Occupant {
    let load = Load::new(entry.weight, entry.capacity);
    Occupant::new(lockkeeper_core::Label::default(), entry.expires_at - now).load(load)
}
