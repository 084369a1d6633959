//! What users touch.
//!
//! ```text
//!  locker    where requests begin; its builder and settings
//!  request   what the caller wants
//!  acquire   the walk of a request, from the local line to the guard
//!  guard     what the caller holds
//!  buckets   one resource over several locks
//! ```

mod acquire;
pub mod buckets;
pub(crate) mod guard;
pub(crate) mod locker;
pub(crate) mod request;
pub(crate) mod shared;
