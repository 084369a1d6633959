//! What a client holds: one lock, a share of one, several, or a role.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper_core::{Guard, Leadership, Load, Locker, LostReason, MultiGuard, Result, SharedGuard, Wish};
use tokio::sync::OwnedSemaphorePermit;

use crate::ask::Ask;

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum Held {
    Alone(Guard),
    Shared(SharedGuard),
    Many(MultiGuard),
    Leads(Leadership),
}

/// Resolves when what is held is lost.
pub(crate) type Loss = Pin<Box<dyn Future<Output = LostReason> + Send>>;

/// A request of any kind with the options that all kinds have.
macro_rules! asked {
    ($request:expr, $ask:expr) => {{
        let mut request = $request;
        if let Some(note) = &$ask.note {
            request = request.note(note);
        }
        if let Some(ttl) = $ask.ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = $ask.wait {
            request = request.wait_at_most(wait);
        }
        if let Some(max_hold) = $ask.max_hold {
            request = request.max_hold(max_hold);
        }
        request
    }};
}

impl Held {
    /// Wait for what is asked for; `None` if it was not to be had at once and nobody wanted to wait.
    pub(crate) async fn take(locker: &Locker, name: &str, ask: &Ask) -> Result<Option<Held>> {
        let load = if ask.shared { Load::READER } else { ask.permits.unwrap_or(Load::MUTEX) };
        if !ask.also.is_empty() {
            return Held::take_all(locker, name, load, ask).await;
        }
        let at_once = ask.wait == Some(Duration::ZERO);
        if load == Load::MUTEX {
            let request = asked!(locker.lock(name), ask);
            return Ok(if at_once {
                request.attempt().await?.map(Held::Alone)
            } else {
                Some(Held::Alone(request.await?))
            });
        }
        let request = match load {
            Load::READER => locker.read(name),
            Load { weight, capacity, .. } => locker.permits(name, weight, capacity),
        };
        let request = asked!(request, ask);
        Ok(if at_once {
            request.attempt().await?.map(Held::Shared)
        } else {
            Some(Held::Shared(request.await?))
        })
    }

    async fn take_all(locker: &Locker, name: &str, load: Load, ask: &Ask) -> Result<Option<Held>> {
        let first = match load {
            Load::MUTEX => Wish::lock(name),
            Load::READER => Wish::read(name),
            Load { weight, capacity, .. } => Wish::permits(name, weight, capacity),
        };
        let wishes = std::iter::once(first).chain(ask.also.iter().map(Wish::from));
        let request = asked!(locker.lock_all(wishes), ask);
        Ok(if ask.wait == Some(Duration::ZERO) {
            request.attempt().await?.map(Held::Many)
        } else {
            Some(Held::Many(request.await?))
        })
    }

    /// How long it lasts if no renewal succeeds any more.
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Held::Alone(it) => it.remaining(),
            Held::Shared(it) => it.remaining(),
            Held::Many(it) => it.remaining(),
            Held::Leads(it) => it.remaining(),
        }
    }

    /// The fence of the lock with this name.
    pub(crate) fn fence(&self, name: &str) -> String {
        match self {
            Held::Alone(it) => it.fence().to_string(),
            Held::Shared(it) => it.fence().to_string(),
            Held::Many(it) => {
                let shared = || it.shared_fence(name).map(|it| it.to_string());
                it.fence(name).map(|it| it.to_string()).or_else(shared).unwrap_or_default()
            }
            Held::Leads(it) => it.term().to_string(),
        }
    }

    /// The fences of all, where there are several.
    pub(crate) fn fences(&self) -> Option<BTreeMap<String, String>> {
        let Held::Many(all) = self else { return None };
        Some(all.keys().map(|it| (it.to_string(), self.fence(it.as_str()))).collect())
    }

    /// Resolves when it is lost.
    pub(crate) fn lost(&self) -> Loss {
        match self {
            Held::Alone(it) => Box::pin(it.lost()),
            Held::Shared(it) => Box::pin(it.lost()),
            Held::Many(it) => Box::pin(it.lost()),
            Held::Leads(it) => match it.lost() {
                Ok(lost) => Box::pin(lost),
                Err(_) => Box::pin(std::future::ready(LostReason::Closed)),
            },
        }
    }

    /// Give it back. What the store does not confirm ends with its ttl.
    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Held::Alone(it) => it.release().await,
            Held::Shared(it) => it.release().await,
            Held::Many(it) => it.release().await,
            Held::Leads(it) => it.resign().await,
        }
    }
}

impl Held {
    /// Give it back without waiting for the store. What goes on meanwhile keeps its room.
    pub(crate) fn release_and(self, room: OwnedSemaphorePermit) {
        let mut releasing = Box::pin(async move {
            // What the store does not confirm ends with its ttl.
            let _ = self.release().await;
            drop(room);
        });
        // Most often the next client has it now, and nothing is left to do.
        let mut here = Context::from_waker(Waker::noop());
        if releasing.as_mut().poll(&mut here).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(releasing);
        }
    }
}

/// One word for programs.
pub(crate) fn word(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::Taken => "taken",
        LostReason::MaxHold => "max_hold",
        LostReason::Closed => "closing",
        _ => "released",
    }
}
