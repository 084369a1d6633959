//! How `changed` resolves: MySQL cannot call anybody. Whoever waits for the one before it (see `crate::ahead`) looks when
//! that one has gone; whoever cannot looks at the line now and then.
//!
//! Whoever holds is not called either. A lock that is idle (a warm lock) looks ten times a second whether somebody has come.
//!
//! A look takes no lock and writes nothing. The next in line reads its own row, at a pace that follows how long others
//! hold; those behind look less often, and count who stands before them.

use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::Result;
use lockkeeper_core::kit::{Pace, locked};

use super::herald;
use super::line::{Seen, View, What};
use super::place::{MysqlPlace, Whereabouts};
use crate::ahead::Watch;

/// Whoever is idle looks so often. All of a process look at the same moments, and share a statement.
const IDLE_LOOKS: Duration = Duration::from_millis(100);
/// The procedure has said that nobody can be let in: it is asked again after this long at the earliest.
const ASK_PAUSE: Duration = Duration::from_millis(20);

impl MysqlPlace {
    /// Pause and look until asking is worthwhile.
    pub(super) async fn look_until_changed(&mut self) {
        match self.whereabouts {
            Whereabouts::Waiting => self.look_while_waiting().await,
            Whereabouts::Alone | Whereabouts::Held if !self.knows_wanted => self.look_while_idle().await,
            // There is nothing left to hear but that it is lost, which the renewals tell.
            _ => std::future::pending().await,
        }
    }

    async fn look_while_waiting(&mut self) {
        let clock = self.store.links.clock.clone();
        let most = self.claim.ttl / 3;
        while self.found.is_none() && !self.must_ask {
            let now = clock.now();
            let watches = self.watch.as_ref().is_some_and(Watch::is_on);
            let still = now - self.moved_at;
            let mut pause = if watches { most } else { self.pace.pause(still, most) };
            if self.herald.as_ref().is_some_and(|it| it.is_followed) {
                pause = pause.min(herald::pause(still));
            }
            tokio::select! {
                biased;
                () = self.bell.heard() => {}
                () = clock.sleep(pause.min((self.expires_at - now).max(Pace::SHORTEST))) => {}
            }
            let called = self.bell.is_called();
            let near = called || (self.before == 0 && clock.now() < self.expires_at);
            let seen = match self.glimpsed(called) {
                Some(seen) => Ok(seen),
                None => self.look(if near { View::Near } else { View::Far }).await,
            };
            match seen {
                Ok(seen) => self.understand(seen),
                // Let the next `turn` meet the fault: it can tell it.
                Err(_) => clock.sleep(most).await,
            }
            // Whoever stood before us has gone; if it is not our turn, the procedure tells who stands there now.
            self.must_ask |= called && self.found.is_none();
        }
        if self.found.is_none() {
            clock.sleep_until(self.asked_at.after(ASK_PAUSE)).await;
        }
    }

    /// Until somebody wants in, or nothing of us is there, or nobody answers: whoever is deaf must not be idle.
    async fn look_while_idle(&mut self) {
        let clock = self.store.links.clock.clone();
        loop {
            clock.sleep_until(next_look(clock.now())).await;
            let view = if self.whereabouts == Whereabouts::Alone { View::Alone } else { View::Near };
            let seen = self.store.look_idle(self.mark(view)).await;
            // Who is not answered does not know that anybody came.
            self.called = seen.is_ok();
            if !seen.is_ok_and(|it| matches!(it.what, What::Held { wanted: false, .. })) {
                return;
            }
        }
    }

    /// What was seen when whoever stood before us had gone, if it says that we hold. It was asked for before that, so a
    /// part of our time may be over.
    fn glimpsed(&self, called: bool) -> Option<Seen> {
        let seen = called.then(|| locked(&self.glimpse).take()).flatten()?;
        let What::Held { left, .. } = seen.what else { return None };
        let age = self.store.links.clock.now() - seen.sent_at;
        (self.claim.ttl / 2 + age <= left).then_some(seen)
    }

    async fn look(&self, view: View) -> Result<Seen> {
        self.store.look(self.store.links.commands(), self.mark(view)).await
    }
}

/// When those who are idle look the next time.
fn next_look(now: Moment) -> Moment {
    let every = u64::try_from(IDLE_LOOKS.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos((now.as_nanos() / every + 1) * every)
}
