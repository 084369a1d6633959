//! What a line needs to know to decide: the bounds, whether it is the whole lock, and what it makes holds of.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::engine::ask::Ask;
use crate::engine::hold::Hold;
use crate::engine::tenure::Tenure;
use crate::key::Key;

/// The bounds of every line, from the locker's settings.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "a bound is named after what it bounds")]
pub(crate) struct Bounds {
    pub(crate) waiters_max: usize,
    pub(crate) depth_max: u32,
    pub(crate) hand_on_count_max: u64,
    pub(crate) hand_on_span_max: Duration,
}

/// What a line needs to know to decide.
pub(super) struct Rules<'a> {
    pub(super) bounds: &'a Bounds,
    /// Nobody but this locker can reach the store: the line is the whole lock.
    pub(super) is_whole_lock: bool,
    pub(super) clock: &'a Clock,
    /// The last counter given without asking a store.
    pub(super) counter: &'a mut u64,
    /// A tenure that is over, to be made anew.
    pub(super) spare: &'a mut Option<Arc<Tenure>>,
}

impl Rules<'_> {
    /// A tenure that no store knows of, for this caller.
    #[expect(
        clippy::inline_always,
        reason = "a hold that goes through memory costs a tenth of an in-process lock"
    )]
    #[inline(always)]
    pub(super) fn private_hold(&mut self, key: &Key, ask: &Ask, now: Moment) -> Hold {
        *self.counter += 1;
        let made = Tenure::private(key.clone(), ask.ttl, ask.load, *self.counter);
        let tenure = match self.spare.take() {
            None => Arc::new(made),
            Some(mut spare) => match Arc::get_mut(&mut spare) {
                Some(over) => {
                    *over = made;
                    spare
                }
                // The guard that gave it back has not let it go yet.
                None => Arc::new(made),
            },
        };
        Hold::new(tenure, now, ask)
    }
}
