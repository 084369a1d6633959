//! The reference backend: a store inside this process. It is also what simulations stand on.
//!
//! One row per key that is held or waited for; a row that is neither leaves the map. Counters come from
//! one number per shard of the map, so that forgetting a row never makes a fence go back.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table;
use smallvec::SmallVec;

use crate::clock::{Clock, Moment};
use crate::fence::Fence;
use crate::key::Key;
use crate::kit::locked;
use crate::spi::backend::{Backend, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use crate::spi::claim::{Claim, ClaimId, Label, Load};
use crate::spi::inspect::{Finding, Inspect, LockInfo, Occupant};
use crate::spi::node::{Node, RaiseCounter, Standing};

const SHARDS: usize = 16;
/// How many unused rows a shard keeps.
const SPARE_ROWS_MAX: usize = 8;

/// A store in this process. Clones share it: a clone is to the store what another process would be.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory};
///
/// let store = Memory::default();
/// let (one, other) = (Locker::new(store.clone()), Locker::new(store.clone()));
/// let guard = one.lock("orders/42").await?;
/// assert!(other.try_lock("orders/42").await?.is_none());
/// assert_eq!(store.len(), 1);
/// guard.release().await?;
/// assert!(store.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Memory(Arc<Store>);

struct Store {
    clock: Clock,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    rows: HashTable<Box<Row>>,
    /// Rows out of use, kept because most locks are short.
    #[expect(clippy::vec_box, reason = "they go back into the map as they are")]
    spare: Vec<Box<Row>>,
    /// The last counter given to any key of this shard.
    counter: u64,
}

struct Row {
    key: Key,
    /// Nearly always one.
    held: SmallVec<[Entry; 1]>,
    line: VecDeque<Entry>,
}

/// Somebody who holds or waits.
struct Entry {
    id: ClaimId,
    load: Load,
    expires_at: Moment,
    since: Moment,
    counter: u64,
    label: Arc<Label>,
    /// Asking again is worthwhile; told by `changed`.
    called: bool,
    waker: Option<Waker>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new(Clock::boot())
    }
}

impl Memory {
    /// An empty store that judges expiry by `clock`.
    pub fn new(clock: Clock) -> Self {
        Memory(Arc::new(Store { clock, shards: std::array::from_fn(|_| Mutex::default()) }))
    }

    /// How many keys are held or waited for, expired ones included until somebody looks.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|it| locked(it).rows.len()).sum()
    }

    /// Whether no key is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shard of a hash: from its top bits, because the table inside uses the low ones.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(hash >> 32).unwrap_or(0) % SHARDS;
        locked(&self.0.shards[index])
    }

    /// Run `f` on the key's row with the expired forgotten, then call whoever may now have a turn.
    fn with_row<T>(&self, key: &Key, f: impl FnOnce(&mut Row, Moment) -> T) -> T {
        let now = self.0.clock.now();
        self.touch_row(key, |row, _| {
            row.forget_expired(now);
            f(row, now)
        })
    }

    /// Run `f` on the key's row, then call whoever may now have a turn. An empty row leaves the map.
    fn touch_row<T>(&self, key: &Key, f: impl FnOnce(&mut Row, &mut u64) -> T) -> T {
        let hash = key.hash64();
        let mut shard = self.shard(hash);
        let Shard { rows, spare, counter } = &mut *shard;
        let mut entry = match rows.entry(hash, |it| it.key == *key, |it| it.key.hash64()) {
            hash_table::Entry::Occupied(it) => it,
            hash_table::Entry::Vacant(it) => it.insert(Row::of(key, spare.pop())),
        };
        let row = entry.get_mut();
        let out = f(row, counter);
        let called = row.call_head();
        if row.held.is_empty() && row.line.is_empty() {
            let (row, _) = entry.remove();
            if spare.len() < SPARE_ROWS_MAX {
                spare.push(row);
            }
            let (len, capacity) = (rows.len(), rows.capacity());
            if 64 < capacity && len < capacity / 8 {
                rows.shrink_to(len * 2, |it| it.key.hash64());
            }
        }
        drop(shard);
        if let Some(waker) = called {
            waker.wake();
        }
        out
    }
}

