//! A count-down latch: it opens when so many have arrived, and stays open.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::limits::{PartyList, memo_key};
use crate::clock::Moment;
use crate::engine::background::InRuntime;
use crate::engine::memo::{Change, Changed, MemoOf};
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;

/// How long a latch is kept after the last arrival, if nothing else is said.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A first line with the number, and a line for each name.
const LIST: PartyList = PartyList { what: "latch", head: 17, each: 1, times: 1 };

/// `latch:`, the length of the name, and a colon.
const BEFORE_NAME: usize = 10;

/// How often whoever waits looks by itself, where the store does not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A latch that opens when `parties` have arrived, over all processes. Each arrives under a name of its own; arriving twice
/// under one name counts once, so an arrival whose answer was lost is simply repeated.
///
/// A latch at which nobody has arrived is closed, not open.
///
/// All names are kept together, in 64 KiB. So the more parties there are, the shorter their names must be: 100 may have names of
/// any length, 1,000 names of 64 bytes, 10,000 of 5. A longer name, and more than 32,759 parties, are refused in words.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let imported = locker.latch("import/2026-11-15", 2);
/// imported.arrive("customers").await?;
/// imported.arrive("customers").await?; // the same again counts once
/// assert!(!imported.status().await?.is_open());
/// imported.arrive("orders").await?;
/// let status = imported.wait().await?; // everybody who waits goes on
/// assert_eq!(status.arrived, ["customers", "orders"]);
/// # Ok(())
/// # }
/// ```
#[must_use = "a latch does nothing by itself"]
#[derive(Clone)]
pub struct Latch {
    engine: Arc<Engine>,
    name: String,
    round: Option<String>,
    parties: u32,
    remember: Duration,
}

/// Who has arrived at a latch.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{LatchStatus, Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let LatchStatus { parties, arrived, .. } = locker.latch("import", 3).arrive("orders").await?;
/// println!("{} of {parties} have arrived", arrived.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatchStatus {
    /// How many must arrive.
    pub parties: u32,
    /// Who has, by name.
    pub arrived: Vec<String>,
}

impl LatchStatus {
    /// Whether all have arrived.
    pub fn is_open(&self) -> bool {
        usize::try_from(self.parties).is_ok_and(|it| it <= self.arrived.len())
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latch { name, round, parties, .. } = self;
        f.debug_struct("Latch")
            .field("name", name)
            .field("round", round)
            .field("parties", parties)
            .finish_non_exhaustive()
    }
}

