//! Whoever can take a lock and give it back: ours, bare commands, the lock of another library.

use std::time::Duration;

use lockkeeper::{Guard, Locker};

use crate::Answer;

/// Longer than any crowd runs.
const WAIT_MAX: Duration = Duration::from_mins(2);

/// One side of a comparison. A clone is for one task.
pub(crate) trait Rival: Clone + Send + Sync + 'static {
    /// What the holder has in hand.
    type Taken: Send;

    fn take(&mut self, key: &str) -> impl Future<Output = Answer<Self::Taken>> + Send;

    fn give_back(&mut self, taken: Self::Taken) -> impl Future<Output = Answer<()>> + Send;
}

/// Lockkeeper with everything on.
#[derive(Clone)]
pub(crate) struct Ours {
    locker: Locker,
    ttl: Option<Duration>,
    /// The last fence of this task.
    fence: u64,
}

impl Ours {
    pub(crate) fn new(locker: &Locker) -> Self {
        Ours { locker: locker.clone(), ttl: None, fence: 0 }
    }

    pub(crate) async fn connect(url: &str) -> Answer<Self> {
        Ok(Ours::new(&lockkeeper::connect(url).await?))
    }

    pub(crate) fn ttl(self, ttl: Duration) -> Self {
        Ours { ttl: Some(ttl), ..self }
    }
}

impl Rival for Ours {
    type Taken = Guard;

    async fn take(&mut self, key: &str) -> Answer<Guard> {
        let asked = self.locker.lock(key).wait_at_most(WAIT_MAX);
        let guard = match self.ttl {
            Some(ttl) => asked.ttl(ttl).await?,
            None => asked.await?,
        };
        let (last, fence) = (self.fence, guard.fence().get());
        self.fence = fence;
        // Worth stopping a benchmark for.
        if last < fence { Ok(guard) } else { Err(format!("fence {fence} after {last}").into()) }
    }

    async fn give_back(&mut self, guard: Guard) -> Answer<()> {
        Ok(guard.release().await?)
    }
}
