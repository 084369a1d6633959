//! How a request walks. Each file calls only those to its right; what travels back is a value.
//!
//! ```text
//!  taking        (api: acquire) ─▶ contest ─▶ finish ─▶ grant ─▶ rounds
//!  holding       rounds ─▶ leave
//!  giving back   leave ─▶ shared
//!  known to all  shared (what the parts of one locker share) ─▶ queue ─▶ line ─▶ waiter, hold ─▶ tenure, keeper ─▶ ask;
//!                schedule; background
//! ```

pub(crate) mod ask;
pub(crate) mod background;
pub(crate) mod contest;
mod finish;
pub(crate) mod grant;
pub(crate) mod hold;
pub(crate) mod keeper;
pub(crate) mod leave;
pub(crate) mod line;
pub(crate) mod queue;
pub(crate) mod rounds;
pub(crate) mod schedule;
pub(crate) mod shared;
pub(crate) mod tenure;
pub(crate) mod waiter;
