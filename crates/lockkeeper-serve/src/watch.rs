//! One look at the store per interval, however many browsers are there, and what changed between two looks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::inspect::{DynInspect, Finding};
use lockkeeper_core::{Clock, Leader, Locker, Moment};
use tokio::sync::Mutex;

use crate::hot::{Hot, Sketch};
use crate::view::{Holder, Lock, Who, millis};

/// How often the store is looked at while somebody watches.
const EVERY: Duration = Duration::from_secs(1);
/// How often the doctor is asked at most: it tries a lock.
const DOCTOR_EVERY: Duration = Duration::from_secs(30);
/// Changes that are remembered, of all locks together.
const CHANGES_MAX: usize = 5000;
/// How often it is asked who leads, at most: each role is one more question.
const ROLES_EVERY: Duration = Duration::from_secs(5);
/// Locks of which it is asked whether they are somebody's role.
const ROLES_ASKED_MAX: usize = 200;
/// A validity that is off by more than this from what was to be expected was renewed, or by a quarter of what is usual for it.
const RENEWED_MS: u64 = 1500;

/// All locks as they were at one time.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) locks: Vec<Lock>,
    /// When the store was asked last.
    pub(crate) at: Moment,
    /// When it answered last: the locks are those of then.
    pub(crate) as_of: Moment,
    /// Why the store could not be looked at; the locks are those of before.
    pub(crate) trouble: Option<String>,
}

/// Something that happened to a lock between two looks.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) name: String,
    pub(crate) at: Moment,
    pub(crate) what: String,
}

/// A role that somebody has.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) leader: Leader,
    /// How many stand for it.
    pub(crate) standing: usize,
}

/// As of which look it was asked who leads, and the answer. Held while the store is asked.
type AskedFor = Arc<Mutex<Option<(Moment, Option<Leader>)>>>;

/// What the doctor said, or why it could not be asked.
pub(crate) type Diagnosis = Result<Vec<Finding>, String>;

#[derive(Debug)]
pub(crate) struct Watch {
    inspect: Arc<dyn DynInspect>,
    /// Whose callers wait here, if anybody's.
    here: Option<Locker>,
    clock: Clock,
    pub(crate) every: Duration,
    last: Mutex<Option<Arc<Seen>>>,
    changes: std::sync::Mutex<VecDeque<Change>>,
    doctor: Mutex<Option<(Moment, Arc<Diagnosis>)>>,
    roles: Mutex<Option<(Moment, Arc<Vec<Role>>)>>,
    leaders: std::sync::Mutex<BTreeMap<String, AskedFor>>,
    busiest: std::sync::Mutex<Sketch>,
    /// Holders that were gone when their time was over. Relaxed: only counted.
    ran_out: AtomicU64,
}

impl Watch {
    pub(crate) fn new(inspect: Arc<dyn DynInspect>) -> Self {
        Watch {
            inspect,
            here: None,
            clock: Clock::boot(),
            every: EVERY,
            last: Mutex::default(),
            changes: std::sync::Mutex::default(),
            doctor: Mutex::default(),
            roles: Mutex::default(),
            leaders: std::sync::Mutex::default(),
            busiest: std::sync::Mutex::default(),
            ran_out: AtomicU64::new(0),
        }
    }

    /// The same where callers of this locker may wait, too.
    pub(crate) fn beside(self, locker: &Locker) -> Self {
        Watch { here: Some(locker.clone()), ..self }
    }

    /// The locks, not older than an interval.
    pub(crate) async fn look(&self) -> Arc<Seen> {
        // Held while the store is asked: whoever comes meanwhile gets the same answer.
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        if let Some(seen) = last.as_ref().filter(|it| now - it.at < self.every) {
            return seen.clone();
        }
        let found = self.inspect.list("").await;
        let at = self.clock.now();
        let (mut locks, as_of, trouble) = match found {
            Ok(infos) => (self.with_ours(infos.iter().map(Lock::of).collect()), at, None),
            Err(fault) => {
                let (before, as_of) =
                    last.as_ref().map_or((Vec::new(), at), |it| (it.locks.clone(), it.as_of));
                (before, as_of, Some(fault.to_string()))
            }
        };
        if let Some(before) = last.as_ref().filter(|_| trouble.is_none()) {
            keep_longest(&before.locks, &mut locks);
            self.remember(before, &locks, at);
        }
        let seen = Arc::new(Seen { locks, at, as_of, trouble });
        *last = Some(seen.clone());
        seen
    }

