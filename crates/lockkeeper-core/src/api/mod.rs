//! What users touch.
//!
//! ```text
//!  locker    where requests begin
//!  builder   its settings
//!  request   what the caller wants
//!  acquire   the walk of a request, from the local line to the guard
//!  recall    a try on what may be idle elsewhere
//!  guard     what the caller holds
//!  shared    requests and guards of those who share
//!  downgrade from writing to reading
//!  multi     several locks at once
//!  once      a job that runs once for each tick
//!  election  one leader among many
//!  latch     opens when so many have arrived
//!  barrier   so many wait for each other
//!  lose      what is shared, or several, lost at once: for tests
//!  limits    what fits into a memo
//!  refused   writes that a checker refused, told to observers
//!  buckets   one resource over several locks
//! ```

mod acquire;
pub mod barrier;
pub mod buckets;
pub(crate) mod builder;
pub(crate) mod downgrade;
pub mod election;
pub(crate) mod guard;
pub(crate) mod latch;
mod limits;
pub(crate) mod locker;
#[cfg(feature = "test-util")]
mod lose;
pub mod multi;
pub(crate) mod once;
mod recall;
mod refused;
pub(crate) mod request;
pub(crate) mod shared;
