//! Witnesses: rows that tell which transactions have committed at a participant, until nobody asks any more.

use super::{Session, Trouble, WITNESS, WITNESSES, mysql, postgres};
use crate::id::TransactionId;

impl Session {
    /// Some transactions whose names begin like this and that have witnesses here.
    pub(crate) async fn witnesses(&mut self, beginning: &str) -> Result<Vec<String>, Trouble> {
        let sql = format!(
            "SELECT DISTINCT id FROM {WITNESS} WHERE n >= 0 AND id LIKE '{beginning}%' LIMIT {WITNESSES}"
        );
        let found = self.run(&sql).await?;
        Ok(found.rows.into_iter().filter_map(|it| it.into_iter().next().flatten()).collect())
    }

    /// All transactions whose names begin like this and that have a witness here, which is committed.
    pub(crate) async fn all_witnesses(&mut self, beginning: &str) -> Result<Vec<TransactionId>, Trouble> {
        let (mut seen, mut last) = (Vec::new(), String::new());
        loop {
            let sql = format!(
                "SELECT DISTINCT id FROM {WITNESS} WHERE n >= 0 AND id LIKE '{beginning}%' AND id > '{last}' \
                 ORDER BY id LIMIT {WITNESSES}"
            );
            let some: Vec<String> =
                self.run(&sql).await?.rows.into_iter().filter_map(|it| it.into_iter().next()?).collect();
            seen.extend(some.iter().filter_map(|it| it.parse().ok()));
            match some.last() {
                Some(it) if some.len() == WITNESSES => last = it.replace('\'', "''"),
                _ => return Ok(seen),
            }
        }
    }

    /// Remove the witnesses of these transactions.
    pub(crate) async fn forget(&mut self, ids: &[String]) -> Result<(), Trouble> {
        let ids: Vec<String> = ids.iter().map(|it| format!("'{it}'")).collect();
        let sql = format!("DELETE FROM {WITNESS} WHERE n >= 0 AND id IN ({})", ids.join(", "));
        match self {
            Session::Postgres(client) => postgres::run(client, &sql).await.map(drop),
            Session::Mysql(conn) => mysql::forget(conn, &sql).await,
        }
    }
}
