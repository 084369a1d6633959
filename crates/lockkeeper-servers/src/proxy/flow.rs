//! Who spoke last on a connection, how long it was silent, and whether the network has forgotten it for that.

use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_core::Moment;
use tokio::sync::watch;

use super::{Direction, Shared};

/// One connection, as a firewall remembers it.
pub(super) struct Flow<'a> {
    shared: &'a Shared,
    /// When something was last said on it, in either direction.
    heard: watch::Sender<Moment>,
    forgotten: AtomicBool,
    /// The server was asked something, and has not answered yet.
    asked: AtomicBool,
}

impl<'a> Flow<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        let heard = watch::Sender::new(shared.clock.now());
        Flow { shared, heard, forgotten: AtomicBool::new(false), asked: AtomicBool::new(false) }
    }

    /// Note that something is said now. The moment is returned.
    pub(super) fn hear(&self) -> Moment {
        let now = self.shared.clock.now();
        self.heard.send_replace(now);
        now
    }

    /// Note that something is forwarded.
    pub(super) fn pass(&self, direction: Direction) {
        let asks = direction == Direction::ToServer;
        if self.asked.swap(asks, Ordering::SeqCst) && !asks {
            self.shared.count(|it| it.round_trips += 1);
        }
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Wait until it was silent for too long, and forget it. Never returns.
    pub(super) async fn watch<T>(&self) -> T {
        let (mut spans, mut heard) = (self.shared.idle_max.subscribe(), self.heard.subscribe());
        loop {
            let since = *heard.borrow_and_update();
            let due = spans.borrow_and_update().map_or(Moment::NEVER, |it| since.after(it));
            tokio::select! {
                () = self.shared.clock.sleep_until(due) => break,
                // Both senders live as long as we do.
                _ = heard.changed() => {}
                _ = spans.changed() => {}
            }
        }
        self.forgotten.store(true, Ordering::SeqCst);
        self.shared.count(|it| it.forgotten += 1);
        std::future::pending().await
    }
}
