//! How one waits for whoever stands before it on PostgreSQL: for its advisory lock, in shared mode.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::fault::{Result, Trouble};
use super::keeper::Keeper;
use super::session::{Param, Session};
use crate::ahead::{Chairs, Stand, has_room};

/// How old the snapshot of one that waits may become, and how many in a row make a statement.
const SPAN: &str = "250ms";
const SPANS: i32 = 6;
const STATEMENT: Duration = Duration::from_millis(1500);

/// The server ends a statement that takes longer than that.
const GRACE: &str = "10s";

/// Connections that are open, and the most that may be.
const ROOM: &str = "SELECT (SELECT sum(numbackends) FROM pg_stat_database)::bigint, \
                    current_setting('max_connections')::bigint";

impl Stand for Keeper {
    type Chair = Session;
    type Ahead = i64;

    fn chairs(&self) -> &Chairs<Session> {
        &self.way().shared.chairs
    }

    async fn open(&self, wished: usize) -> Option<Session> {
        self.try_open(wished).await.ok().flatten()
    }

    async fn stand(&self, chair: &Session, ahead: &i64) -> Option<bool> {
        let shared = &self.way().shared;
        let params: [Param<'_>; 2] = [(ahead, Type::INT8), (&SPANS, Type::INT4)];
        let (rows, _) = tokio::select! {
            biased;
            answer = chair.query(&shared.sql.stand, &params) => answer.ok()?,
            () = shared.clock.sleep(STATEMENT + shared.options.common.timeout) => return None,
        };
        rows.first()?.try_get(0).ok()
    }
}

impl Keeper {
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
        let set = format!("SET lock_timeout = '{SPAN}'; SET statement_timeout = '{GRACE}'");
        shared.in_time(session.client.batch_execute(&set)).await?;
        Ok(Some(session))
    }
}
