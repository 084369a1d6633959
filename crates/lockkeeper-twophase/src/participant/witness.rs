//! Witnesses: rows that tell which transactions have committed at a participant, until nobody asks any more. And the marks of
//! those that were alone.

use super::{MARK, Session, Trouble, WITNESS, WITNESSES, mysql, postgres};
use crate::id::TransactionId;
use crate::log::Dialect;

impl Session {
    /// Transactions whose names begin like this and that have a witness here which is committed: the first of those behind
    /// `last`, at most [`WITNESSES`].
    pub(crate) async fn witnesses(&mut self, beginning: &str, last: &str) -> Result<Vec<String>, Trouble> {
        let last = last.replace('\'', "''");
        let which = format!("n >= 0 AND id LIKE '{beginning}%' AND id > '{last}'");
        self.ids(&format!("SELECT DISTINCT id FROM {WITNESS} WHERE {which} ORDER BY id LIMIT {WITNESSES}"))
            .await
    }

    /// All of them.
    pub(crate) async fn all_witnesses(&mut self, beginning: &str) -> Result<Vec<TransactionId>, Trouble> {
        let (mut seen, mut last) = (Vec::new(), String::new());
        loop {
            let some = self.witnesses(beginning, &last).await?;
            seen.extend(some.iter().filter_map(|it| it.parse().ok()));
            match some.last() {
                Some(it) if some.len() == WITNESSES => last.clone_from(it),
                _ => return Ok(seen),
            }
        }
    }

    /// Those of these that have a witness here which is committed.
    pub(crate) async fn witnessed(&mut self, ids: &[TransactionId]) -> Result<Vec<TransactionId>, Trouble> {
        let mut seen = Vec::new();
        for some in ids.chunks(WITNESSES) {
            let some = quoted(some.iter().map(TransactionId::as_str));
            let found = self
                .ids(&format!("SELECT DISTINCT id FROM {WITNESS} WHERE n >= 0 AND id IN ({some})"))
                .await?;
            seen.extend(found.iter().filter_map(|it| it.parse().ok()));
        }
        Ok(seen)
    }

    /// The first column of what this plain look finds. It waits for nobody, keeps nobody out, and sees only what is committed,
    /// whatever the server chooses for its sessions.
    async fn ids(&mut self, select: &str) -> Result<Vec<String>, Trouble> {
        let found = match self.dialect() {
            Dialect::Postgres => self.run(select).await?,
            Dialect::Mysql => {
                self.run(&format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {select}")).await?
            }
        };
        Ok(found.rows.into_iter().filter_map(|it| it.into_iter().next().flatten()).collect())
    }

    /// Remove the witnesses of these transactions.
    pub(crate) async fn forget(&mut self, ids: &[String]) -> Result<(), Trouble> {
        let ids = quoted(ids.iter().map(String::as_str));
        self.delete(&format!("n >= 0 AND id IN ({ids})")).await
    }

    /// Marks of this log's transactions that were begun before those whose names end like this, at most [`WITNESSES`].
    pub(crate) async fn old_marks(&mut self, beginning: &str, ending: &str) -> Result<Vec<String>, Trouble> {
        let collate = if self.dialect() == Dialect::Postgres { " COLLATE \"C\"" } else { "" };
        let which = format!("n = {MARK} AND id LIKE '{beginning}%' AND right(id, 16){collate} < '{ending}'");
        self.ids(&format!("SELECT id FROM {WITNESS} WHERE {which} LIMIT {WITNESSES}")).await
    }

    /// Remove these marks. Each by its whole key: a search would wait for every row that it passes, and on MySQL and MariaDB keep
    /// out who adds one between them.
    pub(crate) async fn forget_marks(&mut self, ids: &[String]) -> Result<(), Trouble> {
        let ids = quoted(ids.iter().map(String::as_str));
        self.delete(&format!("n = {MARK} AND id IN ({ids})")).await
    }

    async fn delete(&mut self, which: &str) -> Result<(), Trouble> {
        let sql = format!("DELETE FROM {WITNESS} WHERE {which}");
        match self {
            Session::Postgres(client) => postgres::run(client, &sql).await.map(drop),
            Session::Mysql(conn) => mysql::forget(conn, &sql).await,
        }
    }
}

/// As texts of a list. Those that others wrote may hold anything.
fn quoted<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    ids.map(|it| format!("'{}'", it.replace('\'', "''"))).collect::<Vec<_>>().join(", ")
}