impl Row {
    /// An empty row, perhaps one that served another key before.
    fn of(key: &Key, spare: Option<Box<Row>>) -> Box<Row> {
        let Some(mut row) = spare else {
            return Box::new(Row { key: key.clone(), held: SmallVec::new(), line: VecDeque::new() });
        };
        row.key.clone_from(key);
        row
    }

    fn forget_expired(&mut self, now: Moment) {
        if self.held.is_empty() && self.line.is_empty() {
            return;
        }
        self.held.retain(|it| now < it.expires_at);
        self.line.retain(|it| now < it.expires_at);
    }

    /// Whether an entry of this weight and capacity may enter beside those who hold.
    fn fits(&self, load: Load) -> bool {
        let in_use: u64 = self.held.iter().map(|it| u64::from(it.load.weight)).sum();
        let capacity = self.held.iter().map(|it| it.load.capacity).fold(load.capacity, u32::min);
        in_use + u64::from(load.weight) <= u64::from(capacity)
    }

    /// Tell the head of the line, once, that it may enter.
    fn call_head(&mut self) -> Option<Waker> {
        let head = self.line.front()?;
        if head.called || !self.fits(head.load) {
            return None;
        }
        let head = self.line.front_mut()?;
        head.called = true;
        head.waker.take()
    }

    fn entry_of(&mut self, id: ClaimId) -> Option<&mut Entry> {
        self.held.iter_mut().chain(&mut self.line).find(|it| it.id == id)
    }

    /// The admission rule: the head enters when it fits, and nobody overtakes the head.
    fn turn(&mut self, claim: &Claim, now: Moment, counter: &mut u64) -> Turn {
        self.forget_expired(now);
        let expires_at = now.after(claim.ttl);
        if let Some(at) = self.held.iter().position(|it| it.id == claim.id) {
            self.held[at].expires_at = expires_at;
            return self.granted(at, claim.ttl);
        }
        let place = self.line.iter().position(|it| it.id == claim.id);
        let ahead = place.unwrap_or(self.line.len());
        if ahead == 0 && self.fits(claim.load) {
            let mut entry =
                self.line.pop_front().filter(|_| place.is_some()).unwrap_or_else(|| entry(claim, now));
            entry.expires_at = expires_at;
            entry.since = now;
            entry.called = false;
            *counter += 1;
            entry.counter = *counter;
            self.held.push(entry);
            return self.granted(self.held.len() - 1, claim.ttl);
        }
        match place {
            Some(at) => {
                self.line[at].expires_at = expires_at;
                self.line[at].called = false;
            }
            None if claim.patient => self.join_line(claim, now, expires_at),
            None => {}
        }
        let next_expiry = self.held.iter().chain(self.line.iter().take(ahead)).map(|it| it.expires_at).min();
        let recheck = next_expiry.map_or(claim.ttl / 3, |it| (it - now).min(claim.ttl / 3));
        let ahead = u64::try_from(ahead + self.held.len()).ok();
        Turn::wait(recheck.max(Duration::from_millis(1)), ahead)
    }

    fn join_line(&mut self, claim: &Claim, now: Moment, expires_at: Moment) {
        self.line.push_back(Entry { expires_at, ..entry(claim, now) });
        for holder in &mut self.held {
            holder.called = true;
            if let Some(waker) = holder.waker.take() {
                waker.wake();
            }
        }
    }

    fn granted(&self, at: usize, ttl: Duration) -> Turn {
        let wanted = !self.line.is_empty();
        Turn::Held(Grant::new(self.held[at].counter, ttl).wanted(wanted))
    }
}

fn entry(claim: &Claim, now: Moment) -> Entry {
    Entry {
        id: claim.id,
        load: claim.load,
        expires_at: now.after(claim.ttl),
        since: now,
        counter: 0,
        label: claim.label.clone(),
        called: false,
        waker: None,
    }
}

impl Backend for Memory {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        Profile::new("memory", Reach::Process).fifo().weighted()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        MemoryPlace { memory: self.clone(), claim }
    }

    /// A store without clones cannot get any: the only one who could make them has given it to a locker.
    fn is_private(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A place in a line of [`Memory`].
///
/// ```
/// # use lockkeeper_core::{Claim, ClaimId, Error, Key, Label, Memory};
/// # fn claim() -> Result<Claim, Error> {
/// #     Claim::new(Key::new("orders/42")?, std::time::Duration::from_secs(10))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::backend::{Backend as _, Place as _, Turn};
/// use lockkeeper_core::memory::MemoryPlace;
///
/// let mut place: MemoryPlace = Memory::default().enter(claim()?);
/// assert!(matches!(place.turn().await?, Turn::Held(_)));
/// place.leave().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryPlace {
    memory: Memory,
    claim: Claim,
}

