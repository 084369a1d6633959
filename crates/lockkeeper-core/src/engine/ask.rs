//! What a caller asks of the queue.

use std::time::Duration;

use crate::clock::Span;
use crate::owner::Owner;
use crate::spi::claim::Load;

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) owner: Option<Owner>,
    pub(crate) load: Load,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Span,
    /// For how long the lock is kept, also if the guard is given back before.
    pub(crate) at_least: Span,
    /// `false` for a try.
    pub(crate) patient: bool,
    /// Whether it goes in where its owner is inside already. If not, it waits for its owner as for anybody else.
    pub(crate) reenters: bool,
    /// Whether the lock may stay with this process after it was given back.
    pub(crate) warm: bool,
}
