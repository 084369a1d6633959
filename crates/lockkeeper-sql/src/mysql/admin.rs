//! The operator's view: who holds what and who waits, and breaking a lock by hand.

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::{Listed, gather, gather_of};
use lockkeeper_core::{Fence, Key, Label, Moment};
use mysql_async::Row;

use super::fault::Trouble;
use super::link::Ask;
use super::place::NOW;
use super::text::{bytes, text};
use super::{Mysql, Store};
use crate::load::load_of;
use crate::name::{hash, span};

const BREAKING: &str = "breaking the lock";

/// Who holds and who waits, of the locks `l` that are meant.
fn select(meant: &str) -> String {
    // Without company in its lock's row, with company in the line; never in both.
    format!(
        "SELECT l.name, {NOW}, TRUE, l.seq, l.since, l.expires, l.weight, l.host, l.pid, l.owner, l.note, \
         l.`lock` AS line, l.seq AS number, l.capacity FROM lockkeeper_lock AS l \
         WHERE l.id IS NOT NULL AND l.expires > {NOW} AND {meant} UNION ALL \
         SELECT l.name, {NOW}, c.held, c.counter, c.since, c.expires, c.weight, c.host, c.pid, c.owner, c.note, \
         l.`lock`, c.seq, c.capacity FROM lockkeeper_claim AS c JOIN lockkeeper_lock AS l ON l.`lock` = c.`lock` \
         WHERE c.expires > {NOW} AND {meant} ORDER BY line, number"
    )
}

impl Inspect for Mysql {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let (length, prefix_text) = (prefix.chars().count(), text(prefix));
        let sql = select(&format!("LEFT(l.name, {length}) = {prefix_text} COLLATE utf8mb4_bin"));
        let mut infos = gather(self.0.lines("listing the locks", &sql).await?);
        // The server takes blanks at the end for nothing.
        infos.retain(|it| it.key.as_str().starts_with(prefix));
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let sql = select(&format!("l.`lock` = {}", bytes(&hash(key))));
        Ok(gather_of(key, self.0.lines("showing the lock", &sql).await?))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let sql = format!("CALL lockkeeper_break_4({})", bytes(&hash(key)));
        let rows = self.0.lines(BREAKING, &sql).await?;
        Ok(gather_of(key, rows).map(|it| it.holders).unwrap_or_default())
    }

    /// A holder is in one place and moves only from its lock's row to the line: whoever is not in the row is in the line, or
    /// gone. Each of the two is one statement that compares and takes away.
    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        let (lock, counter) = (bytes(&hash(key)), fence.counter());
        let holders = self.show(key).await?.map(|it| it.holders).unwrap_or_default();
        let meant = |it: &Occupant| it.fence.is_some_and(|it| it.counter() == counter);
        let Some(holder) = holders.into_iter().find(meant) else { return Ok(Broken::Changed) };
        let alone = format!(
            "UPDATE lockkeeper_lock SET id = NULL \
             WHERE `lock` = {lock} AND id IS NOT NULL AND seq = {counter} AND expires > {NOW}"
        );
        if self.0.changes(&alone).await? {
            return Ok(Broken::Lost(holder));
        }
        // By its number in line, so that no other row is locked.
        let held = format!("`lock` = {lock} AND held AND counter = {counter} AND expires > {NOW}");
        let find = format!("SELECT seq FROM lockkeeper_claim WHERE {held}");
        let found = self.0.links.ask(BREAKING, &find).await?;
        let Some(seq) = found.iter().flatten().find_map(|it| it.get_opt::<i64, _>(0)?.ok()) else {
            return Ok(Broken::Changed);
        };
        if !self.0.changes(&format!("DELETE FROM lockkeeper_claim WHERE seq = {seq} AND {held}")).await? {
            return Ok(Broken::Changed);
        }
        // Nobody's leaving lets in whoever is next.
        let nobody = bytes(&[0; 16]);
        self.0.links.ask(BREAKING, &format!("CALL lockkeeper_leave_4({lock}, {nobody}, 0, FALSE)")).await?;
        Ok(Broken::Lost(holder))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        super::doctor::examine(&self.0).await
    }
}

impl Store {
    /// Whether a statement changed something. It is sent once: an answer that is lost leaves that unknown.
    async fn changes(&self, sql: &str) -> Result<bool> {
        let (way, patience) = (self.links.commands(), self.links.options.common.timeout);
        let reply = way.send(Ask::Text(sql.to_owned()), patience, Moment::from_nanos(0)).await;
        reply.map(|it| 0 < it.changed).map_err(|it| it.fault(BREAKING))
    }

    async fn lines(&self, doing: &'static str, sql: &str) -> Result<Vec<Listed>> {
        let answer = self.links.ask(doing, sql).await?;
        let rows: Option<Vec<_>> = answer.iter().flatten().map(listed).collect();
        let broken = || Trouble::Refused("a row has another form than expected".into()).fault(doing);
        rows.ok_or_else(broken)
    }
}

fn listed(row: &Row) -> Option<Listed> {
    let number = |at: usize| row.get_opt::<i64, _>(at)?.ok();
    let optional = |at: usize| row.get_opt::<Option<String>, _>(at)?.ok();
    let (now, held, counter) = (number(1)?, number(2)? != 0, number(3)?);
    let pid = u32::try_from(number(8)?).unwrap_or(0);
    let label = Label::new(row.get_opt::<String, _>(7)?.ok()?, pid, optional(9)?, optional(10)?);
    let occupant = Occupant::new(label, span(number(5)?.saturating_sub(now)))
        .since(Some(span(now.saturating_sub(number(4)?))))
        .fence((held && counter != 0).then(|| Fence::of_grant(counter.unsigned_abs())))
        .load(load_of(number(6)?, number(13).unwrap_or(i64::MAX)));
    Some(Listed::new(row.get_opt::<String, _>(0)?.ok()?, held, occupant))
}