impl MemoryPlace {
    fn turn_now(&self, now: Moment) -> Turn {
        self.memory.touch_row(&self.claim.key, |row, counter| row.turn(&self.claim, now, counter))
    }

    fn renew_now(&self) -> Renewal {
        let claim = &self.claim;
        self.memory.with_row(&claim.key, |row, now| {
            let Some(entry) = row.held.iter_mut().find(|it| it.id == claim.id) else {
                return Renewal::Lost;
            };
            entry.expires_at = now.after(claim.ttl);
            Renewal::held(claim.ttl, !row.line.is_empty())
        })
    }

    fn raise_now(&self, to: u64) -> Option<u64> {
        let now = self.memory.0.clock.now();
        self.memory.touch_row(&self.claim.key, |row, counter| {
            row.forget_expired(now);
            // Every grant is above what was raised before, so there is nothing more to outdo.
            let entry = row.held.iter_mut().find(|it| it.id == self.claim.id)?;
            entry.counter = entry.counter.max(to);
            *counter = (*counter).max(to);
            Some(entry.counter)
        })
    }

    fn leave_now(&self) {
        self.memory.touch_row(&self.claim.key, |row, _| {
            if let Some(at) = row.held.iter().position(|it| it.id == self.claim.id) {
                row.held.remove(at);
            } else {
                row.line.retain(|it| it.id != self.claim.id);
            }
        });
    }
}

impl Place for MemoryPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load("memory")?;
        Ok(self.turn_now(self.memory.0.clock.now()))
    }

    async fn changed(&mut self) {
        poll_fn(|cx| {
            self.memory.with_row(&self.claim.key, |row, _| {
                let Some(entry) = row.entry_of(self.claim.id) else {
                    return Poll::Ready(());
                };
                if std::mem::take(&mut entry.called) {
                    return Poll::Ready(());
                }
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            })
        })
        .await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(self.renew_now())
    }

    async fn leave(&mut self) -> Result<()> {
        self.leave_now();
        Ok(())
    }

    fn turn_at_once(&mut self, now: Moment) -> Option<Turn> {
        // What never fits is refused by `turn`, which can say why.
        self.claim.load.can_fit().then(|| self.turn_now(now))
    }

    fn leave_at_once(&mut self) -> bool {
        self.leave_now();
        true
    }
}

/// It lives as long as this process, and remembers as long as it lives.
impl Node for Memory {
    async fn standing(&self) -> Result<Standing> {
        Ok(Standing::new(format!("memory at {:p}", Arc::as_ptr(&self.0)), None))
    }
}

impl RaiseCounter for MemoryPlace {
    async fn raise(&mut self, counter: u64) -> Result<Option<u64>> {
        Ok(self.raise_now(counter))
    }
}

impl Inspect for Memory {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let now = self.0.clock.now();
        let mut infos = Vec::new();
        for shard in &self.0.shards {
            let mut shard = locked(shard);
            for row in shard.rows.iter_mut().filter(|it| it.key.as_str().starts_with(prefix)) {
                row.forget_expired(now);
                infos.extend(info(row, now));
            }
        }
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        Ok(self.with_row(key, |row, now| info(row, now)))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        Ok(self.with_row(key, |row, now| row.held.drain(..).map(|it| occupant(&it, now)).collect()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

fn info(row: &Row, now: Moment) -> Option<LockInfo> {
    let holders: Vec<_> = row.held.iter().map(|it| occupant(it, now)).collect();
    let waiters: Vec<_> = row.line.iter().map(|it| occupant(it, now)).collect();
    let anybody = !(holders.is_empty() && waiters.is_empty());
    anybody.then(|| LockInfo::new(row.key.clone(), holders, waiters))
}

fn occupant(entry: &Entry, now: Moment) -> Occupant {
    Occupant::new((*entry.label).clone(), entry.expires_at - now)
        .since(Some(now - entry.since))
        .fence((entry.counter != 0).then(|| Fence::of_grant(entry.counter)))
        .load(entry.load)
}
