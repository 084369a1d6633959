//! What a store does: the contract, and the types that stand in it.
//!
//! ```text
//!  backend   the contract, the two traits of a store, and what they answer
//!  claim     what a store is asked for: key, id, ttl, load, label
//!  erased    the two traits without their types
//!  fault     what a store answers when it cannot
//!  inspect   the operator's view
//!  memos     small durable values beside the locks
//!  profile   what a store promises
//!  node      what a store must offer to be one of several that vote
//!  trace     from which span a lock was asked for, on its way through a store
//! ```

pub mod backend;
pub mod claim;
pub(crate) mod erased;
pub(crate) mod fault;
pub mod inspect;
pub mod memos;
pub mod node;
pub(crate) mod profile;
pub(crate) mod trace;
