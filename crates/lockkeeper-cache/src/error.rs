//! Why a cache did not answer.

use std::error::Error;
use std::fmt;

type Source = Box<dyn Error + Send + Sync>;

/// Why a cache did not answer: whatever went wrong in it.
///
/// It is an error like others, so `?` works in a program that uses `anyhow` or an error type of its own. `Debug` reads as
/// `Display` does, because that is what a `main` that returns an error prints.
///
/// ```
/// use lockkeeper_cache::CacheError;
///
/// fn read(file: &str) -> Result<String, CacheError> {
///     let text = std::fs::read_to_string(file)?;
///     let number: u32 = text.trim().parse().map_err(CacheError::new)?; // anything that is an error
///     if number == 0 { Err("nothing is kept there".into()) } else { Ok(text) }
/// }
///
/// let error = read("/proc/nowhere").unwrap_err();
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
pub struct CacheError(Source);

impl CacheError {
    /// One of another type, or a text.
    pub fn new(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CacheError(why.into())
    }
}

impl fmt::Debug for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for CacheError {
    /// What is below it; its own text is ours.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// From what caches meet most. A conversion from every error would be one from itself, too.
macro_rules! from {
    ($($kind:ty),+) => {
        $(impl From<$kind> for CacheError {
            fn from(why: $kind) -> Self {
                CacheError::new(why)
            }
        })+
    };
}

from!(&str, String, std::io::Error, lockkeeper_core::Error);
#[cfg(feature = "redis")]
from!(redis::RedisError, serde_json::Error);
