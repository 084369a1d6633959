//! For authors of backends: what several stores need and no user sees.
//!
//! ```text
//!  connecting   address     URLs: hosts, users, secrets
//!               settings    what stands after the `?` of a URL, and which setting was meant
//!               tls         files for TLS
//!               driver      a thread of one's own, with a farewell
//!               caller      on whose runtime a verb was called
//!  locking      record      a claim as text
//!               admission   the rule of admission, where a store only keeps a line
//!               proof       until when a session surely lives, or that it is over
//!  waiting      bells       a message names a claim: who hears it
//!  operators    listing     from rows to locks, and many names in a short text
//!  everywhere   locked      a mutex without poison
//! ```

pub mod address;
pub mod admission;
mod bells;
pub(crate) mod caller;
mod driver;
mod listing;
mod locked;
pub(crate) mod nearest;
mod proof;
pub mod record;
pub mod settings;
pub mod tls;

pub use bells::Bells;
pub use caller::caller_runtime;
pub use driver::{Driver, Tasks};
pub use listing::{Listed, gather, some_of};
pub use locked::locked;
pub use proof::Proof;
