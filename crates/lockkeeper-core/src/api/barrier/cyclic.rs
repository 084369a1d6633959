//! A cyclic barrier: all go on together, round after round.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::barrier::guest::Guest;
use crate::api::barrier::presence::Presence;
use crate::api::barrier::sheet::{Arrival, LIST, Verdict};
use crate::api::barrier::venue::Venue;
use crate::clock::Moment;
use crate::engine::shared::Engine;
use crate::error::Result;
use crate::key::Key;
use crate::spi::claim::ClaimId;

/// How long it is remembered how rounds ended, if nothing else is said.
const REMEMBER: Duration = Duration::from_secs(7 * 24 * 3600);

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
    pub(super) venue: Venue,
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
        let Venue { name, parties, .. } = &self.venue;
        f.debug_struct("Barrier").field("name", name).field("parties", parties).finish_non_exhaustive()
    }
}

impl Barrier {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, parties: u32) -> Self {
        let ttl = engine.settings.ttl;
        Barrier { venue: Venue { engine, name: name.to_owned(), parties, ttl, remember: REMEMBER } }
    }

    /// After how long without a sign of life one who waits counts as dead. Default: the locker's ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.venue.ttl = ttl;
        self
    }

    /// How long it is remembered how rounds ended, after the last. Default 7 days.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.venue.remember = remember;
        self
    }

    /// Arrive under this name, and wait for the others. If this name has arrived already, as before a restart, we take its place.
    ///
    /// # Cancel safety
    /// Dropping the future breaks the round.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a bad name, for no parties or too many, for a number of parties other than that for which others gather, and if
    /// another came under our name. [`Error::Unavailable`](crate::Error::Unavailable): then the round is broken, as soon as the store can be told or our
    /// ttl has passed. [`Error::Unsupported`](crate::Error::Unsupported) on a store that keeps nothing but locks. A broken round is no error: see
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
        self.meet(party.as_ref(), self.venue.engine.clock.now().after(wait)).await.map(|it| it.0)
    }

    /// [`wait`](Barrier::wait) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub fn wait_blocking(&self, party: impl AsRef<str>) -> Result<Meeting> {
        self.venue.engine.start()?;
        self.venue.engine.background.block_on(self.wait(party))
    }

    /// Who waits now.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub async fn status(&self) -> Result<BarrierStatus> {
        let (sheet, _) = self.venue.look(&self.venue.memo()?).await?;
        let arrived = sheet.arrived.iter().map(|it| it.party.clone()).collect();
        Ok(BarrierStatus { round: sheet.round(), parties: self.venue.parties, arrived })
    }

    /// [`wait_at_most`](Barrier::wait_at_most) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub fn wait_at_most_blocking(&self, party: impl AsRef<str>, wait: Duration) -> Result<Meeting> {
        self.venue.engine.start()?;
        self.venue.engine.background.block_on(self.wait_at_most(party, wait))
    }

    /// [`status`](Barrier::status) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::wait`].
    pub fn status_blocking(&self) -> Result<BarrierStatus> {
        self.venue.engine.start()?;
        self.venue.engine.background.block_on(self.status())
    }

    /// Arrive and wait. With the verdict comes who we were, still present, for who goes on from here.
    pub(super) async fn meet(&self, party: &str, until: Moment) -> Result<(Meeting, Guest)> {
        let memo = self.venue.memo()?;
        let party = Key::new(party)?.as_str().to_owned();
        LIST.check_name(self.venue.parties, &party)?;
        let me = Arrival { token: ClaimId::random()?.to_hex(), party };
        let presence =
            self.venue.in_runtime(Presence::begin(&self.venue.engine, &me.token, self.venue.ttl)).await?;
        let mut guest = Guest::new(self.venue.clone(), memo, me, presence);
        let round = guest.arrive().await?;
        let verdict = guest.verdict(round, until).await?;
        guest.is_through();
        Ok((Meeting { round, verdict }, guest))
    }
}