impl Latch {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, parties: u32) -> Self {
        Latch { engine, name: name.to_owned(), round: None, parties, remember: REMEMBER }
    }

    /// A round of its own: a latch does not close again, the next round is another one.
    pub fn round(mut self, round: impl Into<String>) -> Self {
        self.round = Some(round.into());
        self
    }

    /// How long it is kept after the last arrival. Default 7 days.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember;
        self
    }

    /// Arrive, under this name. Answers who has arrived now.
    ///
    /// # Cancel safety
    /// Dropped half-way it is unknown whether we have arrived; arrive again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, for no parties at all or too many, for one more than there may be, and if the latch was begun
    /// for another number of parties. [`Error::Unavailable`]. [`Error::Unsupported`] on a store that keeps nothing but locks.
    pub async fn arrive(&self, party: impl AsRef<str>) -> Result<LatchStatus> {
        let party = Key::new(party.as_ref())?;
        let memo = self.memo()?;
        LIST.check_name(self.parties, party.as_str())?;
        let mut status = None;
        let change = memo.change(&self.engine, |there| {
            let mut arrived = self.read(there)?;
            let is_new = arrived.insert(party.as_str().to_owned());
            let now = self.status_of(&arrived);
            if usize::try_from(self.parties).unwrap_or(usize::MAX) < arrived.len() {
                let (name, parties) = (&self.name, self.parties);
                return Err(Error::invalid(format!(
                    "all {parties} parties of the latch \"{name}\" have arrived, and \"{party}\" is none of them: \
                     name the parties as before, or give the round another name"
                )));
            }
            status = Some(now.clone());
            if !is_new {
                return Ok(Change::Leave(now));
            }
            Ok(Change::Write(self.text(&arrived).into_bytes(), self.remember))
        });
        let changed = InRuntime::new(&self.engine.background, change).await?;
        Ok(match (changed, status) {
            (Changed::Left(now), _) | (Changed::Written, Some(now)) => now,
            (Changed::Written, None) => self.status_of(&BTreeSet::new()),
        })
    }

    /// Who has arrived so far.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Latch::arrive`].
    pub async fn status(&self) -> Result<LatchStatus> {
        Ok(self.look(&self.memo()?).await?.0)
    }

    /// Wait until all have arrived.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Latch::arrive`].
    pub async fn wait(&self) -> Result<LatchStatus> {
        self.wait_until(Moment::NEVER).await
    }

    /// Wait until all have arrived, at most so long. What comes back tells who has; see [`LatchStatus::is_open`].
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Latch::arrive`]. That the time is over is no error.
    pub async fn wait_at_most(&self, wait: Duration) -> Result<LatchStatus> {
        self.wait_until(self.engine.clock.now().after(wait)).await
    }

    /// [`arrive`](Latch::arrive) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Latch::arrive`].
    pub fn arrive_blocking(&self, party: impl AsRef<str>) -> Result<LatchStatus> {
        self.engine.start()?;
        self.engine.background.block_on(self.arrive(party))
    }

    /// [`wait`](Latch::wait) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Latch::arrive`].
    pub fn wait_blocking(&self) -> Result<LatchStatus> {
        self.engine.start()?;
        self.engine.background.block_on(self.wait())
    }

    /// [`wait_at_most`](Latch::wait_at_most) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Latch::wait_at_most`].
    pub fn wait_at_most_blocking(&self, wait: Duration) -> Result<LatchStatus> {
        self.engine.start()?;
        self.engine.background.block_on(self.wait_at_most(wait))
    }

    /// [`status`](Latch::status) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Latch::arrive`].
    pub fn status_blocking(&self) -> Result<LatchStatus> {
        self.engine.start()?;
        self.engine.background.block_on(self.status())
    }

    async fn wait_until(&self, until: Moment) -> Result<LatchStatus> {
        let memo = self.memo()?;
        loop {
            let (status, version) = self.look(&memo).await?;
            let now = self.engine.clock.now();
            if status.is_open() || until <= now {
                return Ok(status);
            }
            let changed = memo.changed(&self.engine, version, until.min(now.after(LOOK_AGAIN)));
            InRuntime::new(&self.engine.background, changed).await?;
        }
    }

    async fn look(&self, memo: &MemoOf) -> Result<(LatchStatus, Option<u64>)> {
        let there = InRuntime::new(&self.engine.background, memo.read(&self.engine)).await?;
        let arrived = self.read(there.as_ref().map(|it| it.value.as_slice()))?;
        Ok((self.status_of(&arrived), there.map(|it| it.version)))
    }

    fn memo(&self) -> Result<MemoOf> {
        let Latch { engine, name, round, parties, .. } = self;
        if *parties == 0 {
            return Err(Error::invalid("a latch for no parties is always open; name at least one"));
        }
        LIST.check(*parties)?;
        if self.remember.is_zero() {
            return Err(Error::invalid("a latch that is kept for no time never opens"));
        }
        Key::new(name)?;
        engine.start()?;
        let round = round.as_deref().unwrap_or_default();
        let (what, len) = ("the name of a latch, with its round,", name.len() + round.len());
        let key = memo_key(what, len, BEFORE_NAME, &format!("latch:{}:{name}{round}", name.len()))?;
        MemoOf::new(engine, key, "count who has arrived")
    }

    fn status_of(&self, arrived: &BTreeSet<String>) -> LatchStatus {
        LatchStatus { parties: self.parties, arrived: arrived.iter().cloned().collect() }
    }

    /// One line for the number, one for each name. A name has no line breaks.
    fn text(&self, arrived: &BTreeSet<String>) -> String {
        let mut text = format!("latch {}\n", self.parties);
        for party in arrived {
            text.push_str(party);
            text.push('\n');
        }
        text
    }

    fn read(&self, there: Option<&[u8]>) -> Result<BTreeSet<String>> {
        let Some(there) = there else { return Ok(BTreeSet::new()) };
        let text = String::from_utf8_lossy(there);
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let begun_for = first.strip_prefix("latch ").and_then(|it| it.parse::<u32>().ok());
        if begun_for == Some(self.parties) {
            return Ok(rest.lines().map(str::to_owned).collect());
        }
        let (name, parties) = (&self.name, self.parties);
        let begun_for = begun_for.map_or_else(|| "something else".to_owned(), |it| format!("{it} parties"));
        Err(Error::invalid(format!(
            "the latch \"{name}\" was begun for {begun_for}, not {parties}: all must agree, or use another name"
        )))
    }
}
