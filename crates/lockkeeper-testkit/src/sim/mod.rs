//! Seeded simulation: several processes, a bad network and an evil spirit, in virtual time, on one thread.
//!
//! Every process has a locker of its own over one shared store. Between them lies a network that delays
//! beyond the ttl, loses requests, replies and signs, swallows calls for ever, and delivers letters of the dead.
//! Processes are paused and killed. A [`Witness`] looks at every guard after every step:
//!
//! * what is valid at any moment fits together, in the whole world: one tenure, or shares whose weights are within the
//!   smallest capacity;
//! * what was over is never valid again;
//! * of several keys that were asked for at once each is held as long as all are;
//! * fences grow with every guard, and stay on reentry; among those who share they are in no order;
//! * an owner that reads and asks to write is refused at once;
//! * a guard is good when it is received;
//! * nobody begins a job of which it could have known that it is done; latches forget nobody; all hear one verdict of a
//!   round at a barrier; one leads at a time, in larger and larger terms, and between two of them whoever looks sees nobody;
//! * when all users are gone, the store is empty after the ttl, and no locker keeps a line.
//!
//! The same seed gives the same run. A failing seed is told with the command that replays it.

mod executor;
mod held;
mod meetings;
mod memos;
mod post;
mod together;
mod users;
mod way;
mod witness;
mod world;

use std::fmt;
use std::time::Duration;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Locker, LockerBuilder};

use crate::chance::Chance;
use crate::chaos::Odds;

pub use executor::{Ended, Executor, Process, ProcessId};
pub use held::Held;
pub use post::{Delays, Post, PostPlace};
pub use way::Way;
pub use witness::{Counts, Witness};

/// What a simulation is like. [`Scenario::drawn`] makes one of each seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The seed of everything.
    pub seed: u64,
    /// How many processes there are at first.
    pub processes: u32,
    /// How many users each has.
    pub users: u32,
    /// How often each user wants the lock.
    pub rounds: u32,
    /// The ttl of most requests.
    pub ttl: Duration,
    /// What happens to calls.
    pub odds: Odds,
    /// Letters of a thousand that travel up to twice the ttl.
    pub slow_letters: u64,
    /// Signs of a thousand that never reach whoever waits for them, or holds and may be idle.
    pub lost_signs: u64,
    /// How many pauses of up to twice the ttl the evil spirit inflicts.
    pub pauses: u32,
    /// How many processes it kills; each is replaced by a new one.
    pub crashes: u32,
    /// How many keys there are.
    pub keys: u64,
    /// Whether users ask for shares, too: to read, and for permits.
    pub shares: bool,
    /// Whether users also ask for several keys at once.
    pub together: bool,
    /// Whether users also have jobs, latches, barriers and roles.
    pub meets: bool,
}

impl Scenario {
    /// The scenario of a seed: from a calm sea to a storm.
    pub fn drawn(seed: u64) -> Self {
        let mut chance = Chance::seeded(seed);
        let ttl = Duration::from_millis(900);
        let storm = chance.below(4);
        // A slow network keeps calls under way for long, so that pauses and deadlines meet them there.
        let usual_max =
            if chance.per_mille(300) { ttl / 6 } else { Duration::from_millis(1 + chance.below(20)) };
        let odds = Odds {
            request_lost: chance.below(60) * storm,
            reply_lost: chance.below(60) * storm,
            never: chance.below(12) * storm,
            slow: chance.below(40) * storm,
            slow_max: ttl * 2,
            usual_max,
        };
        Scenario {
            seed,
            processes: 1 + u32::try_from(chance.below(4)).unwrap_or(0),
            users: 1 + u32::try_from(chance.below(4)).unwrap_or(0),
            rounds: 6,
            ttl,
            odds,
            slow_letters: chance.below(40) * storm,
            pauses: u32::try_from(chance.below(6) * storm).unwrap_or(0),
            crashes: u32::try_from(chance.below(2) * storm).unwrap_or(0),
            keys: 1,
            shares: false,
            together: false,
            meets: false,
            // Also where all else is calm: signs are hints.
            lost_signs: chance.below(2) * chance.below(1000),
        }
    }

    /// The scenario of a seed in which users also read and take permits, of one key or of several.
    pub fn drawn_with_shares(seed: u64) -> Self {
        let scenario = Scenario::drawn(seed);
        let keys = 1 + Chance::seeded(!seed).below(3);
        Scenario { keys, shares: true, users: scenario.users + 1, ..scenario }
    }

    /// The scenario of a seed in which users also want several of three keys at once, to lock, read, write and for permits.
    pub fn drawn_with_several(seed: u64) -> Self {
        Scenario { keys: 3, together: true, ..Scenario::drawn_with_shares(seed) }
    }

    /// The scenario of a seed in which users also run jobs once, arrive at latches, wait for each other at barriers and lead. What
    /// happens to calls happens to memos.
    pub fn drawn_with_meetings(seed: u64) -> Self {
        let scenario = Scenario::drawn(seed);
        Scenario { meets: true, users: scenario.users + 1, ..scenario }
    }

    /// Run it over `store`, with every locker built by `settings`.
    ///
    /// # Errors
    /// [`Broken`] if the witness saw what must never be.
    pub fn run<B: Backend + Inspect + Clone>(
        &self,
        store: impl FnOnce(lockkeeper_core::Clock) -> B,
        settings: impl Fn(LockerBuilder) -> LockerBuilder + Send + Sync + 'static,
    ) -> Result<Report, Broken> {
        let connect = |store: &B, way: &Way| Locker::builder(way.to(store.clone()));
        world::World::new(*self, store, connect, settings).run()
    }

    /// Run it over a store that is more than one: `connect` makes each process's way to it.
    ///
    /// # Errors
    /// As for [`Scenario::run`].
    pub fn run_over<S: Inspect + Clone>(
        &self,
        store: impl FnOnce(lockkeeper_core::Clock) -> S,
        connect: impl Fn(&S, &Way) -> LockerBuilder + Send + Sync + 'static,
    ) -> Result<Report, Broken> {
        world::World::new(*self, store, connect, |it| it).run()
    }
}

/// What a run was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What happened.
    pub counts: Counts,
    /// How many steps it took; the same for the same seed.
    pub steps: u64,
    /// How much virtual time went by.
    pub lasted: Duration,
}

/// A run that showed a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed that shows it.
    pub seed: u64,
    /// What was seen.
    pub what: String,
    /// What happened until then.
    pub counts: Box<Counts>,
    /// When, since the beginning of the run.
    pub at: Duration,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { seed, what, at, .. } = self;
        writeln!(f, "seed {seed}, after {at:?}: {what}")?;
        write!(
            f,
            "replay: LOCKKEEPER_SIM_SEED={seed} cargo test -p lockkeeper-testkit --test sim -- --nocapture"
        )
    }
}

impl std::error::Error for Broken {}
