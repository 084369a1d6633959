//! Redlock: a lock held by a majority of several independent stores.
//!
//! ```
//! # use lockkeeper_core::{Locker, Memory};
//! use lockkeeper_redlock::{Redlock, RedlockOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper_core::Result<()> {
//! let nodes = vec![Memory::default(), Memory::default(), Memory::default()];
//! let locker = Locker::new(Redlock::with(RedlockOptions::new(nodes)).await?);
//! let guard = locker.lock("orders/42").await?;
//! # guard.release().await }
//! ```
//!
//! All nodes are asked at once, each with a short timeout. The lock is ours if a majority gave it, confirmed
//! it in a second round that lifts their counters to one fence, and there is time left. Otherwise it is
//! given back on every node, also on the silent ones, and asked for again after a random pause. See
//! `docs/backends/redlock.md` for what this promises and what it does not.
//!
//! No type of a client crate is part of this interface.

mod admin;
mod background;
mod doctor;
mod options;
mod place;
mod quorum;
mod retake;
mod seat;
mod trust;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Lease, Profile};
use lockkeeper_core::node::{Node, Standing, UrlNode};
use lockkeeper_core::{Claim, ClaimId, Clock, Error, Result, Spawn};

use background::Background;
pub use options::RedlockOptions;
use options::Rules;
pub use place::RedlockPlace;
use quorum::{Say, gather};
use trust::Trust;

pub(crate) const NAME: &str = "redlock";

/// A lock over several stores that know nothing of each other. Clones share the nodes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::{Locker, Memory};
/// use lockkeeper_redlock::{Redlock, RedlockOptions};
///
/// // Three independent stores, in most cases three `Redis`.
/// let nodes = vec![Memory::default(), Memory::default(), Memory::default()];
/// let redlock = Redlock::with(RedlockOptions::new(nodes)).await?;
/// let locker = Locker::new(redlock.clone());
/// let guard = locker.lock("orders/42").await?;
/// assert!(redlock.nodes().filter(|it| !it.is_empty()).count() >= 2); // a majority knows of it
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct Redlock<B>(Arc<Shared<B>>);

/// What all places share.
pub(crate) struct Shared<B> {
    pub(crate) nodes: Vec<Arc<B>>,
    pub(crate) options: Rules,
    pub(crate) clock: Clock,
    pub(crate) spawner: Arc<dyn Spawn>,
    /// What is remembered of each node, in the same order.
    pub(crate) trust: Arc<[Trust]>,
    profile: Profile,
    /// Where the row of random numbers stands. Only that each is drawn once matters: Relaxed.
    chance: AtomicU64,
}

impl<B> Shared<B> {
    /// How many nodes are a majority.
    pub(crate) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// A random number below 2^16. Only pauses are drawn from it, so it need not be a good one.
    pub(crate) fn draw(&self) -> u16 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.chance.fetch_add(STEP, Ordering::Relaxed);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u16::try_from(bits >> 48).unwrap_or(0)
    }
}

impl<B> Clone for Redlock<B> {
    fn clone(&self) -> Self {
        Redlock(self.0.clone())
    }
}

impl<B: fmt::Debug> fmt::Debug for Redlock<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redlock").field(&self.0.nodes).finish()
    }
}

impl<B: UrlNode> Redlock<B> {
    /// Make a lock of the nodes that the URL names, and look whether they are as many servers as they should be.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), lockkeeper_core::Error> {
    /// use lockkeeper_redis::Redis;
    /// use lockkeeper_redlock::Redlock;
    ///
    /// let redlock = Redlock::<Redis>::connect("redlock://one,two,three").await?;
    /// # let _ = redlock; Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// As for [`RedlockOptions::parse`] and [`Redlock::with`].
    pub async fn connect(url: &str) -> Result<Self> {
        Redlock::with(RedlockOptions::parse(url)?).await
    }
}

