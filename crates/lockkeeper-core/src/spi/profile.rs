//! What a store promises, as its profile says it.

use std::time::Duration;

/// What a store promises. The suite tests what is claimed here; requests that ask for more are refused.
///
/// ```
/// use lockkeeper_core::backend::{Lease, Order, Reach, Rooms};
/// use lockkeeper_core::{Locker, Memory};
///
/// let profile = Locker::new(Memory::default()).profile();
/// assert_eq!((profile.name, profile.order, profile.reach), ("memory", Order::Fifo, Reach::Process));
/// assert_eq!((profile.rooms, profile.lease), (Rooms::Weighted, Lease::Claim));
/// assert!(profile.ttl_min <= profile.ttl_max);
/// ```
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a promise of its own, and any may be given with any other"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The backend's name in errors and events, such as `"sqlite"`.
    pub name: &'static str,
    /// Who comes first.
    pub order: Order,
    /// Which claims the store can hold.
    pub rooms: Rooms,
    /// How far the lock reaches.
    pub reach: Reach,
    /// What the store forgets when it does not hear from us.
    pub lease: Lease,
    /// Whether a lock can be given back later: see [`Place::linger`](crate::backend::Place::linger).
    pub lingers: bool,
    /// Whether what is held can be made to weigh less: see [`Place::lower`](crate::backend::Place::lower).
    pub lowers: bool,
    /// Whether a holder is notified when somebody begins to wait, or its lock was taken away: [`Place::changed`](crate::backend::Place::changed).
    pub notifies: bool,
    /// Whether whoever is idle looks by itself if somebody waits: [`Place::changed`](crate::backend::Place::changed) resolves as if it were
    /// notified, and costs the store a look now and then. So it is called for idle locks only.
    pub looks: bool,
    /// The shortest ttl that can be had.
    pub ttl_min: Duration,
    /// The longest ttl that can be had.
    pub ttl_max: Duration,
}

impl Profile {
    /// The least that a store can promise: whoever asks at the right moment is served, mutexes only, each claim
    /// expires by itself, and a ttl between ten milliseconds and a year. The methods add to it.
    ///
    /// ```
    /// use lockkeeper_core::backend::{Lease, Order, Profile, Reach, Rooms};
    /// # use std::time::Duration;
    ///
    /// let profile = Profile::new("notary", Reach::Network).fifo().weighted().ttl(Duration::from_secs(1), Duration::MAX);
    /// assert_eq!((profile.order, profile.rooms, profile.lease), (Order::Fifo, Rooms::Weighted, Lease::Claim));
    /// ```
    pub const fn new(name: &'static str, reach: Reach) -> Self {
        Profile {
            name,
            order: Order::Barging,
            rooms: Rooms::MutexOnly,
            reach,
            lease: Lease::Claim,
            lingers: false,
            lowers: false,
            notifies: false,
            looks: false,
            ttl_min: Duration::from_millis(10),
            ttl_max: Duration::from_secs(365 * 24 * 3600),
        }
    }

    /// First come, first served.
    #[must_use]
    pub const fn fifo(mut self) -> Self {
        self.order = Order::Fifo;
        self
    }

    /// Any weight and capacity.
    #[must_use]
    pub const fn weighted(mut self) -> Self {
        self.rooms = Rooms::Weighted;
        self
    }

    /// What expires is the process's session, and with it everything the process holds.
    #[must_use]
    pub const fn by_session(mut self) -> Self {
        self.lease = Lease::Session;
        self
    }

    /// A lock can be given back later.
    #[must_use]
    pub const fn lingering(mut self) -> Self {
        self.lingers = true;
        self
    }

    /// What is held can be made to weigh less.
    #[must_use]
    pub const fn lowering(mut self) -> Self {
        self.lowers = true;
        self
    }

    /// A holder is notified that somebody waits, without a renewal.
    #[must_use]
    pub const fn notifying(mut self) -> Self {
        self.notifies = true;
        self
    }

    /// An idle holder looks now and then whether somebody waits.
    #[must_use]
    pub const fn looking(mut self) -> Self {
        self.looks = true;
        self
    }

    /// Whether what is idle learns that it must go.
    #[inline]
    pub(crate) fn recalls(&self) -> bool {
        self.notifies || self.looks
    }

    /// The shortest and the longest ttl that can be had.
    #[must_use]
    pub const fn ttl(mut self, min: Duration, max: Duration) -> Self {
        (self.ttl_min, self.ttl_max) = (min, max);
        self
    }

    /// Whether such a ttl can be had.
    #[inline]
    pub(crate) fn takes(&self, ttl: Duration) -> bool {
        (self.ttl_min..=self.ttl_max).contains(&ttl)
    }

    /// The same promises under another name, for a store around another.
    #[must_use]
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

/// Who comes first in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served.
    Fifo,
    /// Whoever asks at the right moment.
    Barging,
}

/// Which claims a store can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rooms {
    /// Any weight and capacity.
    Weighted,
    /// Weight 1 of capacity 1 only.
    MutexOnly,
}

/// How far a lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// This process.
    Process,
    /// All processes of this host.
    Host,
    /// Every host that can reach the store.
    Network,
}

/// What expires when the store does not hear from us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lease {
    /// Each claim by itself, by its own ttl.
    Claim,
    /// The process's session, and with it everything the process holds.
    Session,
}
