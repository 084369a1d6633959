//! A store that counts how often it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::Load;
use lockkeeper::spi::{Backend, Claim, Place, Profile, Renewal, Result, Turn};

/// Trips to the store of locks. Relaxed: read when all who count are done, and their tasks were awaited.
#[derive(Debug, Default)]
pub(crate) struct Trips(AtomicU64);

impl Trips {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same store, counted.
#[derive(Debug)]
pub(crate) struct Counting<B> {
    inner: B,
    trips: Arc<Trips>,
}

impl<B> Counting<B> {
    pub(crate) fn new(inner: B, trips: Arc<Trips>) -> Self {
        Counting { inner, trips }
    }
}

#[derive(Debug)]
pub(crate) struct CountingPlace<P> {
    inner: P,
    trips: Arc<Trips>,
}

impl<B: Backend> Backend for Counting<B> {
    type Place = CountingPlace<B::Place>;

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn enter(&self, claim: Claim) -> Self::Place {
        CountingPlace { inner: self.inner.enter(claim), trips: self.trips.clone() }
    }
}

impl<P: Place> Place for CountingPlace<P> {
    async fn turn(&mut self) -> Result<Turn> {
        self.trips.count();
        self.inner.turn().await
    }

    async fn changed(&mut self) {
        self.inner.changed().await;
    }

    fn was_called(&self) -> bool {
        self.inner.was_called()
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.trips.count();
        self.inner.renew().await
    }

    async fn leave(&mut self) -> Result<()> {
        self.trips.count();
        self.inner.leave().await
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        self.trips.count();
        self.inner.linger(span).await
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        self.trips.count();
        self.inner.lower(load).await
    }
}
