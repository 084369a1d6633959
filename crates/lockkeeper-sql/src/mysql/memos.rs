//! Memos: small values in a table of their own that outlive their writer.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::memos::{Memo, Memos, Swap};

use super::fault::Trouble;
use super::link::{Ask, Reply};
use super::place::NOW;
use super::text::{bytes, text};
use super::{Mysql, NAME};
use crate::name::{hash, micros_up};

const READING: &str = "reading a memo";
const WRITING: &str = "writing a memo";

/// The tables for memos, as they are made with the first of them. Versions come from a row of their own, which stays when
/// memos go; it begins with the server's time, so that after a table was dropped and made anew they are larger.
const DDL: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_memo (
    memo BINARY(32) NOT NULL PRIMARY KEY,
    name VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version BIGINT NOT NULL,
    value MEDIUMBLOB NOT NULL,
    expires BIGINT NOT NULL,
    KEY lockkeeper_memo_expires (expires)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS lockkeeper_memo_version (
    one TINYINT NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL
) ENGINE = InnoDB;
";

/// The statements that make the tables for memos in the current database. They are made with the first memo, so that
/// whoever has none needs none.
///
/// ```
/// assert!(lockkeeper_sql::mysql::memo_ddl().contains("lockkeeper_memo"));
/// ```
pub fn memo_ddl() -> &'static str {
    DDL
}

impl Mysql {
    async fn ask_memos(&self, sql: &str) -> std::result::Result<Reply, Trouble> {
        let (links, ask) = (&self.0.links, Ask::Text(sql.to_owned()));
        links.try_ask(&links.commands(), &ask, links.options.common.timeout).await
    }

    /// The same, after the tables were made if they were not there.
    async fn write_memos(&self, sql: &str) -> Result<Reply> {
        match self.ask_memos(sql).await {
            Err(trouble) if trouble.is_missing() => {}
            answer => return answer.map_err(|it| it.fault(WRITING)),
        }
        if !self.0.links.options.common.create {
            let what = "the database lacks the tables of memos and `create=no` was chosen; run the DDL in \
                        docs/backends/mysql.md";
            return Err(Fault::permanent(NAME, WRITING, what));
        }
        for statement in DDL.split_inclusive(";\n") {
            match self.ask_memos(statement).await {
                // Others make them at the same moment: whoever comes too late finds what was wanted.
                Err(trouble) if trouble.is_made_by_others() && !trouble.is_missing() => {}
                answer => drop(answer.map_err(|it| it.fault(WRITING))?),
            }
        }
        self.ask_memos(sql).await.map_err(|it| it.fault(WRITING))
    }

    /// A version that nobody had before.
    async fn draw_version(&self) -> Result<u64> {
        let draw = format!(
            "INSERT INTO lockkeeper_memo_version VALUES (1, LAST_INSERT_ID({NOW})) \
             ON DUPLICATE KEY UPDATE version = LAST_INSERT_ID(version + 1)"
        );
        Ok(self.write_memos(&draw).await?.number)
    }
}

impl Memos for Mysql {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        let sql = format!(
            "SELECT version, value FROM lockkeeper_memo WHERE memo = {} AND {NOW} < expires",
            bytes(&hash(key))
        );
        let reply = match self.ask_memos(&sql).await {
            // Nobody has written any yet.
            Err(trouble) if trouble.is_missing() => return Ok(None),
            answer => answer.map_err(|it| it.fault(READING))?,
        };
        let Some(row) = reply.rows.first().and_then(|it| it.first()) else { return Ok(None) };
        let version: Option<i64> = row.get_opt(0).and_then(std::result::Result::ok);
        let value: Option<Vec<u8>> = row.get_opt(1).and_then(std::result::Result::ok);
        match (version, value) {
            (Some(version), Some(value)) => Ok(Some(Memo::new(version.unsigned_abs(), value))),
            _ => Err(Trouble::Refused("the answer has another form than expected".into()).fault(READING)),
        }
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        let version = self.draw_version().await?;
        let (memo, value, keep) = (bytes(&hash(key)), bytes(value), micros_up(keep));
        let sql = match (seen, keep) {
            (Some(seen), 0) => {
                format!(
                    "DELETE FROM lockkeeper_memo WHERE memo = {memo} AND version = {seen} AND {NOW} < expires"
                )
            }
            (Some(seen), keep) => format!(
                "UPDATE lockkeeper_memo SET version = {version}, value = {value}, expires = {NOW} + {keep} \
                 WHERE memo = {memo} AND version = {seen} AND {NOW} < expires"
            ),
            // A few of those whose time is over go with each new one.
            (None, keep) => format!(
                "DELETE FROM lockkeeper_memo WHERE expires <= {NOW} ORDER BY expires LIMIT 32; \
                 DELETE FROM lockkeeper_memo WHERE memo = {memo} AND expires <= {NOW}; \
                 INSERT IGNORE INTO lockkeeper_memo VALUES ({memo}, {}, {version}, {value}, {NOW} + {keep})",
                text(key.as_str())
            ),
        };
        if self.write_memos(&sql).await?.changed != 0 {
            return Ok(Swap::Done(version));
        }
        let there = Memos::read(self, key).await?;
        // It was sent twice, because the first answer was lost.
        if there.as_ref().is_some_and(|it| it.version == version) {
            return Ok(Swap::Done(version));
        }
        Ok(Swap::Conflict(there))
    }
}
