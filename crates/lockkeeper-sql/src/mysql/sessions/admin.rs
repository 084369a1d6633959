//! The operator's view: who has the server's named locks, with the names that stand behind them.
//!
//! Who holds is asked of the server. Its name, owner and note stand in a row that is written a moment later.

use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::{Listed, gather, gather_of};
use lockkeeper_core::{Fence, Key, Label};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use super::super::NAME;
use super::super::fault::Trouble;
use super::super::text::{bytes, text};
use super::join::{NOW, odd, one};
use super::names::{lock_name, lock_name_sql, member_name_sql};
use super::{MysqlSessions, Store};
use crate::name::{hash, span};

const BREAKING: &str = "breaking the lock";

/// How often it is looked whether a broken lock was given back.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Inspect for MysqlSessions {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let (length, prefix_text) = (prefix.chars().count(), text(prefix));
        let meant = format!("LEFT(c.name, {length}) = {prefix_text} COLLATE utf8mb4_bin");
        let mut infos = gather(self.0.listed("listing the locks", &self.0.rows_sql(&meant)).await?);
        // The server takes blanks at the end for nothing.
        infos.retain(|it| it.key.as_str().starts_with(prefix) && !it.holders.is_empty());
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let rows = self.0.listed("showing the lock", &self.0.one_sql(key)).await?;
        Ok(gather_of(key, rows).filter(|it| !it.holders.is_empty()))
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

/// The columns of a row, but for the name that comes before them.
const ROW: &str = "c.counter, m.host, m.pid, m.ttl, c.owner, c.note";

impl Store {
    /// Rows that are true: whoever waits is alive, whoever holds has the lock.
    fn rows_sql(&self, meant: &str) -> String {
        let (lock, member) = (lock_name_sql(&self.id, "c.`lock`"), member_name_sql("m.id"));
        format!(
            "SELECT c.name, {ROW}, {NOW} - c.since, c.conn FROM lockkeeper_session_claim AS c \
             JOIN lockkeeper_session_member AS m ON m.conn = c.conn WHERE {meant} \
             AND IF(c.counter > 0, IS_USED_LOCK({lock}), IS_USED_LOCK({member})) = c.conn \
             ORDER BY c.name, c.counter = 0, c.since, c.id"
        )
    }

    /// The same of one lock, with a holder whose row is not written yet, or still says that it waits.
    fn one_sql(&self, key: &Key) -> String {
        let (lock, name) = (bytes(&hash(key)), lock_name(&self.id, &hash(key)));
        let (member, key) = (member_name_sql("m.id"), text(key.as_str()));
        format!(
            "SELECT {key}, IF(m.conn = h.conn, COALESCE(NULLIF(c.counter, 0), -1), 0), m.host, m.pid, m.ttl, c.owner, c.note, \
             {NOW} - c.since, m.conn, IF(m.conn = h.conn, 0, 1) AS place, c.since AS since, c.id AS id \
             FROM (SELECT IS_USED_LOCK('{name}') AS conn) AS h JOIN lockkeeper_session_member AS m \
             LEFT JOIN lockkeeper_session_claim AS c ON c.conn = m.conn AND c.`lock` = {lock} \
             WHERE m.conn = h.conn OR c.counter = 0 AND IS_USED_LOCK({member}) = c.conn \
             ORDER BY place, since, id"
        )
    }

    /// A connection for an operator, who closes it afterwards.
    pub(super) async fn operator(&self, doing: &'static str) -> Result<Conn> {
        self.dial().await.map_err(|it| it.fault(doing))
    }

    async fn listed(&self, doing: &'static str, sql: &str) -> Result<Vec<Listed>> {
        let mut conn = self.operator(doing).await?;
        let asked = self.in_time(async { Ok(conn.query::<Row, _>(sql).await?) }).await;
        let rows = asked.map_err(|it| it.fault(doing))?;
        let _ = conn.disconnect().await;
        let listed: Option<Vec<_>> = rows.iter().map(listed).collect();
        listed.ok_or_else(|| odd().fault(doing))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let mut conn = self.operator(BREAKING).await?;
        let rows: Vec<Row> = self
            .in_time(async { Ok(conn.query(self.one_sql(key)).await?) })
            .await
            .map_err(|it| it.fault(BREAKING))?;
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        let read = |row| Some((listed(row)?, number(row, 1)?, number(row, 8)?, number(row, 4)?));
        let (listed, counter, holder, ttl) = read(row).ok_or_else(|| odd().fault(BREAKING))?;
        if counter == 0 {
            return Ok(Vec::new());
        }
        let (told, lock) = (listed.occupant, bytes(&hash(key)));
        let tell =
            format!("INSERT IGNORE INTO lockkeeper_session_broken (conn, `lock`) VALUES ({holder}, {lock})");
        self.drop_in_time(&mut conn, &tell).await?;
        self.until_given_back(&mut conn, key, holder, span(ttl)).await?;
        let done = format!("DELETE FROM lockkeeper_session_broken WHERE conn = {holder} AND `lock` = {lock}");
        self.drop_in_time(&mut conn, &done).await?;
        let _ = conn.disconnect().await;
        Ok(vec![told])
    }

    async fn drop_in_time(&self, conn: &mut Conn, sql: &str) -> Result<()> {
        self.in_time(async { Ok(conn.query_drop(sql).await?) }).await.map_err(|it| it.fault(BREAKING))
    }

    /// Wait until this session has given this lock back. It hears by its next beat, or is silent and ended.
    async fn until_given_back(&self, conn: &mut Conn, key: &Key, holder: i64, ttl: Duration) -> Result<()> {
        let sql = format!("SELECT IS_USED_LOCK('{}')", lock_name(&self.id, &hash(key)));
        let give_up = self.clock.now().after(ttl * 2 + self.options.common.timeout);
        loop {
            let asked: std::result::Result<(Option<i64>,), Trouble> = self.in_time(one(conn, &sql)).await;
            if asked.map_err(|it| it.fault(BREAKING))?.0 != Some(holder) {
                return Ok(());
            }
            if give_up < self.clock.now() {
                let what = "the holder was told, and still has it after two of its ttls";
                return Err(Fault::transient(NAME, BREAKING, what));
            }
            self.clock.sleep(LOOK_EVERY).await;
        }
    }
}

fn number(row: &Row, at: usize) -> Option<i64> {
    row.get_opt::<i64, _>(at)?.ok()
}

/// One who holds or waits. A counter of -1 says that its row does not tell yet that it holds.
fn listed(row: &Row) -> Option<Listed> {
    let optional = |at: usize| row.get_opt::<Option<String>, _>(at)?.ok();
    let (counter, pid) = (number(row, 1)?, u32::try_from(number(row, 3)?).unwrap_or(0));
    let label = Label::new(row.get_opt::<String, _>(2)?.ok()?, pid, optional(5)?, optional(6)?);
    let since = row.get_opt::<Option<i64>, _>(7)?.ok()?;
    let fence = u64::try_from(counter).ok().filter(|it| *it != 0).map(Fence::of_grant);
    let occupant = Occupant::new(label, span(number(row, 4)?)).since(since.map(span)).fence(fence);
    Some(Listed::new(row.get_opt::<String, _>(0)?.ok()?, counter != 0, occupant))
}
