//! The core of Lockkeeper: lockers, guards, the local queue, the keeper, and the trait that stores
//! implement. It knows no network.
//!
//! Users name the `lockkeeper` crate, which re-exports all of this. Authors of backends read
//! [`backend`].

mod acquire;
pub mod address;
pub mod admission;
pub mod backend;
mod background;
pub mod buckets;
pub mod claim;
pub mod clock;
mod engine;
pub mod error;
pub mod fence;
mod guard;
pub mod inspect;
mod keeper;
pub mod key;
pub mod kit;
mod locker;
pub mod memory;
#[cfg(feature = "mutants")]
pub mod mutant;
pub mod node;
pub mod observe;
mod owner;
mod queue;
pub mod record;
mod request;
mod rounds;
mod tenure;

pub use background::{Spawn, Task};
pub use claim::{Claim, ClaimId, Label, Load};
pub use clock::{Clock, Moment};
pub use error::{Error, LostReason, Result, Stage};
pub use fence::{Fence, FencedError};
pub use guard::{Guard, Lost, Timings};
pub use key::Key;
pub use locker::{Locker, LockerBuilder};
pub use memory::Memory;
pub use owner::Owner;
pub use request::{Attempt, LockRequest};
