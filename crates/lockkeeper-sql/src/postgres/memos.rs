//! Memos: small values in a table of their own that outlive their writer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::memos::{Memo, Memos, Swap};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::fault::Trouble;
use super::session::Param;
use super::{NAME, Postgres};
use crate::name::{hash, micros_up};

const READING: &str = "reading a memo";
const WRITING: &str = "writing a memo";

/// An advisory lock for those who create the table at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_6d65_6d6f_7331;

/// The table for memos. It is made with the first memo, so that whoever has none needs none.
///
/// ```
/// assert!(lockkeeper_sql::postgres::memo_ddl("shop_locks").contains("shop_locks.lockkeeper_memo"));
/// ```
pub fn memo_ddl(schema: &str) -> String {
    format!(
        "CREATE SEQUENCE IF NOT EXISTS {schema}.lockkeeper_memo_version;\n\
         CREATE TABLE IF NOT EXISTS {schema}.lockkeeper_memo (\n    \
             key bytea PRIMARY KEY,\n    name text NOT NULL,\n    version bigint NOT NULL,\n    \
             value bytea NOT NULL,\n    expires bigint NOT NULL\n);\n\
         CREATE INDEX IF NOT EXISTS lockkeeper_memo_expires ON {schema}.lockkeeper_memo (expires);\n"
    )
}

impl Postgres {
    fn memo_schema(&self) -> &str {
        &self.0.links.shared.options.schema
    }

    async fn memo_rows(&self, doing: &'static str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.0.links.rows(doing, sql, params).await
    }

    async fn has_memos(&self, doing: &'static str) -> Result<bool> {
        if self.0.has_memos.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let table = format!("{}.lockkeeper_memo", self.memo_schema());
        let rows =
            self.memo_rows(doing, "SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)]).await?;
        let there = rows.first().is_some_and(|it| it.try_get(0).unwrap_or(false));
        self.0.has_memos.store(there, Ordering::Relaxed);
        Ok(there)
    }

    /// The table is there, or is made.
    async fn prepare_memos(&self) -> Result<()> {
        if self.has_memos(WRITING).await? {
            return Ok(());
        }
        if !self.0.links.shared.options.common.create {
            let what = format!(
                "the schema `{}` lacks the table of memos and `create=no` was chosen; run the DDL in docs/backends/postgres.md",
                self.memo_schema()
            );
            return Err(Fault::permanent(NAME, WRITING, what));
        }
        let create = memo_ddl(self.memo_schema());
        let create =
            format!("DO $create$ BEGIN PERFORM pg_advisory_xact_lock({CREATING}); {create} END $create$");
        self.memo_rows(WRITING, &create, &[]).await?;
        Ok(())
    }

    /// What there is after somebody else has written.
    async fn conflict(&self, key: &Key) -> Result<Swap> {
        Ok(Swap::Conflict(Memos::read(self, key).await?))
    }
}

impl Memos for Postgres {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        if !self.has_memos(READING).await? {
            return Ok(None);
        }
        let sql = format!(
            "SELECT version, value FROM {schema}.lockkeeper_memo WHERE key = $1 AND {schema}.lockkeeper_now_3() < expires",
            schema = self.memo_schema()
        );
        let rows = self.memo_rows(READING, &sql, &[(&hash(key).as_slice(), Type::BYTEA)]).await?;
        let memo = |row: &Row| Ok(Memo::new(row.try_get::<_, i64>(0)?.unsigned_abs(), row.try_get(1)?));
        let memo = rows.first().map(memo).transpose();
        memo.map_err(|it: tokio_postgres::Error| Trouble::from(it).fault(READING))
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        self.prepare_memos().await?;
        let (schema, name) = (self.memo_schema(), hash(key));
        let seen = seen.map(|it| i64::try_from(it).unwrap_or(-1));
        let (now, next) =
            (format!("{schema}.lockkeeper_now_3()"), format!("nextval('{schema}.lockkeeper_memo_version')"));
        let name = (&name.as_slice() as _, Type::BYTEA);
        let rows = match (seen, keep.is_zero()) {
            (Some(seen), true) => {
                let sql = format!(
                    "DELETE FROM {schema}.lockkeeper_memo WHERE key = $1 AND version = $2 AND {now} < expires RETURNING {next}"
                );
                self.memo_rows(WRITING, &sql, &[name, (&seen, Type::INT8)]).await?
            }
            (Some(seen), false) => {
                let sql = format!(
                    "UPDATE {schema}.lockkeeper_memo SET version = {next}, value = $3, expires = {now} + $4 \
                     WHERE key = $1 AND version = $2 AND {now} < expires RETURNING version"
                );
                let rest = [(&value as _, Type::BYTEA), (&micros_up(keep) as _, Type::INT8)];
                self.memo_rows(WRITING, &sql, &[name, (&seen, Type::INT8), rest[0].clone(), rest[1].clone()])
                    .await?
            }
            (None, _) => {
                // A few of those whose time is over go with each new one.
                let sql = format!(
                    "WITH over AS (DELETE FROM {schema}.lockkeeper_memo WHERE ctid = ANY (ARRAY(SELECT ctid FROM \
                     {schema}.lockkeeper_memo WHERE expires <= {now} AND key <> $1 ORDER BY expires LIMIT 32))) \
                     INSERT INTO {schema}.lockkeeper_memo AS m VALUES ($1, $2, {next}, $3, {now} + $4) \
                     ON CONFLICT (key) DO UPDATE SET version = excluded.version, value = excluded.value, \
                     expires = excluded.expires WHERE m.expires <= {now} RETURNING version"
                );
                let params = [
                    name,
                    (&key.as_str() as _, Type::TEXT),
                    (&value as _, Type::BYTEA),
                    (&micros_up(keep) as _, Type::INT8),
                ];
                self.memo_rows(WRITING, &sql, &params).await?
            }
        };
        let Some(row) = rows.first() else { return self.conflict(key).await };
        let version: i64 = row.try_get(0).map_err(|it| Trouble::from(it).fault(WRITING))?;
        Ok(Swap::Done(version.unsigned_abs()))
    }
}
