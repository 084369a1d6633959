//! The reference backend: a store inside this process. It is also what simulations stand on.
//!
//! One row per key that is held or waited for; a row that is neither leaves the map. Counters come from
//! one number per shard of the map, so that forgetting a row never makes a fence go back.

mod inspect;
mod memos;
mod shelf;

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table;
use smallvec::SmallVec;

use self::shelf::Shelf;
use crate::clock::{Clock, Moment};
use crate::key::Key;
use crate::kit::{admission, locked};
use crate::spi::backend::{Backend, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use crate::spi::claim::{Claim, ClaimId, Label, Load};
use crate::spi::memos::DynMemos;
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
    memos: Shelf,
}

#[derive(Default)]
struct Shard {
    rows: HashTable<Box<Row>>,
    /// Rows out of use, kept because most locks are short.
    #[expect(clippy::vec_box, reason = "they go back into the map as they are")]
    spare: Vec<Box<Row>>,
    /// The last that was given.
    counter: u64,
}

struct Row {
    key: Key,
    held: SmallVec<[Entry; 1]>,
    line: VecDeque<Entry>,
    /// Who is called, and woken when the shard is not locked any more.
    called: SmallVec<[Waker; 1]>,
}

/// Somebody who holds or waits.
struct Entry {
    id: ClaimId,
    load: Load,
    expires_at: Moment,
    since: Moment,
    counter: u64,
    label: Arc<Label>,
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
        let shards = std::array::from_fn(|_| Mutex::default());
        Memory(Arc::new(Store { clock, shards, memos: Shelf::default() }))
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
        row.call_front();
        let called = std::mem::take(&mut row.called);
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
        called.into_iter().for_each(Waker::wake);
        out
    }
}

impl Row {
    /// An empty row, perhaps one that served another key before.
    fn of(key: &Key, spare: Option<Box<Row>>) -> Box<Row> {
        let Some(mut row) = spare else {
            let (held, line, called) = (SmallVec::new(), VecDeque::new(), SmallVec::new());
            return Box::new(Row { key: key.clone(), held, line, called });
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

    /// How many of the line, from its front, fit beside those who hold: they may all enter.
    fn front(&self) -> usize {
        let loads = self.held.iter().chain(&self.line).map(|it| it.load);
        admission::inside_of(loads).saturating_sub(self.held.len())
    }

    /// Whether a claim may enter beside those who hold and those who stand before it.
    fn fits(&self, ahead: usize, load: Load) -> bool {
        let before = self.held.iter().chain(self.line.iter().take(ahead)).map(|it| it.load);
        admission::inside_of(before.chain([load])) == self.held.len() + ahead + 1
    }

    /// Somebody waits who does not fit beside those who hold.
    fn is_wanted(&self) -> bool {
        !self.line.is_empty() && self.front() < self.line.len()
    }

    /// Tell those at the front of the line, once, that they may enter.
    fn call_front(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let front = self.front();
        for it in self.line.iter_mut().take(front).filter(|it| !it.called) {
            it.called = true;
            self.called.extend(it.waker.take());
        }
    }

    /// Let everybody in line ask again.
    fn call_everybody(&mut self) {
        for it in &mut self.line {
            it.called = true;
            self.called.extend(it.waker.take());
        }
    }

    /// A holder loses what it holds, and hears of that if it listens.
    fn take_away(&mut self, at: usize) -> Entry {
        let mut lost = self.held.remove(at);
        self.called.extend(lost.waker.take());
        lost
    }

    fn entry_of(&mut self, id: ClaimId) -> Option<&mut Entry> {
        self.held.iter_mut().chain(&mut self.line).find(|it| it.id == id)
    }

    /// The admission rule: a claim enters when all before it do and it fits beside them.
    fn turn(&mut self, claim: &Claim, now: Moment, counter: &mut u64) -> Turn {
        self.forget_expired(now);
        let expires_at = now.after(claim.ttl);
        if let Some(at) = self.held.iter().position(|it| it.id == claim.id) {
            self.held[at].expires_at = expires_at;
            return self.granted(at, claim.ttl);
        }
        let place = self.line.iter().position(|it| it.id == claim.id);
        let ahead = place.unwrap_or(self.line.len());
        if self.fits(ahead, claim.load) {
            let mut entry = place.and_then(|at| self.line.remove(at)).unwrap_or_else(|| entry(claim, now));
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
        let before = self.held.iter().chain(self.line.iter().take(ahead)).map(|it| it.expires_at - now);
        let recheck = before.fold(claim.ttl / 3, Duration::min).max(Duration::from_millis(1));
        let theirs = claim.load.differing(self.held.iter().chain(&self.line).map(|it| it.load));
        let may_be_idle = (!claim.patient).then(|| self.held.iter().any(|it| it.label.warm));
        Turn::wait(recheck, u64::try_from(ahead + self.held.len()).ok())
            .theirs(theirs)
            .may_be_idle(may_be_idle)
    }

    fn join_line(&mut self, claim: &Claim, now: Moment, expires_at: Moment) {
        self.line.push_back(Entry { expires_at, ..entry(claim, now) });
        for holder in &mut self.held {
            holder.called = true;
            self.called.extend(holder.waker.take());
        }
    }

    fn granted(&self, at: usize, ttl: Duration) -> Turn {
        Turn::Held(Grant::new(self.held[at].counter, ttl).wanted(self.is_wanted()))
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
        Profile::new("memory", Reach::Process).fifo().weighted().lingering().lowering().notifying()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        MemoryPlace { memory: self.clone(), claim }
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
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
            Renewal::held(claim.ttl, row.is_wanted())
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

    fn linger_now(&self, span: Duration) {
        self.memory.with_row(&self.claim.key, |row, now| {
            if let Some(entry) = row.held.iter_mut().find(|it| it.id == self.claim.id) {
                entry.expires_at = now.after(span);
            }
            // They reckoned with another end.
            row.call_everybody();
        });
    }

    fn lower_now(&self, load: Load) -> bool {
        self.memory.with_row(&self.claim.key, |row, _| {
            let entry = row.held.iter_mut().find(|it| it.id == self.claim.id);
            entry.map(|it| it.load = load).is_some()
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

    async fn linger(&mut self, span: Duration) -> Result<()> {
        self.linger_now(span);
        Ok(())
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        self.claim.load = load;
        Ok(self.lower_now(load))
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
