//! A ring on MariaDB: each process waits for the named lock of the one before it. A step costs two statements, and writes nothing.
//!
//! Every turn has a lock of its own. One session of each process holds that of its next turn, another waits for the turn
//! before that: were it the same session, the server would take a long ring for a deadlock.

use std::sync::Arc;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts};
use tokio::sync::Mutex;

use super::Member;
use crate::Answer;
use crate::rival::Rival;

/// One process.
#[derive(Clone)]
pub(crate) struct MariaDbRing {
    holds: Arc<Mutex<Conn>>,
    waits: Arc<Mutex<Conn>>,
    key: Arc<str>,
    count: u64,
    /// Our next turn, of all that there ever are.
    turn: u64,
}

impl MariaDbRing {
    pub(crate) async fn open(url: &str, key: &str, member: Member) -> Answer<Self> {
        let session = async || Answer::Ok(Arc::new(Mutex::new(Conn::new(Opts::from_url(url)?).await?)));
        let ring = MariaDbRing {
            holds: session().await?,
            waits: session().await?,
            key: key.into(),
            count: member.count.into(),
            turn: member.at.into(),
        };
        let mine = ring.lock(ring.turn);
        all_ones(&ring.holds, &format!("SELECT GET_LOCK({mine}, 0), 1")).await?;
        Ok(ring)
    }

    fn lock(&self, turn: u64) -> String {
        format!("'{}:{turn}'", self.key)
    }
}

/// Both did what they should.
async fn all_ones(session: &Mutex<Conn>, sql: &str) -> Answer<()> {
    let answer: Option<(Option<u8>, Option<u8>)> = session.lock().await.query_first(sql).await?;
    if answer == Some((Some(1), Some(1))) { Ok(()) } else { Err(format!("{sql}: {answer:?}").into()) }
}

impl Rival for MariaDbRing {
    type Taken = ();

    async fn take(&mut self, _key: &str) -> Answer<()> {
        let Some(before) = self.turn.checked_sub(1) else { return Ok(()) };
        let before = self.lock(before);
        all_ones(&self.waits, &format!("SELECT GET_LOCK({before}, 3600), RELEASE_LOCK({before})")).await
    }

    async fn give_back(&mut self, _token: ()) -> Answer<()> {
        let (mine, next) = (self.lock(self.turn), self.turn + self.count);
        self.turn = next;
        let next = self.lock(next);
        all_ones(&self.holds, &format!("SELECT GET_LOCK({next}, 0), RELEASE_LOCK({mine})")).await
    }
}
