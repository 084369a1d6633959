//! From a URL to a store: the scheme chooses the backend.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::backend::Backend;
use lockkeeper_core::inspect::{DynInspect, Inspect};
use lockkeeper_core::{Error, Locker, LockerBuilder, Memory, Result};

/// An opened store: a locker to be, and the operator's view of it.
pub struct Store {
    /// Set what you like and [`build`](LockerBuilder::build) it.
    pub locker: LockerBuilder,
    /// Who holds what and who waits.
    pub inspect: Arc<dyn DynInspect>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("inspect", &self.inspect).finish_non_exhaustive()
    }
}

/// A locker with default settings for the store behind a URL.
///
/// # Cancel safety
/// Safe to drop; a half-open connection is closed.
///
/// # Errors
/// As for [`open`].
pub async fn connect(url: &str) -> Result<Locker> {
    let Store { locker, inspect } = open(url).await?;
    // A store in memory that only its locker can reach is faster.
    drop(inspect);
    Ok(locker.build())
}

/// Open the store behind a URL: `memory:` or, with the feature of that name, `sqlite:PATH`.
///
/// # Cancel safety
/// Safe to drop; a half-open connection is closed.
///
/// # Errors
/// [`Error::Invalid`] for an unknown scheme or option, [`Error::Unavailable`] if the store does not answer.
#[allow(clippy::unused_async, reason = "which schemes await depends on the features")]
pub async fn open(url: &str) -> Result<Store> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid(format!("the store's URL has no scheme; begin it with {}", known())));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(store(Memory::default())),
        "memory" => Err(Error::invalid("a `memory:` URL has nothing after the colon")),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let options = lockkeeper_sqlite::SqliteOptions::from_url(url)?;
            Ok(store(lockkeeper_sqlite::SqliteBackend::open(options).await?))
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(not_built("sqlite")),
        _ => Err(Error::invalid(format!(
            "the URL scheme `{}` is unknown; known are {}",
            printable(scheme),
            known()
        ))),
    }
}

fn store(backend: impl Backend + Inspect + Clone) -> Store {
    Store { inspect: Arc::new(backend.clone()), locker: Locker::builder(backend) }
}

fn known() -> &'static str {
    "`memory:` and `sqlite:PATH`"
}

fn printable(text: &str) -> String {
    text.escape_debug().take(40).collect()
}

#[cfg(not(feature = "sqlite"))]
fn not_built(feature: &'static str) -> Error {
    let what =
        format!("this program was built without it; add the feature `{feature}` of the crate `lockkeeper`");
    Error::Unsupported { backend: feature, what }
}
