//! What a resource says to a writer: that it came too late, or that nothing is known.

use std::convert::Infallible;
use std::fmt;

use crate::fence::Fence;
use crate::key::Key;

/// Why a checker of fences refused an access. The checkers are in the crates of the stores.
///
/// ```
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Fence, FencedError, Key};
///
/// let (resource, fence, seen) = (Key::new("orders/42")?, Fence::from_u64(7), Fence::from_u64(9));
/// let error: FencedError<std::io::Error> = FencedError::Stale { resource, fence, seen };
/// assert!(error.to_string().contains("roll back"));
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
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
    #[non_exhaustive]
    TooLarge {
        /// The fence.
        fence: Fence,
    },
    /// The database said no. Nothing is known about the fence: roll back.
    #[error(transparent)]
    Database(E),
}

impl<E> FencedError<E> {
    /// The fence as databases keep it, for authors of checkers.
    ///
    /// # Errors
    /// [`FencedError::TooLarge`] if it has more bits than they keep.
    pub fn number_of(fence: Fence) -> Result<i64, Self> {
        i64::try_from(fence.get()).map_err(|_| FencedError::TooLarge { fence })
    }

    /// Whether ours is the newest, by what a checker saw after it had raised the resource's fence to ours.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if it saw a newer one.
    pub fn unless_newest(resource: &Key, fence: Fence, seen: i64) -> Result<(), Self> {
        let seen = Fence::from_u64(seen.unsigned_abs());
        if fence < seen {
            return Err(FencedError::Stale { resource: resource.clone(), fence, seen });
        }
        Ok(())
    }
}

/// As `Display`, because that is what a `main` that returns an error prints. The database's own error is shown in its own way.
impl<E: fmt::Debug> fmt::Debug for FencedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: FencedError<Infallible> = match self {
            FencedError::Database(it) => return fmt::Debug::fmt(it, f),
            FencedError::Stale { resource, fence, seen } => {
                FencedError::Stale { resource: resource.clone(), fence: *fence, seen: *seen }
            }
            FencedError::TooLarge { fence } => FencedError::TooLarge { fence: *fence },
        };
        fmt::Display::fmt(&said, f)
    }
}
