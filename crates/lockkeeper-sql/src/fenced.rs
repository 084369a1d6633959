//! Fenced writes: a checker beside your data that refuses whoever comes with an old fence.
//!
//! Check first thing in the transaction, also before you only read: the first access of a new holder must raise
//! the fence, or an old holder's late write slips in between its read and its write. From the check to the
//! transaction's end nobody else can check the same resource, so check and write are one step.
//!
//! A row that carries its own fence needs no checker: `UPDATE … SET …, fence = f WHERE id = ? AND fence <= f`
//! changes no row if `f` is stale. But then its readers must raise it as well.

use lockkeeper_core::{Fence, Key};

/// Why an access was refused.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Fence, Key};
/// use lockkeeper_sql::fenced::FencedError;
///
/// let (resource, fence, seen) = (Key::new("orders/42")?, Fence::from_u64(7), Fence::from_u64(9));
/// let error: FencedError<std::io::Error> = FencedError::Stale { resource, fence, seen };
/// assert!(error.to_string().contains("roll back"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FencedError<E> {
    /// Somebody with a newer lock was here. Ours is lost: write nothing, roll back.
    #[error("the fence {fence} of {resource:?} is stale: {seen} has been here; the lock is lost, roll back")]
    Stale {
        /// What was to be accessed.
        resource: Key,
        /// Our fence.
        fence: Fence,
        /// The newest fence that was here.
        seen: Fence,
    },
    /// A fence that no lock gives.
    #[error("the fence {fence} is larger than the database can keep")]
    TooLarge {
        /// The fence.
        fence: Fence,
    },
    /// The database said no. Nothing is known about the fence: roll back.
    #[error(transparent)]
    Database(E),
}

/// A fence as databases keep it.
pub(crate) fn as_number<E>(fence: Fence) -> Result<i64, FencedError<E>> {
    i64::try_from(fence.get()).map_err(|_| FencedError::TooLarge { fence })
}
