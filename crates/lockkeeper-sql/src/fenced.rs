//! Fenced writes: a checker beside your data that refuses whoever comes with an old fence.
//!
//! Check first thing in the transaction, also before you only read: the first access of a new holder must raise
//! the fence, or an old holder's late write slips in between its read and its write. From the check to the
//! transaction's end nobody else can check the same resource, so check and write are one step. Commit, also when you
//! have only read: a transaction that is rolled back has not raised the fence.
//!
//! A row that carries its own fence needs no checker: `UPDATE … SET …, fence = f WHERE id = ? AND fence <= f`
//! changes no row if `f` is stale. But then its readers must raise it as well.

pub use lockkeeper_core::FencedError;
