//! Being told: one-shot watches of single nodes, which the client sets again after a lost connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use zookeeper_client::{EventType, OneshotWatcher};

/// A watch that tells once. Dropping it ends it.
pub(crate) struct Watch {
    /// `None` once it has told.
    event: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("told", &self.event.is_none()).finish()
    }
}

impl Watch {
    pub(crate) fn new(watcher: OneshotWatcher, events: &Arc<AtomicU64>) -> Self {
        let events = events.clone();
        let event = async move {
            if watcher.changed().await.event_type != EventType::Session {
                events.fetch_add(1, Ordering::Relaxed);
            }
        };
        Watch { event: Some(Box::pin(event)) }
    }

    /// A watch that is looked at and not waited for, and whose event is not counted.
    pub(crate) fn unheard(watcher: OneshotWatcher) -> Self {
        Watch { event: Some(Box::pin(async move { drop(watcher.changed().await) })) }
    }

    /// Whether it has told.
    pub(crate) fn has_told(&mut self) -> bool {
        self.poll_told(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Ready when it has told. The end of the session tells, too.
    pub(crate) fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(event) = &mut self.event else {
            return Poll::Ready(());
        };
        if event.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.event = None;
        Poll::Ready(())
    }
}
