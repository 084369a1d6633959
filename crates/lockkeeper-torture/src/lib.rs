//! Torture: several processes fight for locks while somebody stops and kills them or their servers, and what each of
//! them saw is checked afterwards.
//!
//! ```text
//!   parent: faults, witness ──┬── worker 0: tasks ──┐
//!     │ socket of the witness ├── worker 1: tasks ──┼──▶ the store
//!     │ files of histories    └── …                 │
//!     ▼ check: G, E, F, orphans, loss told late ◀───┘ each writes down what it believes, as it happens
//! ```
//! The parent is never touched by a fault. All processes share one clock, which runs through suspend, so that "at once"
//! is exact. Three verdicts are kept apart:
//!
//! - **G**: the guards that were valid at once do not fit together, or a process handed on a lock that the store had given to
//!   somebody else meanwhile. Never, where a store promises exclusion.
//! - **E**: updates that were lost at a resource that does not check fences. No lease can prevent it: it is a figure.
//! - **F**: the same at a resource that checks them, what changed there between two looks of a reader, and fences that did not grow, but for such hand-ons, which are G and are
//!   refused by whatever checks fences. Never.
//!
//! A part of the `lockkeeper` command (feature `torture`) and of `cargo xtask torture`. It is no library for others.

mod calls;
mod check;
mod crew;
mod deed;
mod dice;
mod grip;
mod history;
mod how;
mod keys;
mod log;
mod order;
mod orders;
mod rhythm;
mod user;
mod verdict;
mod witness;
mod worker;

pub use check::{Findings, check};
pub use crew::{Crew, Ended, Order, Plan};
pub use dice::Dice;
pub use history::{Belief, History, Starved, Stood};
pub use keys::leftovers;
pub use order::Passed;
pub use user::{Wish, torture};
pub use verdict::{Episode, Verdict};
pub use witness::{Counts, Witness};
pub use worker::{Fork, helper};

/// What went wrong with the torture itself.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;
