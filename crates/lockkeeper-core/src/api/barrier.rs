//! A barrier: so many wait for each other, and go on together, round after round.
//!
//! ```text
//!  wait ─▶ say that we are here (a memo, kept for the ttl) ─▶ arrive: one swap adds us, and opens if we are the last
//!       ─▶ until there is a verdict: look, see whether whoever arrived before us still lives, else break
//!  out of time, dropped, dead: one swap writes that the round is broken, if it has no verdict yet
//! ```

mod double;
mod presence;
mod sheet;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::double::{Entry, Inside};
pub use self::sheet::{Breach, Verdict};

use self::presence::{Presence, first_absent};
use self::sheet::{Arrival, LIST, Sheet, Told};
use crate::api::limits::memo_key;
use crate::clock::Moment;
use crate::engine::background::InRuntime;
use crate::engine::memo::{Change, Changed, MemoOf};
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::spi::claim::ClaimId;

/// How long it is remembered how rounds ended, if nothing else is said.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);

/// What stands before the name of a barrier: `left:`, the number of a round, and a colon.
const BEFORE_NAME: usize = 26;

/// A barrier at which `parties` wait for each other, over all processes; then it is closed again, for the next round. Each
/// party has a name of its own.
///
/// A round has one [`Verdict`], and all who took part in it hear the same: it opened when the last arrived, or it is broken
/// because one of them did not wait for the others. Whoever dies while it waits breaks the round when its
/// [`ttl`](Barrier::ttl) has passed; nobody waits for the dead for ever. After a broken round the next who comes begins another.
///
/// All who gather are kept together, in 64 KiB. So the more parties there are, the shorter their names must be: 50 may have names of
/// any length, 200 names of 125 bytes, 500 of 28. A longer name, and more than 870 parties, are refused in words.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::barrier::{Barrier, Meeting, Verdict};
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let barrier: Barrier = locker.barrier("step", 2);
/// let (one, other) = tokio::join!(barrier.wait("left"), barrier.wait("right"));
/// assert_eq!((one?.verdict, other?.verdict), (Verdict::Open, Verdict::Open));
/// let Meeting { round, .. } = barrier.wait_at_most("left", std::time::Duration::from_millis(5)).await?;
/// assert_eq!(round, 2); // the other did not come
/// # Ok(())
/// # }
/// ```
#[must_use = "a barrier does nothing by itself"]
#[derive(Clone)]
pub struct Barrier {
    engine: Arc<Engine>,
    name: String,
    parties: u32,
    ttl: Duration,
    remember: Duration,
}

/// How a wait at a barrier ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meeting {
    /// Which round it was, counted from 1.
    pub round: u64,
    /// How it ended, for all who took part in it.
    pub verdict: Verdict,
}

/// Who waits at a barrier now.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::barrier::BarrierStatus;
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let BarrierStatus { round, parties, arrived, .. } = locker.barrier("step", 3).status().await?;
/// println!("{} of {parties} have arrived for round {round}", arrived.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BarrierStatus {
    /// The round for which they wait.
    pub round: u64,
    /// How many must arrive.
    pub parties: u32,
    /// Who has, by name, in the order in which they came.
    pub arrived: Vec<String>,
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Barrier { name, parties, .. } = self;
        f.debug_struct("Barrier").field("name", name).field("parties", parties).finish_non_exhaustive()
    }
}

