//! Options: time-outs, the allowance for clocks, the restart guard, and what tests replace.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Spawn};

/// A node that is given less cannot answer over a network.
const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// How a [`Redlock`](crate::Redlock) behaves. The defaults are safe.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_redlock::Options;
///
/// let options = Options::default()
///     .node_timeout(Duration::from_millis(200))
///     .restart_guard(Duration::from_secs(120)) // the longest ttl of anybody
///     .retry_max(Duration::from_millis(50));
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) drift_per_mille: u32,
    pub(crate) restart_guard: Option<Duration>,
    pub(crate) retry_max: Duration,
    pub(crate) clock: Clock,
    pub(crate) spawner: Option<Arc<dyn Spawn>>,
    pub(crate) seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            node_timeout: None,
            drift_per_mille: 10,
            restart_guard: Some(Duration::from_secs(60)),
            retry_max: Duration::from_millis(100),
            clock: Clock::boot(),
            spawner: None,
            seed: None,
        }
    }
}

impl Options {
    /// How long one node may take to answer. Otherwise a twentieth of the ttl, at least 10 ms.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout.max(Duration::from_millis(1)));
        self
    }

    /// By how much, in thousandths, two clocks may differ in rate. 10 by default.
    #[must_use]
    pub fn drift_per_mille(mut self, drift: u32) -> Self {
        self.drift_per_mille = drift.min(500);
        self
    }

    /// The longest ttl that anybody takes on these nodes, one minute by default. A node that lost its memory
    /// has no vote until that has passed. Every client of the nodes must be given the same.
    #[must_use]
    pub fn restart_guard(mut self, ttl_max: Duration) -> Self {
        self.restart_guard = Some(ttl_max);
        self
    }

    /// Let nodes vote however young their memory is. Safe only if they never forget what they confirmed,
    /// as Redis with `appendfsync always`; otherwise a restart can give one lock to two holders.
    #[must_use]
    pub fn without_restart_guard(mut self) -> Self {
        self.restart_guard = None;
        self
    }

    /// The longest pause before a lock that is taken is asked for again; 100 ms by default. The pause is
    /// random and grows from 2 ms.
    #[must_use]
    pub fn retry_max(mut self, pause: Duration) -> Self {
        self.retry_max = pause.max(Duration::from_millis(1));
        self
    }

    /// The clock; the locker must have the same. For tests and simulation.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Where verbs are finished that outlast their time-out, instead of on a thread of our own.
    #[must_use]
    pub fn spawner(mut self, spawner: Arc<dyn Spawn>) -> Self {
        self.spawner = Some(spawner);
        self
    }

    /// Draw the random pauses from this seed, so that a simulation can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The time-out of one node for a claim of this ttl.
    pub(crate) fn timeout_for(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or((ttl / 20).max(NODE_TIMEOUT_MIN))
    }

    /// Two rounds and some time to work must fit into a lease.
    pub(crate) fn ttl_min(&self) -> Duration {
        self.node_timeout.unwrap_or(NODE_TIMEOUT_MIN) * 5
    }

    /// How long to wait for a node outside the race for a lock.
    pub(crate) fn patience(&self) -> Duration {
        self.node_timeout.unwrap_or_default().max(Duration::from_secs(2))
    }

    /// What two clocks may disagree by after `span`, and the grain of their ticks.
    pub(crate) fn drift(&self, span: Duration) -> Duration {
        span / 1000 * self.drift_per_mille + Duration::from_millis(2)
    }
}
