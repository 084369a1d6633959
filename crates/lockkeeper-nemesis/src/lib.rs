//! The nemesis: real servers of every store, faults that a seed chooses, and workers that must not notice more than
//! was promised.
//!
//! ```text
//!   run ── site: servers and proxies of one store ── fault: the list ── strike: breaks them, or the workers, and heals them
//!    └──── lockkeeper_torture: workers, witness, checks ── page: docs/torture.md
//!   two_phase ── coordinators that die at every step, a bank, and what a lost log costs
//! ```

mod cells;
mod fault;
mod full;
mod page;
mod run;
mod site;
mod strike;
mod two_phase;

pub use fault::Fault;
pub use page::write;
pub use run::{Torture, run};
pub use site::StoreName;
pub use two_phase::{
    Lost, TwoPhaseTorture, TwoPhaseVerdict, helper as two_phase_helper, run_two_phase, write_two_phase,
};