impl Barrier {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, parties: u32) -> Self {
        let ttl = engine.settings.ttl;
        Barrier { engine, name: name.to_owned(), parties, ttl, remember: REMEMBER }
    }

    /// After how long without a sign of life one who waits counts as dead. Default: the locker's ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long it is remembered how rounds ended, after the last. Default 7 days.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// Arrive under this name, and wait for the others. If this name has arrived already, as before a restart, we take its place.
    ///
    /// # Cancel safety
    /// Dropping the future breaks the round.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, for no parties or too many, for a number of parties other than that for which others gather, and if
    /// another came under our name. [`Error::Unavailable`]: then the round is broken, as soon as the store can be told or our
    /// ttl has passed. [`Error::Unsupported`] on a store that keeps nothing but locks. A broken round is no error: see
    /// [`Meeting::verdict`].
    pub async fn wait(&self, party: impl AsRef<str>) -> Result<Meeting> {
        self.meet(party.as_ref(), Moment::NEVER).await.map(|it| it.0)
    }

    /// The same, but break the round if it has not opened after so long.
    ///
    /// # Cancel safety
    /// As for [`Barrier::wait`].
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub async fn wait_at_most(&self, party: impl AsRef<str>, wait: Duration) -> Result<Meeting> {
        self.meet(party.as_ref(), self.engine.clock.now().after(wait)).await.map(|it| it.0)
    }

    /// [`wait`](Barrier::wait) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub fn wait_blocking(&self, party: impl AsRef<str>) -> Result<Meeting> {
        self.engine.background.start()?;
        self.engine.background.block_on(self.wait(party))
    }

    /// Who waits now.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub async fn status(&self) -> Result<BarrierStatus> {
        let (sheet, _) = self.look(&self.memo()?).await?;
        let arrived = sheet.arrived.iter().map(|it| it.party.clone()).collect();
        Ok(BarrierStatus { round: sheet.round(), parties: self.parties, arrived })
    }

    /// Arrive and wait. With the verdict comes who we were, still present, for who goes on from here.
    async fn meet(&self, party: &str, until: Moment) -> Result<(Meeting, Guest)> {
        let memo = self.memo()?;
        let party = Key::new(party)?.as_str().to_owned();
        LIST.check_name(self.parties, &party)?;
        let me = Arrival { token: ClaimId::random()?.to_hex(), party };
        let presence = self.in_runtime(Presence::begin(&self.engine, &me.token, self.ttl)).await?;
        let mut guest = Guest { barrier: self.clone(), memo, me, round: None, _presence: presence };
        let round = guest.arrive().await?;
        let verdict = guest.verdict(round, until).await?;
        guest.round = None;
        Ok((Meeting { round, verdict }, guest))
    }

    async fn in_runtime<T>(&self, future: impl Future<Output = T>) -> T {
        InRuntime::new(&self.engine.background, future).await
    }

    async fn look(&self, memo: &MemoOf) -> Result<(Sheet, Option<u64>)> {
        let there = self.in_runtime(memo.read(&self.engine)).await?;
        let sheet = self.read(there.as_ref().map(|it| it.value.as_slice()))?;
        Ok((sheet, there.map(|it| it.version)))
    }

    fn read(&self, there: Option<&[u8]>) -> Result<Sheet> {
        Sheet::read(there, &self.name, self.parties)
    }

    fn memo(&self) -> Result<MemoOf> {
        let Barrier { engine, name, parties, ttl, remember } = self;
        if *parties == 0 {
            return Err(Error::invalid("a barrier for no parties keeps nobody; name at least one"));
        }
        LIST.check(*parties)?;
        if ttl.is_zero() || remember.is_zero() {
            return Err(Error::invalid("a barrier whose ttl or memory is zero never opens"));
        }
        Key::new(name)?;
        engine.background.start()?;
        let key = memo_key("the name of a barrier", name.len(), BEFORE_NAME, &format!("barrier:{name}"))?;
        MemoOf::new(engine, key, "let parties wait for each other")
    }

    /// The first of these who gives no sign of life.
    async fn first_dead<'a>(&self, asked: impl Iterator<Item = &'a Arrival>) -> Result<Option<&'a Arrival>> {
        self.in_runtime(first_absent(&self.engine, asked)).await
    }

    /// Break a round in which this one still waits, if it has no verdict yet.
    async fn end_round(&self, memo: &MemoOf, round: u64, token: &str, breach: Breach) -> Result<()> {
        let decide = |there: Option<&[u8]>| {
            let mut sheet = self.read(there)?;
            if sheet.round() != round || !sheet.has_arrived(token) {
                return Ok(Change::Leave(()));
            }
            sheet.decide(Verdict::Broken(breach));
            Ok(Change::Write(sheet.text().into_bytes(), self.remember))
        };
        memo.change(&self.engine, decide).await.map(drop)
    }
}

/// What an arrival found.
enum Arrived {
    /// We take part in this round.
    In(u64),
    /// We would be the last, and somebody before us was not asked for a sign of life.
    Check,
}

/// One who waits at a barrier.
struct Guest {
    barrier: Barrier,
    memo: MemoOf,
    me: Arrival,
    /// The round that we break if we go away.
    round: Option<u64>,
    /// Kept for its drop, which ends it.
    _presence: Presence,
}

