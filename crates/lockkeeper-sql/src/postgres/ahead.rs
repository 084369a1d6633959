//! How one waits for whoever stands before it on PostgreSQL: for its advisory lock, in shared mode.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::fault::{Result, Trouble};
use super::keeper::Keeper;
use super::session::{Param, Session};
use crate::ahead::{Chairs, Stand, Stood, has_room};

/// How old the snapshot of one that waits may become, and how many in a row make a statement. Less than the second after
/// which a server looks for deadlocks and tells of waits; more, because each end of a span costs as much as a statement.
const SPAN: Duration = Duration::from_millis(900);
/// Each statement of one wait has twice as many as the one before: a long wait costs few of them, and whoever stops to wait
/// gives its connection back after as long again at most.
const SPANS_FIRST: u32 = 2;
const SPANS_MOST: u32 = 32;
/// Whoever is near the front waits for one statement. What stays longer than that is a line that moves slowly, where it is
/// cheaper to be called: that costs nothing until it happens.
const STATEMENTS_NEAR: u32 = 1;

/// The server ends a statement that takes longer than that.
const GRACE: &str = "60s";

/// Connections that are open, and the most that may be.
const ROOM: &str = "SELECT (SELECT sum(numbackends) FROM pg_stat_database)::bigint, \
                    current_setting('max_connections')::bigint";

/// Who stands before us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The number of its bell.
    pub(super) bell: i64,
    /// We are near enough to the front to be called.
    pub(super) is_near: bool,
}

impl Stand for Keeper {
    type Chair = Session;
    type Ahead = Ahead;

    fn chairs(&self) -> &Chairs<Session> {
        &self.way().shared.chairs
    }

    async fn open(&self, wished: usize) -> Option<Session> {
        self.try_open(wished).await.ok().flatten()
    }

    async fn stand(&self, chair: &Session, ahead: &Ahead, before: u32) -> Stood {
        match self.try_stand(chair, ahead.bell, before).await {
            Some(true) => Stood::Gone,
            Some(false) if ahead.is_near && STATEMENTS_NEAR <= before + 1 => Stood::Enough,
            Some(false) => Stood::Still,
            None => Stood::Useless,
        }
    }
}

impl Keeper {
    /// Whether that one has gone, if there is an answer.
    async fn try_stand(&self, chair: &Session, bell: i64, before: u32) -> Option<bool> {
        let shared = &self.way().shared;
        let spans = SPANS_FIRST.checked_shl(before).unwrap_or(SPANS_MOST).min(SPANS_MOST);
        let count = i32::try_from(spans).unwrap_or(i32::MAX);
        let params: [Param<'_>; 2] = [(&bell, Type::INT8), (&count, Type::INT4)];
        let (rows, _) = tokio::select! {
            biased;
            answer = chair.query(&shared.sql.stand, &params) => answer.ok()?,
            () = shared.clock.sleep(SPAN * spans + shared.options.common.timeout) => return None,
        };
        rows.first()?.try_get(0).ok()
    }

    async fn try_open(&self, wished: usize) -> Result<Option<Session>> {
        let shared = &self.way().shared;
        let asking = async {
            let session = self.way().session().await?;
            session.query(ROOM, &[]).await.map_err(Trouble::from)
        };
        let (rows, _) = shared.in_time(asking).await?;
        let number = |at: usize| {
            rows.first().and_then(|it| it.try_get::<_, i64>(at).ok()).and_then(|it| u64::try_from(it).ok())
        };
        let (Some(open), Some(most)) = (number(0), number(1)) else { return Ok(None) };
        if !has_room(open, most, wished) {
            return Ok(None);
        }
        let session = shared.dialer.dial(None).await?;
        if !session.is_ours() {
            return Ok(None);
        }
        let set = format!("SET lock_timeout = '{}ms'; SET statement_timeout = '{GRACE}'", SPAN.as_millis());
        shared.in_time(session.client.batch_execute(&set)).await?;
        Ok(Some(session))
    }
}
