//! What a user of a simulation holds: a lock or a share of one, with what it weighs.

use std::future::Future;

use lockkeeper_core::{Error, Guard, Key, Load, Lost, NotDowngraded, Result, SharedGuard};

/// A guard of either kind.
#[derive(Debug)]
pub struct Held {
    guard: Kind,
    load: Load,
}

#[derive(Debug)]
enum Kind {
    Alone(Guard),
    Shared(SharedGuard),
}

/// A lock, which nobody fits beside.
impl From<Guard> for Held {
    fn from(guard: Guard) -> Self {
        Held { guard: Kind::Alone(guard), load: Load::MUTEX }
    }
}

/// Do the same with a guard of either kind.
macro_rules! either {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Kind::Alone($guard) => $what,
            Kind::Shared($guard) => $what,
        }
    };
}

impl Held {
    /// A share that was asked for with this load.
    pub fn share(guard: SharedGuard, load: Load) -> Self {
        Held { guard: Kind::Shared(guard), load }
    }

    /// Go on as a reader, if it is a lock that its owner holds once.
    ///
    /// # Errors
    /// If it is lost. What cannot be downgraded otherwise comes back as it was.
    ///
    /// # Cancel safety
    /// Dropping the future gives it back.
    pub async fn downgrade(self) -> Result<Self> {
        let Kind::Alone(guard) = self.guard else { return Ok(self) };
        match guard.downgrade().await {
            Ok(shared) => Ok(Held::share(shared, Load::READER)),
            Err(NotDowngraded { error: error @ Error::Lost { .. }, .. }) => Err(error),
            Err(NotDowngraded { guard, .. }) => Ok(Held { guard: Kind::Alone(guard), load: self.load }),
        }
    }

    /// What it weighs, of what.
    pub fn load(&self) -> Load {
        self.load
    }

    /// What is held.
    pub fn key(&self) -> &Key {
        either!(&self.guard, it => it.key())
    }

    /// Its fence, as a number.
    pub fn fence(&self) -> u64 {
        either!(&self.guard, it => it.fence().get())
    }

    /// Whether it is held right now.
    pub fn is_valid(&self) -> bool {
        either!(&self.guard, it => it.is_valid())
    }

    /// Resolves when it is lost or given back.
    pub fn lost(&self) -> Lost {
        either!(&self.guard, it => it.lost())
    }

    /// Run a future while it is held.
    ///
    /// # Errors
    /// If it is lost before.
    ///
    /// # Cancel safety
    /// As safe as `future`.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        either!(&self.guard, it => it.run(future).await)
    }

    /// Give it back.
    ///
    /// # Errors
    /// If it was lost before, or the store did not confirm.
    ///
    /// # Cancel safety
    /// Once polled the release goes on.
    pub async fn release(self) -> Result<()> {
        either!(self.guard, it => it.release().await)
    }
}