    /// And who waits for them in this process.
    fn with_ours(&self, mut locks: Vec<Lock>) -> Vec<Lock> {
        let waiting = self.here.as_ref().map(Locker::waiting).unwrap_or_default();
        let waiting: BTreeMap<&str, usize> = waiting.iter().map(|it| (it.0.as_str(), it.1)).collect();
        for it in &mut locks {
            it.here = waiting.get(it.name.as_str()).copied().unwrap_or_default();
        }
        locks
    }

    /// What the doctor says, not older than half a minute.
    pub(crate) async fn doctor(&self) -> Arc<Diagnosis> {
        let mut last = self.doctor.lock().await;
        let now = self.clock.now();
        if let Some((_, said)) = last.as_ref().filter(|it| now - it.0 < DOCTOR_EVERY && it.1.is_ok()) {
            return said.clone();
        }
        let mut said = self.inspect.doctor().await.map_err(|it| it.to_string());
        if let Ok(findings) = &mut said {
            findings.sort_by_key(|it| std::cmp::Reverse(it.severity));
        }
        let said = Arc::new(said);
        *last = Some((self.clock.now(), said.clone()));
        said
    }

    /// Who leads, among the first of those locks that one holds alone; not older than a few seconds.
    pub(crate) async fn roles(&self, locker: &Locker, seen: &Seen) -> Arc<Vec<Role>> {
        let mut last = self.roles.lock().await;
        let now = self.clock.now();
        if let Some((_, roles)) = last.as_ref().filter(|it| now - it.0 < ROLES_EVERY) {
            return roles.clone();
        }
        let mut roles = Vec::new();
        let alone = |it: &&Lock| it.holders.len() == 1 && it.holders[0].who.kind == "lock";
        for lock in seen.locks.iter().filter(alone).take(ROLES_ASKED_MAX) {
            match locker.leader(&lock.name).await {
                Ok(Some(leader)) => {
                    roles.push(Role { name: lock.name.clone(), leader, standing: lock.waiters.len() });
                }
                Ok(None) => {}
                // The store keeps no memos, or does not answer: the others would not be told either.
                Err(_) => break,
            }
        }
        let roles = Arc::new(roles);
        *last = Some((self.clock.now(), roles.clone()));
        roles
    }

    /// Who leads, if this lock is somebody's role; asked for once for each look at most, whoever shows it.
    pub(crate) async fn leader(&self, locker: &Locker, seen: &Seen, name: &str) -> Option<Leader> {
        let asked = self.asked_for(name);
        let mut last = asked.lock().await;
        if let Some((_, leader)) = last.as_ref().filter(|it| seen.at <= it.0) {
            return leader.clone();
        }
        // Most locks are nobody's role, and some stores keep no memos.
        let leader = locker.leader(name).await.ok().flatten();
        *last = Some((seen.at, leader.clone()));
        leader
    }

    fn asked_for(&self, name: &str) -> AskedFor {
        let mut known = self.leaders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if ROLES_ASKED_MAX <= known.len() && !known.contains_key(name) {
            // Those that nobody asks for just now are asked for again when somebody does.
            known.retain(|_, it| 1 < Arc::strong_count(it));
        }
        known.entry(name.to_owned()).or_default().clone()
    }

    /// The names whose holders were seen to change most.
    pub(crate) fn busiest(&self) -> Vec<Hot> {
        self.busiest.lock().unwrap_or_else(std::sync::PoisonError::into_inner).hottest()
    }

    /// What the doctor said when it was last asked.
    pub(crate) async fn last_diagnosis(&self) -> Option<Arc<Diagnosis>> {
        self.doctor.lock().await.as_ref().map(|it| it.1.clone())
    }

