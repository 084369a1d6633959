//! A double barrier: all begin together, and all end together.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::api::barrier::cyclic::Barrier;
use crate::api::barrier::guest::Guest;
use crate::api::barrier::presence::first_absent;
use crate::api::barrier::sheet::{Arrival, Breach, Verdict};
use crate::api::barrier::venue::Venue;
use crate::clock::Moment;
use crate::engine::memo::{Change, MemoOf};
use crate::error::{Error, Result};
use crate::key::Key;

/// What came of [`Barrier::enter`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Entry {
    /// All have arrived, and all are inside.
    Inside(Box<Inside>),
    /// Somebody did not wait for the others; nobody is inside.
    Broken(Breach),
}

/// One of those who went in together. Dropping it means to be gone: the others do not wait for us when they leave.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::barrier::{Entry, Inside};
/// # use lockkeeper_core::{Error, Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let party = async |name| {
///     let Entry::Inside(inside) = locker.barrier("exam", 2).enter(name).await? else { return Ok(()) };
///     // … everybody works; nobody has left …
///     inside.leave().await
/// };
/// let (one, other) = tokio::join!(party("left"), party("right"));
/// assert!(one.is_ok() && other.is_ok());
/// # Ok(())
/// # }
/// ```
#[must_use = "if unused, we are gone at once"]
pub struct Inside {
    guest: Guest,
    round: u64,
    members: Vec<Arrival>,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").field("round", &self.round).finish_non_exhaustive()
    }
}

impl Barrier {
    /// Go in together with the others: as [`wait`](Barrier::wait), and whoever is inside can [`leave`](Inside::leave) together,
    /// too. Made for a fixed set of parties.
    ///
    /// # Cancel safety
    /// As for [`Barrier::wait`].
    ///
    /// # Errors
    /// As for [`Barrier::wait`]. [`Error::Invalid`] also if others went in since: more use it than it has parties.
    pub async fn enter(&self, party: impl AsRef<str>) -> Result<Entry> {
        self.go_in(party.as_ref(), Moment::NEVER).await
    }

    /// The same, but break the round if it has not opened after so long.
    ///
    /// # Cancel safety
    /// As for [`Barrier::wait`].
    ///
    /// # Errors
    /// As for [`Barrier::enter`].
    pub async fn enter_at_most(&self, party: impl AsRef<str>, wait: Duration) -> Result<Entry> {
        self.go_in(party.as_ref(), self.venue.engine.clock.now().after(wait)).await
    }

    /// [`enter`](Barrier::enter) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::enter`].
    pub fn enter_blocking(&self, party: impl AsRef<str>) -> Result<Entry> {
        self.venue.engine.start()?;
        self.venue.engine.background.block_on(self.enter(party))
    }

    /// [`enter_at_most`](Barrier::enter_at_most) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Barrier::enter`].
    pub fn enter_at_most_blocking(&self, party: impl AsRef<str>, wait: Duration) -> Result<Entry> {
        self.venue.engine.start()?;
        self.venue.engine.background.block_on(self.enter_at_most(party, wait))
    }

    async fn go_in(&self, party: &str, until: Moment) -> Result<Entry> {
        let (meeting, guest) = self.meet(party, until).await?;
        if let Verdict::Broken(breach) = meeting.verdict {
            return Ok(Entry::Broken(breach));
        }
        let (sheet, _) = self.venue.look(&guest.memo).await?;
        if sheet.opened != meeting.round {
            let (name, parties) = (&self.venue.name, self.venue.parties);
            return Err(Error::invalid(format!(
                "others went through the barrier \"{name}\" while we went in; to leave together it must be used by its {parties} parties alone"
            )));
        }
        Ok(Entry::Inside(Box::new(Inside { guest, round: meeting.round, members: sheet.members })))
    }
}

impl Inside {
    /// Which round it is, counted from 1.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Who went in, by name, we included.
    pub fn parties(&self) -> Vec<&str> {
        self.members.iter().map(|it| it.party.as_str()).collect()
    }

    /// Say that we are ready to leave, and wait until all the others are, or are gone.
    ///
    /// # Cancel safety
    /// Dropping the future means to be gone.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn leave(self) -> Result<()> {
        let Inside { guest, round, members } = self;
        let (venue, engine) = (&guest.venue, &guest.venue.engine);
        let key = Key::new(&format!("left:{round}:{}", venue.name))?;
        let memo = MemoOf::new(engine, key, "let parties wait for each other")?;
        loop {
            venue.in_runtime(go(venue, &memo, &guest.me.token)).await?;
            let there = venue.in_runtime(memo.read(engine)).await?;
            let gone = there.as_ref().map(|it| tokens(&it.value)).unwrap_or_default();
            let mut busy: Vec<&Arrival> = members.iter().filter(|it| !gone.contains(&it.token)).collect();
            while let Some(dead) = venue.in_runtime(first_absent(engine, busy.iter().copied())).await? {
                busy.retain(|it| it.token != dead.token);
            }
            if busy.is_empty() {
                return Ok(());
            }
            let until = engine.clock.now().after(venue.ttl / 3);
            venue.in_runtime(memo.changed(engine, there.map(|it| it.version), until)).await?;
        }
    }

    /// [`leave`](Inside::leave) on this thread, without a runtime.
    ///
    /// # Errors
    /// As for [`Inside::leave`].
    pub fn leave_blocking(self) -> Result<()> {
        let engine = self.guest.venue.engine.clone();
        engine.background.block_on(self.leave())
    }
}

/// Write down that we are ready to leave.
async fn go(venue: &Venue, memo: &MemoOf, token: &str) -> Result<()> {
    let decide = |there: Option<&[u8]>| {
        let mut gone = there.map(tokens).unwrap_or_default();
        if !gone.insert(token.to_owned()) {
            return Ok(Change::Leave(()));
        }
        let text = gone.into_iter().collect::<Vec<_>>().join("\n");
        // Whoever has left is gone as well, so it need not be kept for long.
        Ok(Change::Write(text.into_bytes(), venue.ttl * 3))
    };
    memo.change(&venue.engine, decide).await.map(drop)
}

fn tokens(there: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(there).lines().map(str::to_owned).collect()
}