impl<B: Node> Redlock<B> {
    /// Make a lock of these nodes, and look whether they are as many servers as they should be.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// [`Error::Invalid`] as for [`Redlock::lazy`], and if two nodes are the same server;
    /// [`Error::Unavailable`] if no majority answers, or if a node refuses for good: by a wrong password, or because
    /// it is a replica of another server.
    pub async fn with(options: RedlockOptions<B>) -> Result<Self> {
        let redlock = Redlock::lazy(options)?;
        let standings = redlock.standings().await;
        if let Some(what) = quorum::same_server(&standings) {
            return Err(Error::invalid(what));
        }
        let (told, majority) =
            (standings.iter().filter(|it| it.told().is_some()).count(), redlock.0.majority());
        // One that refuses for good is named in the wrong place; one that is down comes back.
        if let Some(what) = quorum::refusal(&standings) {
            return Err(what.into());
        }
        if told < majority {
            return Err(quorum::too_few("connecting", majority, &standings).into());
        }
        Ok(redlock)
    }

    /// Make a lock of these nodes without asking them anything. Two nodes that are the same server are then
    /// noticed when the lock is first taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] if their number is even or below three, if they forget sessions instead of
    /// claims, or if the options contradict each other.
    pub fn lazy(options: RedlockOptions<B>) -> Result<Self> {
        let RedlockOptions { nodes, rules: options } = options;
        let count = nodes.len();
        if count < 3 || count.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "Redlock needs an odd number of nodes, at least 3 and better 5; {count} were given"
            )));
        }
        let profile = profile(&nodes, &options)?;
        let clock = options.clock.clone();
        let spawner = options.spawner.clone().unwrap_or_else(|| Arc::new(Background::default()));
        let trust = nodes.iter().map(|_| Trust::default()).collect();
        let nodes = nodes.into_iter().map(Arc::new).collect();
        let [.., one, two, three, four] = *ClaimId::random()?.as_bytes();
        let random = u64::from(u32::from_be_bytes([one, two, three, four]));
        let chance = AtomicU64::new(options.seed.unwrap_or(random));
        Ok(Redlock(Arc::new(Shared { nodes, options, clock, spawner, trust, profile, chance })))
    }

    /// The nodes, as they were given.
    pub fn nodes(&self) -> impl Iterator<Item = &B> {
        self.0.nodes.iter().map(|it| &**it)
    }

    /// What every node tells of itself.
    pub(crate) async fn standings(&self) -> Vec<Say<Standing>> {
        let asked = self.0.nodes.iter().map(|node| {
            let node = node.clone();
            async move { node.standing().await }
        });
        gather(&self.0.clock, self.0.options.patience(), asked).await
    }
}

/// What a majority of such nodes can promise.
fn profile<B: Backend>(nodes: &[B], options: &Rules) -> Result<Profile> {
    let (mut ttl_min, mut ttl_max) = (options.ttl_min(), options.restart_guard.unwrap_or(Duration::MAX));
    let mut reach = None;
    for node in nodes {
        let it = node.profile();
        if it.lease != Lease::Claim {
            return Err(Error::invalid(format!(
                "{} forgets sessions, not claims: a majority of such nodes would not expire together",
                it.name
            )));
        }
        (ttl_min, ttl_max) = (ttl_min.max(it.ttl_min), ttl_max.min(it.ttl_max));
        reach.get_or_insert(it.reach);
    }
    let Some(reach) = reach.filter(|_| ttl_min <= ttl_max) else {
        return Err(Error::invalid(format!(
            "no ttl fits: at least {ttl_min:?} is needed for the nodes' timeouts, at most {ttl_max:?} is \
             allowed by the nodes or the restart guard"
        )));
    };
    Ok(Profile::new(NAME, reach).ttl(ttl_min, ttl_max))
}

impl<B: Node> Backend for Redlock<B> {
    type Place = RedlockPlace<B>;

    fn profile(&self) -> Profile {
        self.0.profile
    }

    fn enter(&self, claim: Claim) -> RedlockPlace<B> {
        RedlockPlace::new(self.0.clone(), claim)
    }
}
