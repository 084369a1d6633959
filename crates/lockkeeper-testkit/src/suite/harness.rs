//! The harness: how a case gets at a store. What a backend author writes to use the suite.

use std::future::Future;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Clock, Key};

use super::trial::Failure;

/// The way to one store that is shared by everything a case connects to it.
pub trait Harness: Send + Sync + 'static {
    /// The backend under test.
    type Backend: Backend<Place: Place>;

    /// A fresh backend, as a new process would have. A case asks for several.
    fn connect(&self) -> impl Future<Output = Self::Backend> + Send;

    /// The process of this backend dies without a word, as when its host loses power: nothing is sent any
    /// more, no goodbye, no heartbeat, not even the end of a connection.
    ///
    /// The default forgets the backend and its places, so that no destructor runs. A backend with a life of
    /// its own, such as the heartbeat of a session, must be silenced here.
    fn crash(
        &self,
        backend: Self::Backend,
        places: Vec<<Self::Backend as Backend>::Place>,
    ) -> impl Future<Output = ()> + Send {
        std::mem::forget((backend, places));
        async {}
    }

    /// The operator's view of the store, for the cases that look at it or break a lock.
    ///
    /// The default has none; those cases then say so instead of passing silently.
    fn inspect<'b>(&self, _backend: &'b Self::Backend) -> Option<&'b dyn DynInspect> {
        None
    }

    /// The ttl of the cases. Short, because cases wait for it to pass; a machine too slow for it is noticed,
    /// and the case runs again with a longer one.
    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// The clock by which cases wait and judge.
    fn clock(&self) -> Clock {
        Clock::boot()
    }

    /// After how long a wait that should have ended is called a hang. No promise about speed.
    fn patience(&self) -> Duration {
        Duration::from_secs(30) + self.ttl() * 10
    }

    /// A name that nobody else uses.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    fn key(&self) -> Result<Key, Failure> {
        let id = lockkeeper_core::ClaimId::random().map_err(Failure::broken)?;
        Key::new(&format!("suite/{}", id.to_hex())).map_err(Failure::broken)
    }
}
