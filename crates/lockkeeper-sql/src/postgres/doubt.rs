//! Sessions that were given up while a statement may have been on its way: they are ended at the server before anything
//! else is asked, so that no take arrives after its own release.
//!
//! A user may end its own sessions. One that ended by itself is not found any more; a number that the server has given
//! to another session since is told by when that one began. Behind a pooler no session is ours to end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::locked;
use tokio_postgres::types::Type;

use super::session::{Param, Session};

/// The most that are remembered. Each is ended by the next statement, so there are few.
const MOST: usize = 16;

/// How long to wait for their end. A session that waits for a lock or for us ends at once.
const WITHIN: Duration = Duration::from_secs(1);

/// End them. Answers how many are still there.
const END: &str = "SELECT count(pg_terminate_backend(a.pid)) FROM unnest($1, $2) AS d (pid, began), \
     pg_stat_get_activity(d.pid::integer) AS a WHERE extract(epoch FROM a.backend_start)::text = d.began";

/// Whether a session is at work.
const STATE: &str = "SELECT a.state = 'active' FROM pg_stat_get_activity($1::integer) AS a \
     WHERE extract(epoch FROM a.backend_start)::text = $2";

/// A session as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: i64,
    pub(crate) began: String,
}

impl Identity {
    /// Whether the server is busy with a statement of this session, as another session sees it: then it is slow and not
    /// out of reach.
    pub(crate) async fn is_at_work(&self, by: &Session) -> bool {
        let params: [Param<'_>; 2] = [(&self.pid, Type::INT8), (&self.began, Type::TEXT)];
        let answer = by.query(STATE, &params).await;
        answer.ok().and_then(|(rows, _)| rows.first()?.try_get(0).ok()).unwrap_or(false)
    }
}

/// The sessions of which nobody knows what they still do.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// Whether there are some, so that most need not take the lock under which alone it is written. Release and Acquire: whoever asks
    /// after one was noted sees that.
    any: AtomicBool,
    sessions: Mutex<Vec<Identity>>,
}

impl Doubts {
    /// This session was given up.
    pub(crate) fn add(&self, session: &Session) {
        let Some(identity) = &session.identity else { return };
        let mut sessions = locked(&self.sessions);
        if sessions.len() < MOST && !sessions.contains(identity) {
            sessions.push(identity.clone());
        }
        self.any.store(true, Ordering::Release);
    }

    /// End all of them by way of this session. Best effort: what cannot be ended holds up nobody for long.
    pub(crate) async fn settle(&self, clock: &Clock, by: &Session) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let sessions = locked(&self.sessions).clone();
        if by.is_ours() {
            tokio::select! {
                biased;
                () = end_all(clock, by, &sessions) => {}
                () = clock.sleep(WITHIN) => {}
            }
        }
        let mut left = locked(&self.sessions);
        left.retain(|it| !sessions.contains(it));
        self.any.store(!left.is_empty(), Ordering::Release);
    }
}

async fn end_all(clock: &Clock, by: &Session, sessions: &[Identity]) {
    let pids: Vec<i64> = sessions.iter().map(|it| it.pid).collect();
    let began: Vec<&str> = sessions.iter().map(|it| it.began.as_str()).collect();
    let params: [Param<'_>; 2] = [(&pids, Type::INT8_ARRAY), (&began, Type::TEXT_ARRAY)];
    // A fault here is met again by the statement that follows, which can tell it.
    while let Ok((rows, _)) = by.query(END, &params).await {
        if rows.first().and_then(|it| it.try_get::<_, i64>(0).ok()).unwrap_or(0) == 0 {
            return;
        }
        clock.sleep(Duration::from_millis(2)).await;
    }
}
