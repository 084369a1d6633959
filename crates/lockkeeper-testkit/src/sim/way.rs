//! The way from one process of a simulation to the stores: a bad network for each.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper_core::backend::Backend;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Spawn};

use super::Scenario;
use super::executor::Process;
use super::post::{Delays, Post};
use crate::chance::Chance;
use crate::chaos::{Chaos, Fate};

/// How one process of a simulation reaches its stores.
pub struct Way {
    pub(super) scenario: Scenario,
    pub(super) clock: Clock,
    pub(super) process: Arc<Process>,
    pub(super) network: Arc<Process>,
    /// Nothing goes wrong any more. Relaxed: a simulation has one thread.
    pub(super) healed: Arc<AtomicBool>,
    pub(super) chance: Arc<Mutex<Chance>>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Way {
    /// The clock of the simulation.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Where the process runs what it has in the background.
    pub fn spawner(&self) -> Arc<dyn Spawn> {
        self.process.clone()
    }

    /// `store` behind a bad network of its own: letters that outlive their senders, and calls that are lost or
    /// never answered.
    pub fn to<B: Backend>(&self, store: B) -> Chaos<Post<B>> {
        let Scenario { odds, ttl, slow_letters, lost_signs, .. } = self.scenario;
        let delays = Delays {
            chance: self.fork(),
            slow: slow_letters,
            slow_max: ttl * 2,
            usual_max: odds.usual_max,
            lost_signs,
        };
        let post = Post::new(store, self.clock.clone(), self.network.clone(), delays, ttl);
        let (mut chance, healed) = (self.fork(), self.healed.clone());
        Chaos::new(post, self.clock.clone(), move |_, _| {
            if healed.load(Ordering::Relaxed) { Fate::OK } else { odds.draw(&mut chance) }
        })
    }

    fn fork(&self) -> Chance {
        locked(&self.chance).fork()
    }
}