    fn changes(&self) -> std::sync::MutexGuard<'_, VecDeque<Change>> {
        self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What happened to a lock while somebody watched, the latest first.
    pub(crate) fn history(&self, name: &str, most: usize) -> Vec<Change> {
        self.changes().iter().rev().filter(|it| it.name == name).take(most).cloned().collect()
    }

    /// How many holders were seen to be gone when their time was over: they had not renewed.
    pub(crate) fn ran_out(&self) -> u64 {
        self.ran_out.load(Ordering::Relaxed)
    }

    fn remember(&self, before: &Seen, now: &[Lock], at: Moment) {
        let passed = millis(at - before.as_of);
        // Who held it a while ago may have renewed it, and let go since, if nobody has tried to look meanwhile.
        let is_watched = at - before.at <= self.every * 2;
        let old: BTreeMap<&str, &Lock> = before.locks.iter().map(|it| (it.name.as_str(), it)).collect();
        let new: BTreeMap<&str, &Lock> = now.iter().map(|it| (it.name.as_str(), it)).collect();
        let mut changes = self.changes();
        for name in old.keys().chain(new.keys().filter(|it| !old.contains_key(*it))) {
            if is_new_holder(old.get(name).copied(), new.get(name).copied()) {
                self.busiest.lock().unwrap_or_else(std::sync::PoisonError::into_inner).count(name);
            }
            for it in gone(old.get(name).copied(), new.get(name).copied()) {
                // Whoever renews is never so near to its end.
                let ran_out = is_watched && it.who.valid_for_ms <= passed;
                self.ran_out.fetch_add(u64::from(ran_out), Ordering::Relaxed);
                let how = if ran_out { "ran out of time: it was not renewed" } else { "no longer holds it" };
                let what = format!("{} {how}", who(&it.who));
                changes.push_back(Change { name: (*name).to_owned(), at, what });
            }
            for what in told(old.get(name).copied(), new.get(name).copied()) {
                changes.push_back(Change { name: (*name).to_owned(), at, what });
            }
        }
        let surplus = changes.len().saturating_sub(CHANGES_MAX);
        changes.drain(..surplus);
    }
}

/// What was seen of those who are still there stays known.
fn keep_longest(before: &[Lock], now: &mut [Lock]) {
    let old: BTreeMap<&str, &Lock> = before.iter().map(|it| (it.name.as_str(), it)).collect();
    let longest = |was: Option<&Who>, it: &mut Who| {
        it.longest_ms = it.longest_ms.max(was.map_or(0, |it| it.longest_ms));
    };
    for lock in now {
        let Some(old) = old.get(lock.name.as_str()) else { continue };
        for it in &mut lock.holders {
            longest(old.holders.iter().find(|was| same(was, it)).map(|it| &it.who), &mut it.who);
        }
        for it in &mut lock.waiters {
            let was = old.waiters.iter().find(|was| is_same_process(&was.who, &it.who));
            longest(was.map(|it| &it.who), &mut it.who);
        }
    }
}

/// Those who held it, and do not any more.
fn gone<'a>(before: Option<&'a Lock>, now: Option<&'a Lock>) -> impl Iterator<Item = &'a Holder> {
    let (old, new) = (holders(before), holders(now));
    old.iter().filter(|it| !new.iter().any(|other| same(other, it)))
}

fn holders(lock: Option<&Lock>) -> &[Holder] {
    lock.map_or(&[], |it| &it.holders)
}

/// What is new of a lock between two looks at it, in words.
fn told(before: Option<&Lock>, now: Option<&Lock>) -> Vec<String> {
    let waiters = |it: Option<&Lock>| it.map_or(0, Lock::waiting);
    let mut told = Vec::new();
    for it in gone(now, before) {
        let fence = it.fence.as_deref().map(|it| format!(", fence {it}")).unwrap_or_default();
        told.push(format!("{} holds it{fence}", who(&it.who)));
    }
    if waiters(before) != waiters(now) {
        told.push(format!("{} waiting, {} before", waiters(now), waiters(before)));
    }
    told
}

