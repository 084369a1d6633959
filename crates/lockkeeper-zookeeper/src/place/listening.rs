//! What a place listens to: while it waits those who keep it out, while it holds its own node and those who come.
//!
//! A watch of a line tells of whoever comes or goes, once. So a holder watches the line only until somebody wants in; from
//! then on it watches its own node, whose end is all that is left to hear of.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::{LISTENING, ZooKeeperPlace};
use crate::session::Session;
use crate::wake::Watch;

/// Where several share, many come and go that want nothing of us: the line is not looked at more often than this.
const PACE: Duration = Duration::from_millis(50);

impl ZooKeeperPlace {
    /// Resolves when asking again is worthwhile.
    pub(super) async fn told(&mut self, session: &Session) {
        if self.counter.is_none() {
            return self.heard().await;
        }
        // While we hold: until somebody wants in, or our node is gone, or that is in doubt.
        loop {
            if self.watches.is_empty() && !self.listen(session).await {
                return;
            }
            self.heard().await;
            if !self.is_alone() {
                self.store.clock.sleep(PACE).await;
            }
            self.watches.clear();
        }
    }

    /// Resolves when one of our watches tells.
    async fn heard(&mut self) {
        let watches = &mut self.watches;
        poll_fn(|cx| {
            let told = watches.iter_mut().any(|it| it.poll_told(cx).is_ready());
            if told { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Look, and watch what is to come. `false` if our node is gone, somebody wants in now, or nobody answered.
    async fn listen(&mut self, session: &Session) -> bool {
        let Some(node) = &self.node else { return false };
        let path = if self.wanted { self.path(node) } else { self.folder.clone() };
        let listed = session.client.list_and_watch_children(&path);
        let Ok(Ok((names, watcher))) = self.store.call(session, LISTENING, listed).await else {
            self.called = false;
            return false;
        };
        if !self.wanted && self.look(names).is_none_or(|it| it.wanted) {
            return false;
        }
        self.watches = vec![Watch::new(watcher, &self.store.events)];
        true
    }
}
