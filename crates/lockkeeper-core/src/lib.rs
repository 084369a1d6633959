//! The core of Lockkeeper: lockers, guards, the local queue, renewal, and the trait that stores implement. It
//! knows no network.
//!
//! Users name the `lockkeeper` crate, which re-exports what they need. Authors of backends read [`backend`]
//! and [`kit`].
//!
//! ```text
//!  api      what users touch        locker, request, guard, owner, buckets
//!  engine   how a request walks     taking, holding, giving back
//!  spi      what a store does       the contract and its types
//!  kit      for authors of stores
//!  memory   the store inside this process
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
pub mod clock;
mod engine;
pub mod error;
pub mod fence;
mod fenced;
pub mod key;
pub mod kit;
pub mod memory;
pub mod observe;
mod owner;
mod spi;

pub use api::barrier::{self, Barrier};
pub use api::buckets;
pub use api::builder::LockerBuilder;
pub use api::downgrade::NotDowngraded;
pub use api::election::{self, Campaign, Leader, Leaders, Leadership};
pub use api::guard::{Guard, Lost, Timings};
pub use api::latch::{Latch, LatchStatus};
pub use api::locker::Locker;
pub use api::multi::{self, MultiAttempt, MultiGuard, MultiRequest, Wish};
pub use api::once::{Once, OnceRequest, Tick};
pub use api::request::{Attempt, LockRequest};
pub use api::shared::{SharedAttempt, SharedGuard, SharedRequest};
pub use clock::{Clock, Moment};
pub use engine::background::{Spawn, Task};
pub use error::{Error, LostReason, Result, Stage};
pub use fence::{Fence, SharedFence};
pub use fenced::FencedError;
pub use key::Key;
pub use kit::{address, admission, record};
pub use memory::Memory;
pub use owner::Owner;
pub use spi::claim::{Claim, ClaimId, Label, Load};
pub use spi::{backend, claim, inspect, memos, node};