/// Whether somebody holds it who did not before.
fn is_new_holder(before: Option<&Lock>, now: Option<&Lock>) -> bool {
    gone(now, before).next().is_some()
}

fn same(one: &Holder, other: &Holder) -> bool {
    one.fence == other.fence && is_same_process(&one.who, &other.who)
}

fn is_same_process(one: &Who, other: &Who) -> bool {
    (&one.host, one.pid, &one.owner, &one.note) == (&other.host, other.pid, &other.owner, &other.note)
}

/// `host:pid owner`.
pub(crate) fn who(it: &Who) -> String {
    let owner = it.owner.as_deref().map(|it| format!(" {it}")).unwrap_or_default();
    format!("{}:{}{owner}", it.host, it.pid)
}

/// Whether two looks differ in more than that time went by.
pub(crate) fn differ(before: &[&Lock], now: &[&Lock], between: Duration) -> bool {
    let passed = crate::view::millis(between);
    let as_expected = |old: &Who, new: &Who| {
        is_same_process(old, new)
            && old.valid_for_ms.saturating_sub(passed).abs_diff(new.valid_for_ms)
                <= RENEWED_MS.min(new.longest_ms / 4)
    };
    let same_lock = |old: &Lock, new: &Lock| {
        old.name == new.name
            && old.foreign == new.foreign
            && old.holders.len() == new.holders.len()
            && (old.waiters.len(), old.here) == (new.waiters.len(), new.here)
            && old
                .holders
                .iter()
                .zip(&new.holders)
                .all(|it| it.0.fence == it.1.fence && as_expected(&it.0.who, &it.1.who))
            && old.waiters.iter().zip(&new.waiters).all(|it| as_expected(&it.0.who, &it.1.who))
    };
    before.len() != now.len() || !before.iter().zip(now).all(|(old, new)| same_lock(old, new))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::backend::{Backend as _, Place as _};
    use lockkeeper_core::{Claim, Key, Locker, Memory};

    use super::*;
    use crate::flickering::Flickering;

    #[tokio::test]
    async fn the_store_is_asked_once_per_interval_and_changes_are_told() {
        let store = Memory::default();
        let locker = Locker::new(store.clone());
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let watch = Watch { clock: clock.clone(), ..Watch::new(Arc::new(store)) };
        let first = watch.look().await;
        let guard = locker.lock("x").note("n").await.unwrap();
        assert!(Arc::ptr_eq(&first, &watch.look().await), "not asked again");
        clock.advance_by(EVERY);
        let second = watch.look().await;
        assert_eq!(second.locks.len(), 1);
        let (old, new): (Vec<_>, Vec<_>) = (first.locks.iter().collect(), second.locks.iter().collect());
        assert!(differ(&old, &new, EVERY) && !differ(&new, &new, Duration::ZERO));
        guard.release().await.unwrap();
        clock.advance_by(EVERY);
        watch.look().await;
        let told: Vec<_> = watch.history("x", 10).into_iter().map(|it| it.what).collect();
        assert!(told[0].ends_with("no longer holds it") && told[1].contains("holds it, fence"), "{told:?}");
        assert!(watch.history("y", 10).is_empty());
        let busy = watch.busiest();
        assert_eq!((busy.len(), busy[0].name.as_str(), busy[0].count), (1, "x", 1));
    }

    #[tokio::test]
    async fn whoever_did_not_renew_is_told_from_whoever_let_go() {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let store = Memory::new(clock.clone());
        let watch = Watch { clock: clock.clone(), ..Watch::new(Arc::new(store.clone())) };
        let claim = |ms| Claim::new(Key::new("x").unwrap(), Duration::from_millis(ms)).unwrap();
        let mut left = store.enter(claim(60_000));
        left.turn().await.unwrap();
        watch.look().await;
        clock.advance_by(EVERY);
        left.leave().await.unwrap();
        watch.look().await;
        assert_eq!(watch.ran_out(), 0);
        let mut dead = store.enter(claim(1500));
        dead.turn().await.unwrap();
        clock.advance_by(EVERY);
        watch.look().await;
        clock.advance_by(EVERY);
        watch.look().await;
        assert_eq!(watch.ran_out(), 1);
        let told = watch.history("x", 1).remove(0).what;
        assert!(told.ends_with("it was not renewed"), "{told}");
    }

    /// Who opens the console in the evening does not see all locks of the morning as lost.
    #[tokio::test]
    async fn what_ended_while_nobody_looked_is_no_loss() {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let store = Memory::new(clock.clone());
        let watch = Watch { clock: clock.clone(), ..Watch::new(Arc::new(store.clone())) };
        let claim = Claim::new(Key::new("x").unwrap(), Duration::from_secs(10)).unwrap();
        let mut place = store.enter(claim);
        place.turn().await.unwrap();
        watch.look().await;
        for _ in 0..4 {
            clock.advance_by(Duration::from_secs(3));
            place.renew().await.unwrap();
        }
        place.leave().await.unwrap();
        watch.look().await;
        assert_eq!(watch.ran_out(), 0, "{:?}", watch.history("x", 9));
    }

    /// Stores do not tell the ttl, so what is short is judged by what was seen: a lock of two seconds is as well as one of a minute.
    #[tokio::test]
    async fn a_validity_is_short_when_two_renewals_are_missing() {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let store = Memory::new(clock.clone());
        let watch = Watch {
            clock: clock.clone(),
            every: Duration::from_millis(1),
            ..Watch::new(Arc::new(store.clone()))
        };
        for seconds in [2, 60] {
            let ttl = Duration::from_secs(seconds);
            let mut place = store.enter(Claim::new(Key::new("x").unwrap(), ttl).unwrap());
            place.turn().await.unwrap();
            let is_short = async || {
                let seen = watch.look().await;
                let who = &seen.locks[0].holders[0].who;
                who.valid_for_ms < who.short_ms()
            };
            for _ in 0..3 {
                assert!(!is_short().await);
                clock.advance_by(ttl / 3);
                place.renew().await.unwrap();
            }
            for (passed, short) in [(ttl / 2, false), (ttl / 5, true)] {
                clock.advance_by(passed);
                assert_eq!(is_short().await, short, "{seconds} s: {passed:?} later");
            }
            place.leave().await.unwrap();
            clock.advance_by(EVERY);
        }
    }

    /// Each role is a question of its own, so they are asked less often than the locks.
    #[tokio::test]
    async fn who_leads_is_not_asked_at_every_look() {
        let store = Memory::default();
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let watch = Watch { clock: clock.clone(), ..Watch::new(Arc::new(store.clone())) };
        let locker = Locker::new(store);
        let _leads = locker.campaign("role", "one").win().await.unwrap();
        let first = watch.roles(&locker, &*watch.look().await).await;
        assert_eq!(first.len(), 1);
        clock.advance_by(ROLES_EVERY.saturating_sub(EVERY));
        assert!(Arc::ptr_eq(&first, &watch.roles(&locker, &*watch.look().await).await), "asked again");
        clock.advance_by(EVERY);
        assert!(!Arc::ptr_eq(&first, &watch.roles(&locker, &*watch.look().await).await), "never asked again");
    }

    /// Its time ran out while nobody could see it, which was longer ago than the last try to look.
    #[tokio::test]
    async fn what_ran_out_while_the_store_could_not_be_seen_is_told_as_that() {
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let store = Memory::new(clock.clone());
        let view = Flickering::of(&store);
        let watch = Watch { clock: clock.clone(), ..Watch::new(Arc::new(view.clone())) };
        let claim = Claim::new(Key::new("x").unwrap(), Duration::from_secs(10)).unwrap();
        let mut dead = store.enter(claim);
        dead.turn().await.unwrap();
        watch.look().await;
        view.hide(true);
        for _ in 0..20 {
            clock.advance_by(EVERY);
            assert!(watch.look().await.trouble.is_some());
        }
        view.hide(false);
        clock.advance_by(EVERY);
        watch.look().await;
        assert_eq!(watch.ran_out(), 1, "{:?}", watch.history("x", 9));
    }
}
