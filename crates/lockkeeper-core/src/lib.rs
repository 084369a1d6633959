//! The core of Lockkeeper. It knows no network.
pub mod backend;
pub mod claim;
pub mod clock;
pub mod error;
pub mod fence;
pub mod inspect;
pub mod key;
pub mod memory;

pub use claim::{Claim, ClaimId, Label};
pub use clock::{Clock, Moment};
pub use error::{Error, LostReason, Result, Stage};
pub use fence::Fence;
pub use key::Key;
pub use memory::Memory;
