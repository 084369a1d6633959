//! How a request walks. Each file calls only those to its right; what travels back is a value.
//!
//! ```text
//!  taking        (api: acquire) ─▶ contest ─▶ finish ─▶ grant ─▶ rounds
//!  holding       rounds ─▶ leave
//!  giving back   leave ─▶ shared
//!  known to all  shared (what the parts of one locker share) ─▶ queue ─▶ tenure, keeper; schedule; background
//! ```

pub(crate) mod background;
pub(crate) mod contest;
mod finish;
pub(crate) mod grant;
pub(crate) mod keeper;
pub(crate) mod leave;
pub(crate) mod queue;
pub(crate) mod rounds;
pub(crate) mod schedule;
pub(crate) mod shared;
pub(crate) mod tenure;