impl Guest {
    /// Take part in the round that gathers, but not with the dead.
    async fn arrive(&mut self) -> Result<u64> {
        let (barrier, me) = (self.barrier.clone(), self.me.clone());
        let mut checked: Vec<String> = Vec::new();
        loop {
            let (sheet, _) = barrier.look(&self.memo).await?;
            let others = || sheet.arrived.iter().filter(|it| it.party != me.party);
            let asked = others().rev().take(if sheet.opens_with(&me) { usize::MAX } else { 1 });
            if let Some(dead) = barrier.first_dead(asked.clone()).await? {
                let ended = barrier.end_round(&self.memo, sheet.round(), &dead.token, Breach::Died);
                barrier.in_runtime(ended).await?;
                continue;
            }
            checked.extend(asked.map(|it| it.token.clone()));
            // From here on the store may know of us.
            self.round = Some(sheet.round());
            match barrier.in_runtime(self.enter_sheet(&checked)).await? {
                Arrived::Check => self.round = None,
                Arrived::In(round) => {
                    self.round = Some(round);
                    return Ok(round);
                }
            }
        }
    }

    /// One swap adds us, and opens the round if we are the last.
    async fn enter_sheet(&self, checked: &[String]) -> Result<Arrived> {
        let Guest { barrier, me, memo, .. } = self;
        let mut round = 0;
        let decide = |there: Option<&[u8]>| {
            let mut sheet = barrier.read(there)?;
            // An answer that was lost: we are in already.
            if sheet.members.iter().any(|it| it.token == me.token) {
                return Ok(Change::Leave(Arrived::In(sheet.opened)));
            }
            if sheet.has_arrived(&me.token) {
                return Ok(Change::Leave(Arrived::In(sheet.round())));
            }
            let unchecked = |it: &Arrival| it.party != me.party && !checked.contains(&it.token);
            if sheet.opens_with(me) && sheet.arrived.iter().any(unchecked) {
                return Ok(Change::Leave(Arrived::Check));
            }
            round = sheet.round();
            sheet.arrive(me);
            Ok(Change::Write(sheet.text().into_bytes(), barrier.remember))
        };
        let changed = memo.change(&barrier.engine, decide).await?;
        Ok(match changed {
            Changed::Left(arrived) => arrived,
            Changed::Written => Arrived::In(round),
        })
    }

    /// Wait until the round has a verdict; see to it that it gets one.
    async fn verdict(&self, round: u64, until: Moment) -> Result<Verdict> {
        let Guest { barrier, memo, me, .. } = self;
        let clock = &barrier.engine.clock;
        let mut check_at = clock.now().after(barrier.ttl / 3);
        loop {
            let (sheet, version) = barrier.look(memo).await?;
            match sheet.told(round) {
                Told::Decided(verdict) => return Ok(verdict),
                Told::Forgotten => return Err(self.came_too_late(round)),
                Told::Gathering if !sheet.has_arrived(&me.token) => return Err(self.replaced()),
                Told::Gathering => {}
            }
            let now = clock.now();
            if until <= now {
                let ended = barrier.end_round(memo, round, &me.token, Breach::TimedOut);
                barrier.in_runtime(ended).await?;
                continue;
            }
            if check_at <= now {
                check_at = now.after(barrier.ttl / 3);
                if let Some(dead) = barrier.first_dead(sheet.before(&me.token).into_iter()).await? {
                    let ended = barrier.end_round(memo, round, &dead.token, Breach::Died);
                    barrier.in_runtime(ended).await?;
                    continue;
                }
            }
            let changed = memo.changed(&barrier.engine, version, until.min(check_at));
            barrier.in_runtime(changed).await;
        }
    }

    fn replaced(&self) -> Error {
        let (name, party) = (&self.barrier.name, &self.me.party);
        Error::invalid(format!(
            "another came to the barrier \"{name}\" under the name \"{party}\" and waits in our place: each party needs a name of its own"
        ))
    }

    fn came_too_late(&self, round: u64) -> Error {
        let name = &self.barrier.name;
        Error::invalid(format!(
            "round {round} of the barrier \"{name}\" ended so long ago that it is not kept how; more than a thousand rounds were held since"
        ))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let Some(round) = self.round.take() else { return };
        let (barrier, memo, token) = (self.barrier.clone(), self.memo.clone(), self.me.token.clone());
        self.barrier.engine.background.spawn(async move {
            // What cannot be written ends with our sign of life.
            let _ = barrier.end_round(&memo, round, &token, Breach::Withdrawn).await;
        });
    }
}
