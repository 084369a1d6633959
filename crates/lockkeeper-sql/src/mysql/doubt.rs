//! Sessions that were given up while a statement may have been on its way: they are ended at the server before anything
//! else is asked, so that no take arrives after its own release.
//!
//! A user may end its own sessions. One that ended by itself is not found any more; a number that a restarted server has
//! given to another session is told by where that one comes from. Where a proxy answers for the server, no session is
//! ours to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::locked;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

/// The most that are remembered. Each is ended by the next statement, so there are few.
const MOST: usize = 16;

/// How long to wait for their end. A session that waits for a lock or for us ends at once.
const WITHIN: Duration = Duration::from_secs(1);

/// A session as the server knows it: its number, and the address that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    id: u32,
    host: String,
}

impl Identity {
    /// Of this session; `None` if somebody stands between.
    pub(super) async fn of(conn: &mut Conn) -> Result<Option<Self>, mysql_async::Error> {
        let sql = "SELECT id, host FROM information_schema.processlist WHERE id = CONNECTION_ID()";
        let found: Option<(u32, String)> = conn.query_first(sql).await?;
        Ok(found.filter(|it| it.0 == conn.id()).map(|(id, host)| Identity { id, host }))
    }
}

/// The sessions of which nobody knows what they still do.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Whether there are some, so that most need not take the lock under which alone it is written. Release and Acquire: whoever asks
    /// after one was noted sees that.
    any: AtomicBool,
    sessions: Mutex<Vec<Identity>>,
}

impl Doubts {
    fn sessions(&self) -> MutexGuard<'_, Vec<Identity>> {
        locked(&self.sessions)
    }

    /// This session was given up.
    pub(super) fn add(&self, identity: Option<&Identity>) {
        let Some(identity) = identity else { return };
        let mut sessions = self.sessions();
        if sessions.len() < MOST && !sessions.contains(identity) {
            sessions.push(identity.clone());
        }
        self.any.store(true, Ordering::Release);
    }

    /// End all of them by way of this session. Best effort: what cannot be ended holds up nobody for long.
    pub(super) async fn settle(&self, clock: &Clock, by: &mut Conn) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let sessions = self.sessions().clone();
        let until = clock.now().after(WITHIN);
        for identity in &sessions {
            // A statement of ours is not interrupted; a fault here is met again by the one that follows.
            while end(by, identity).await && clock.now() < until {
                clock.sleep(Duration::from_millis(2)).await;
            }
        }
        let mut left = self.sessions();
        left.retain(|it| !sessions.contains(it));
        self.any.store(!left.is_empty(), Ordering::Release);
    }
}

/// End a session. `true` if it is still there.
async fn end(by: &mut Conn, Identity { id, host }: &Identity) -> bool {
    let sql = format!("SELECT host FROM information_schema.processlist WHERE id = {id}");
    let found: Option<String> = by.query_first(sql).await.ok().flatten();
    if found.as_ref() != Some(host) {
        return false;
    }
    // It may have ended meanwhile.
    let _ = by.query_drop(format!("KILL {id}")).await;
    true
}
