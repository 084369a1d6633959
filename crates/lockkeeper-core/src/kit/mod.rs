//! For authors of backends: what several stores need and no user sees.
//!
//! ```text
//!  connecting   address     URLs: hosts, users, secrets
//!               settings    what stands after the `?` of a URL, and which setting was meant
//!               tls         files for TLS
//!               driver      a thread of one's own, with a farewell
//!               home        the locker's own thread, made before the store is opened
//!               caller      on whose runtime a verb was called
//!  locking      record      a claim as text
//!               admission   the rule of admission, where a store only keeps a line
//!               proof       until when a session surely lives, or that it is over
//!  asking       batch       what is asked for now, gathered by whoever came first
//!               lane        the same with a bound on what is under way
//!               company     requests of one caller at the same moment
//!  waiting      bells       a message names a claim: who hears it
//!               pace        how often to look at a line that calls nobody
//!  operators    listing     from rows to locks, and many names in a short text
//!  everywhere   locked      a mutex without poison
//! ```

pub mod address;
pub mod admission;
mod batch;
mod bells;
pub(crate) mod caller;
pub(crate) mod company;
mod driver;
mod home;
pub mod lane;
mod listing;
mod locked;
pub(crate) mod nearest;
mod pace;
mod proof;
pub mod record;
pub mod settings;
pub mod tls;

pub use batch::{Batch, Gatherer, pieces};
pub use bells::Bells;
pub use caller::caller_runtime;
pub use driver::{Driver, Tasks};
pub use home::Home;
pub use listing::{Listed, gather, gather_of, some_of};
pub use locked::locked;
pub use pace::Pace;
pub use proof::Proof;
