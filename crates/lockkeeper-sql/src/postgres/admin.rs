//! The operator's view: who holds what and who waits, and breaking a lock by hand.

use std::time::Duration;

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::{Listed, gather, gather_of};
use lockkeeper_core::{Fence, Key, Label};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::Trouble;
use super::{Postgres, Store};
use crate::load::load_of;
use crate::name::{hash, span};

const COLUMNS: &str = "c.held, c.counter, c.since, c.expires, c.weight, c.host, c.pid, c.owner, c.note, \
                       c.capacity";

impl Inspect for Postgres {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let (store, schema) = (&self.0, &self.0.links.shared.options.schema);
        let sql = format!(
            "SELECT l.name, n.now, {COLUMNS} FROM {schema}.lockkeeper_claim AS c \
             JOIN {schema}.lockkeeper_lock AS l ON l.lock = c.lock \
             CROSS JOIN (SELECT {schema}.lockkeeper_now_3() AS now OFFSET 0) AS n \
             WHERE starts_with(l.name, $1) AND c.expires > n.now ORDER BY l.name COLLATE \"C\", c.seq"
        );
        Ok(gather(store.lines("listing the locks", &sql, &[(&prefix, Type::TEXT)]).await?))
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let (store, schema) = (&self.0, &self.0.links.shared.options.schema);
        let sql = format!(
            "SELECT l.name, n.now, {COLUMNS} FROM {schema}.lockkeeper_claim AS c \
             JOIN {schema}.lockkeeper_lock AS l ON l.lock = c.lock \
             CROSS JOIN (SELECT {schema}.lockkeeper_now_3() AS now OFFSET 0) AS n \
             WHERE l.lock = $1 AND c.expires > n.now ORDER BY c.seq"
        );
        let rows = store.lines("showing the lock", &sql, &[(&hash(key).as_slice(), Type::BYTEA)]).await?;
        Ok(gather_of(key, rows))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let (store, schema) = (&self.0, &self.0.links.shared.options.schema);
        let sql = format!(
            "SELECT $2::text, {schema}.lockkeeper_now_3(), {COLUMNS} FROM {schema}.lockkeeper_break_3($1) AS c"
        );
        let lock = hash(key);
        let params = [(&lock.as_slice() as _, Type::BYTEA), (&key.as_str() as _, Type::TEXT)];
        let rows = store.lines("breaking the lock", &sql, &params).await?;
        Ok(gather_of(key, rows).map(|it| it.holders).unwrap_or_default())
    }

    /// One statement. It locks the line before it removes the holder, as everybody does who changes a line; whoever comes next
    /// is let in by the same function as after a release, which finds the holder gone.
    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        let Ok(counter) = i64::try_from(fence.counter()) else { return Ok(Broken::Changed) };
        let (store, schema) = (&self.0, &self.0.links.shared.options.schema);
        let sql = format!(
            "WITH ready AS MATERIALIZED (SELECT {schema}.lockkeeper_settings_3()), line AS MATERIALIZED (\
             SELECT l.lock FROM ready, {schema}.lockkeeper_lock AS l WHERE l.lock = $1 FOR UPDATE OF l), gone AS (\
             DELETE FROM {schema}.lockkeeper_claim AS c USING line WHERE c.lock = line.lock AND c.held \
             AND c.counter = $3 AND c.expires > {schema}.lockkeeper_now_3() RETURNING c.*) \
             SELECT $2::text, {schema}.lockkeeper_now_3(), {COLUMNS}, \
             {schema}.lockkeeper_leave_3(c.lock, c.id, c.seq, 0), \
             CASE WHEN c.wake IS NOT NULL THEN pg_notify(c.wake, encode(c.id, 'hex')) END FROM gone AS c"
        );
        let lock = hash(key);
        let params = [
            (&lock.as_slice() as _, Type::BYTEA),
            (&key.as_str() as _, Type::TEXT),
            (&counter as _, Type::INT8),
        ];
        let rows = store.lines("breaking the lock", &sql, &params).await?;
        Ok(only_holder(gather_of(key, rows)))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        super::doctor::examine(&self.0).await
    }
}

/// The one who lost it, if somebody did.
fn only_holder(info: Option<LockInfo>) -> Broken {
    info.and_then(|it| it.holders.into_iter().next()).map_or(Broken::Changed, Broken::Lost)
}

impl Store {
    async fn lines(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[super::session::Param<'_>],
    ) -> Result<Vec<Listed>> {
        let rows = self.links.rows(doing, sql, params).await?;
        let rows: std::result::Result<Vec<_>, _> = rows.iter().map(listed).collect();
        rows.map_err(|it| Trouble::from(it).fault(doing))
    }
}

fn listed(row: &Row) -> std::result::Result<Listed, tokio_postgres::Error> {
    let (now, counter, since, expires): (i64, i64, i64, i64) =
        (row.try_get(1)?, row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let (held, weight, pid): (bool, i64, i64) = (row.try_get(2)?, row.try_get(6)?, row.try_get(8)?);
    let since: Duration = span(now.saturating_sub(since));
    let pid = u32::try_from(pid).unwrap_or(0);
    let label = Label::new(row.try_get::<_, String>(7)?, pid, row.try_get(9)?, row.try_get(10)?);
    let occupant = Occupant::new(label, span(expires.saturating_sub(now)))
        .since(Some(since))
        .fence((held && counter != 0).then(|| Fence::of_grant(counter.unsigned_abs())))
        .load(load_of(weight, row.try_get(11)?));
    Ok(Listed::new(row.try_get::<_, String>(0)?, held, occupant))
}
