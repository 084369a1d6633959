//! The operator's view: the server's own table of locks, with the names that stand behind its numbers.

use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::{Listed, gather, gather_of};
use lockkeeper_core::{Fence, Key, Label};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::NAME;
use super::super::fault::Trouble;
use super::super::session::{Param, Session};
use super::PostgresSessions;
use super::Store;
use crate::name::{hash, span};

const BREAKING: &str = "breaking the lock";

/// How often it is looked whether a broken lock was given back.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Inspect for PostgresSessions {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let sql = self.0.lines("starts_with(n.name, $1)");
        Ok(gather(self.0.listed("listing the locks", &sql, &[(&prefix, Type::TEXT)]).await?))
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let (sql, lock) = (self.0.lines("n.lock = $1"), hash(key));
        let params: [Param<'_>; 1] = [(&lock.as_slice(), Type::BYTEA)];
        Ok(gather_of(key, self.0.listed("showing the lock", &sql, &params).await?))
    }

    /// The holder's session is told to give it back, which it does by its next beat; a holder that does not hear is
    /// ended by the server within its ttl.
    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        self.0.break_lock(key).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        super::doctor::examine(&self.0).await
    }
}

impl Store {
    /// Who holds and who waits, in the order of the line.
    fn lines(&self, which: &str) -> String {
        let schema = &self.options.schema;
        format!(
            "SELECT n.name, l.granted, m.host, m.pid, m.ttl, o.owner, o.note, o.counter, \
             (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - CASE WHEN l.granted THEN o.since \
             ELSE (extract(epoch FROM l.waitstart) * 1000000)::bigint END, l.pid, n.number \
             FROM pg_locks AS l JOIN {schema}.lockkeeper_session_name AS n ON n.number = l.objid::bigint \
             JOIN {schema}.lockkeeper_session_member AS m ON m.backend = l.pid \
             LEFT JOIN {schema}.lockkeeper_session_note AS o ON o.number = n.number AND o.backend = l.pid AND l.granted \
             WHERE l.locktype = 'advisory' AND l.objsubid = 2 \
             AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) \
             AND l.classid = to_regclass('{schema}.lockkeeper_session_name')::oid AND {which} \
             ORDER BY n.name COLLATE \"C\", l.granted DESC, l.waitstart"
        )
    }

    /// Run statements of an operator on a connection that is closed afterwards.
    pub(super) async fn operator(&self, doing: &'static str) -> Result<Session> {
        self.dial(None).await.map_err(|it| it.fault(doing))
    }

    pub(super) async fn rows(
        &self,
        session: &Session,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let answer = self.in_time(session.query(sql, params)).await;
        answer.map(|it| it.0).map_err(|it| it.fault(doing))
    }

    async fn listed(&self, doing: &'static str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Listed>> {
        let session = self.operator(doing).await?;
        let rows = self.rows(&session, doing, sql, params).await?;
        let listed: std::result::Result<Vec<_>, _> = rows.iter().map(listed).collect();
        listed.map_err(|it| Trouble::from(it).fault(doing))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let (schema, session, lock) = (&self.options.schema, self.operator(BREAKING).await?, hash(key));
        let sql = format!("{} LIMIT 1000", self.lines("n.lock = $1 AND l.granted"));
        let params: [Param<'_>; 1] = [(&lock.as_slice(), Type::BYTEA)];
        let holders = self.rows(&session, BREAKING, &sql, &params).await?;
        let mut broken = Vec::new();
        for holder in &holders {
            let read = |it: &Row| {
                Ok::<_, tokio_postgres::Error>((listed(it)?, it.try_get(9)?, it.try_get(10)?, it.try_get(4)?))
            };
            let (listed, backend, number, ttl): (Listed, i32, i64, i64) =
                read(holder).map_err(|it| Trouble::from(it).fault(BREAKING))?;
            let tell = format!(
                "INSERT INTO {schema}.lockkeeper_session_broken VALUES ($1, $2) ON CONFLICT DO NOTHING"
            );
            let params: [Param<'_>; 2] = [(&number, Type::INT8), (&backend, Type::INT4)];
            self.rows(&session, BREAKING, &tell, &params).await?;
            self.until_given_back(&session, &params, span(ttl)).await?;
            broken.push(listed.occupant);
        }
        Ok(broken)
    }

    /// Wait until this session has given this lock back. It hears by its next beat, or is silent and ended.
    async fn until_given_back(&self, session: &Session, params: &[Param<'_>], ttl: Duration) -> Result<()> {
        let schema = &self.options.schema;
        let sql = format!(
            "SELECT 1 FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted \
             AND l.classid = to_regclass('{schema}.lockkeeper_session_name')::oid \
             AND l.objid::bigint = $1 AND l.pid = $2"
        );
        let give_up = self.clock.now().after(ttl * 2 + self.options.common.timeout);
        loop {
            if self.rows(session, BREAKING, &sql, params).await?.is_empty() {
                break;
            }
            if give_up < self.clock.now() {
                let what = "the holder was told, and still has it after two of its ttls";
                return Err(Fault::transient(NAME, BREAKING, what));
            }
            self.clock.sleep(LOOK_EVERY).await;
        }
        let done = format!(
            "DELETE FROM {schema}.lockkeeper_session_broken AS b WHERE b.number = $1 AND b.backend = $2"
        );
        self.rows(session, BREAKING, &done, params).await.map(drop)
    }
}

fn listed(row: &Row) -> std::result::Result<Listed, tokio_postgres::Error> {
    let (pid, ttl): (i64, i64) = (row.try_get(3)?, row.try_get(4)?);
    let (counter, since): (Option<i64>, Option<i64>) = (row.try_get(7)?, row.try_get(8)?);
    let pid = u32::try_from(pid).unwrap_or(0);
    let label = Label::new(row.try_get::<_, String>(2)?, pid, row.try_get(5)?, row.try_get(6)?);
    let fence = counter.and_then(|it| u64::try_from(it).ok()).map(Fence::of_grant);
    let occupant = Occupant::new(label, span(ttl)).since(since.map(span)).fence(fence);
    Ok(Listed::new(row.try_get::<_, String>(0)?, row.try_get(1)?, occupant))
}
