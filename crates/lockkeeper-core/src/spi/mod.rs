//! What a store does: the contract, and the types that stand in it.
//!
//! ```text
//!  backend   the contract, the two traits of a store, and what they answer
//!  claim     what a store is asked for: key, id, ttl, load, label
//!  fault     what a store answers when it cannot
//!  inspect   the operator's view
//!  node      what a store must offer to be one of several that vote
//! ```

pub mod backend;
pub mod claim;
pub(crate) mod fault;
pub mod inspect;
pub mod node;
