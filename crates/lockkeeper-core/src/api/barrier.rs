//! A barrier: so many wait for each other, and go on together, round after round.
//!
//! ```text
//!  wait ─▶ say that we are here (a memo, kept for the ttl) ─▶ arrive: one swap adds us, and opens if we are the last
//!       ─▶ until there is a verdict: look, see whether whoever arrived before us still lives, else break
//!  out of time, dropped, dead: one swap writes that the round is broken, if it has no verdict yet
//! ```

mod cyclic;
mod double;
mod guest;
mod presence;
mod sheet;
mod venue;

pub use self::cyclic::{Barrier, BarrierStatus, Meeting};
pub use self::double::{Entry, Inside};
pub use self::sheet::{Breach, Verdict};
