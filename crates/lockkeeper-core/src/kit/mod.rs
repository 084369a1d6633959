//! For authors of backends: what several stores need and no user sees.
//!
//! ```text
//!  caller      on whose runtime a verb was called
//!  address     URLs: hosts, settings, secrets
//!  record      a claim as text
//!  admission   the rule of admission, where a store only keeps a line
//! ```

pub mod address;
pub mod admission;
pub(crate) mod caller;
pub mod record;

pub use caller::caller_runtime;
