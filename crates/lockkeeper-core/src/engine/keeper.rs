//! A keeper: a place in the store's line that is not granted yet, on its way between callers of this process.

use std::time::Duration;

use crate::clock::Moment;
use crate::engine::ask::Ask;
use crate::spi::claim::Load;
use crate::spi::erased::DynPlace;

/// What a claim looks like to those who could go on with it.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) ttl: Duration,
    pub(crate) load: Load,
    /// Whether it may stand in line; a try's may not.
    pub(crate) patient: bool,
}

/// A place in the store's line, not yet granted.
pub(crate) struct Keeper {
    pub(crate) place: Box<dyn DynPlace>,
    pub(crate) claim: Shape,
    /// When the store last may have heard from it; `None` if never.
    pub(crate) spoke_at: Option<Moment>,
}

impl Keeper {
    /// A place of which the store has not heard.
    pub(crate) fn new(place: Box<dyn DynPlace>, claim: Shape) -> Self {
        Keeper { place, claim, spoke_at: None }
    }

    /// The same after the store may have heard from it at `asked_at`.
    pub(crate) fn spoke(mut self, asked_at: Moment) -> Self {
        self.spoke_at = Some(asked_at);
        self
    }

    /// Whether a caller who waits this way can go on from here.
    pub(crate) fn fits(&self, ask: &Ask) -> bool {
        self.claim.patient && self.claim.ttl == ask.ttl && self.claim.load == ask.load
    }
}
