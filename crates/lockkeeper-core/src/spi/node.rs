//! A node: what a store must offer, beyond the contract, to be one of several that vote on a lock.
//!
//! A lock over several independent stores is held by whoever a majority of them says it is. Two things must
//! then be known of each store that a lock on a single one does not need: that it remembers what it
//! promised, and that its counters can be lifted to those of the others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::spi::backend::{Backend, Place, Result};

/// A store that can be one of several.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::Memory;
/// use lockkeeper_core::node::{Node, Standing};
///
/// let (a, b) = (Memory::default(), Memory::default());
/// let Standing { identity, remembers, .. } = a.standing().await?;
/// assert_ne!(identity, b.standing().await?.identity);
/// assert_eq!(remembers, None); // it never forgets
/// # Ok(())
/// # }
/// ```
pub trait Node: Backend<Place: RaiseCounter> {
    /// Who this is, and how far its memory reaches back.
    ///
    /// What is told must be true of every answer that any place of this backend was given before the call.
    /// A store that knows, because its connection was never broken since, need not ask the server.
    fn standing(&self) -> impl Future<Output = Result<Standing>> + Send;
}

/// A node that a part of a URL can name: what `redlock://one,two,three` is made of.
///
/// ```
/// use lockkeeper_core::node::UrlNode;
///
/// /// The URL of each of these hosts.
/// fn urls<N: UrlNode>(hosts: &[&str]) -> Vec<String> {
///     hosts.iter().map(|host| format!("{}://{host}", N::SCHEME)).collect()
/// }
/// ```
pub trait UrlNode: Node + Sized {
    /// The scheme of the URL of a single node.
    const SCHEME: &'static str;
    /// The settings that a URL of several nodes may name, for all of them.
    const SETTINGS: &'static [&'static str];

    /// The node of a URL. It is not asked anything yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a URL that cannot be used, without its secrets.
    fn lazy_from(url: &str) -> std::result::Result<Self, Error>;
}

/// A place whose counter can be lifted.
///
/// ```
/// # use lockkeeper_core::{Claim, ClaimId, Error, Key, Label, Memory};
/// # fn claim() -> Result<Claim, Error> {
/// #     Claim::new(Key::new("orders/42")?, std::time::Duration::from_secs(10))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_core::backend::{Backend as _, Place as _, Turn};
/// use lockkeeper_core::node::RaiseCounter as _;
///
/// let mut place = Memory::default().enter(claim()?);
/// let Turn::Held(grant) = place.turn().await? else { panic!("it was free") };
/// let raised = place.raise(grant.counter + 7).await?;
/// assert_eq!(raised, Some(grant.counter + 7));
/// place.leave().await?;
/// assert_eq!(place.raise(1).await?, None); // we do not hold
/// # Ok(())
/// # }
/// ```
pub trait RaiseCounter: Place {
    /// If we hold, lift the counter of what we hold to `counter` at least, and further above every counter that
    /// was raised here for another claim before. Tells what it is now; `None` if we do not hold.
    ///
    /// From then on `turn` of the same claim tells that counter. A later claim must learn of it by its own
    /// `raise`; it may learn of it by its `turn` already. Never acquires, never extends. Repeating it is
    /// harmless.
    fn raise(&mut self, counter: u64) -> impl Future<Output = Result<Option<u64>>> + Send;
}

/// What a node tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Two nodes with the same identity are the same server. It may change when the server restarts.
    pub identity: Arc<str>,
    /// At least how long it has remembered everything it was told; `None` if it never forgets.
    ///
    /// A node that does forget must begin its counters above all that it gave before, as one does that
    /// takes them from its clock.
    pub remembers: Option<Duration>,
}

impl Standing {
    /// A node of this identity, and how far back it remembers.
    pub fn new(identity: impl Into<Arc<str>>, remembers: Option<Duration>) -> Self {
        Standing { identity: identity.into(), remembers }
    }
}
