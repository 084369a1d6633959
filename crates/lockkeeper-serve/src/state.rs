//! What all requests share.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Clock, Locker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::alarm::Alarms;
use crate::answer::{Refusal, Result};
use crate::doubt::Doubts;
use crate::hot::HotNames;
use crate::look::StoreHealth;
use crate::options::Limits;
use crate::peer::{Peer, ended};
use crate::secret::Secret;
use crate::tokens::Tokens;
use crate::watch::Watch;

/// Yields `OpenMetrics` text.
#[derive(Clone)]
pub(crate) struct Metrics(pub(crate) Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Hears of every break.
#[derive(Clone)]
pub(crate) struct Told(pub(crate) Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// Browsers that listen at a time.
const BROWSERS_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) locker: Locker,
    pub(crate) inspect: Arc<dyn DynInspect>,
    pub(crate) clock: Clock,
    pub(crate) token: Secret,
    /// What the cookie of a browser holds, and its name.
    pub(crate) session: Secret,
    pub(crate) cookie: String,
    pub(crate) watch: Watch,
    pub(crate) hot: Option<HotNames>,
    pub(crate) doubts: Option<Doubts>,
    /// How the store is called, without secrets.
    pub(crate) store: String,
    pub(crate) allow_locks: bool,
    pub(crate) allow_break: bool,
    pub(crate) on_break: Option<Told>,
    /// Every `Host` that is ours, in small letters. Not asked on a unix socket.
    pub(crate) hosts: Vec<String>,
    pub(crate) on_a_socket: bool,
    pub(crate) limits: Limits,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) tokens: Tokens,
    pub(crate) alarms: Alarms,
    pub(crate) store_health: StoreHealth,
    streams: Arc<Semaphore>,
    browsers: Arc<Semaphore>,
    /// Turns true when the server ends.
    closing: watch::Sender<bool>,
}

impl State {
    pub(crate) fn new(locker: Locker, inspect: Arc<dyn DynInspect>, token: Secret, session: Secret) -> Self {
        let (limits, store) = (Limits::default(), locker.profile().name.to_owned());
        State {
            watch: Watch::new(inspect.clone()).beside(&locker),
            locker,
            hot: None,
            doubts: None,
            inspect,
            clock: Clock::boot(),
            token,
            session,
            cookie: "lockkeeper".into(),
            store,
            allow_locks: false,
            allow_break: false,
            on_break: None,
            hosts: Vec::new(),
            on_a_socket: false,
            limits,
            metrics: None,
            tokens: Tokens::default(),
            alarms: Alarms::default(),
            store_health: StoreHealth::default(),
            streams: Arc::new(Semaphore::new(limits.streams)),
            browsers: Arc::new(Semaphore::new(BROWSERS_MAX)),
            closing: watch::Sender::new(false),
        }
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.streams = Arc::new(Semaphore::new(limits.streams));
    }

    /// Room for one more who holds or waits.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit> {
        let most = self.limits.streams;
        self.streams.clone().try_acquire_owned().map_err(|_| {
            Refusal::busy(format!("{most} locks are held or waited for over HTTP already, which is the most"))
        })
    }

    /// Room for one more browser.
    pub(crate) fn admit_browser(&self) -> Result<OwnedSemaphorePermit> {
        self.browsers
            .clone()
            .try_acquire_owned()
            .map_err(|_| Refusal::busy(format!("{BROWSERS_MAX} browsers listen already, which is the most")))
    }

    /// Tell whoever wants to know of a break.
    pub(crate) fn tell(&self, text: &str) {
        if let Some(told) = &self.on_break {
            (told.0)(text);
        }
    }

    /// What a client waits for, unless the server ends or the client goes away before it is there.
    pub(crate) async fn waits<T>(&self, peer: Option<&Peer>, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.closing() => Err(Refusal::closing()),
            () = ended(peer) => Err(Refusal::invalid(
                "the connection was closed from your side while the lock was waited for: keep it open until you let go",
            )),
        }
    }

    /// Resolves when nobody holds or waits any more.
    pub(crate) async fn emptied(&self) {
        let most = u32::try_from(self.limits.streams).unwrap_or(u32::MAX);
        // It is never closed.
        let _ = self.streams.acquire_many(most).await;
    }

    /// Resolves when the server ends.
    pub(crate) fn closing(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut closing = self.closing.subscribe();
        async move {
            // The sender lives as long as the state; if it is gone, so is the server.
            let _ = closing.wait_for(|it| *it).await;
        }
    }

    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }
}
