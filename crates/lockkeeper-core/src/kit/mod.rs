//! For authors of backends: what several stores need and no user sees.
//!
//! ```text
//!  caller      on whose runtime a verb was called
//!  address     URLs: hosts, users, secrets
//!  settings    what stands after the `?` of a URL, and which setting was meant
//!  tls         files for TLS
//!  record      a claim as text
//!  admission   the rule of admission, where a store only keeps a line
//! ```

pub mod address;
pub mod admission;
pub(crate) mod caller;
pub(crate) mod nearest;
pub mod record;
pub mod settings;
pub mod tls;

pub use caller::caller_runtime;
