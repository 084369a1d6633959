//! How a request walks. Each file calls only those to its right; what travels back is a value.
//!
//! ```text
//!  taking        (api: acquire) ─▶ contest ─▶ finish ─▶ grant ─▶ rounds
//!  holding       rounds, lower ─▶ renewal (and listening) ─▶ leave
//!  giving back   warm ─▶ renewal; leave ─▶ shared
//!  known to all  shared (what the parts of one locker share) ─▶ queue ─▶ line ─▶ rules, representing, waiter ─▶ hold, fresh, warmth ─▶ tenure, keeper ─▶ ask, since, spot, stay, listeners;
//!                schedule; background ─▶ exit; order
//! ```

pub(crate) mod ask;
pub(crate) mod background;
pub(crate) mod calls;
pub(crate) mod contest;
mod exit;
mod finish;
pub(crate) mod fresh;
pub(crate) mod grant;
pub(crate) mod hold;
pub(crate) mod keeper;
pub(crate) mod leave;
pub(crate) mod line;
mod listeners;
pub(crate) mod lower;
pub(crate) mod memo;
pub(crate) mod order;
pub(crate) mod queue;
pub(crate) mod renewal;
mod representing;
pub(crate) mod rounds;
pub(crate) mod rules;
pub(crate) mod schedule;
pub(crate) mod seen;
pub(crate) mod shared;
pub(crate) mod since;
mod spot;
pub(crate) mod stay;
pub(crate) mod tenure;
pub(crate) mod waiter;
pub(crate) mod warm;
pub(crate) mod warmth;
