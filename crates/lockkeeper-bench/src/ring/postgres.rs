//! A ring on PostgreSQL: each process waits for the advisory lock of the one before it. A step costs two statements, and writes
//! nothing. As on MariaDB every turn has a lock of its own, and one session holds while another waits. A message (`NOTIFY`) would
//! wake all who listen, whoever it is for, so it is no limit.

use std::sync::Arc;

use tokio_postgres::{Client, NoTls, Statement};

use super::Member;
use crate::Answer;
use crate::rival::Rival;

/// One process.
#[derive(Clone)]
pub(crate) struct PostgresRing {
    holds: Arc<Session>,
    waits: Arc<Session>,
    count: i32,
    /// Our next turn, of all that there ever are.
    turn: i32,
}

struct Session {
    client: Client,
    swap: Statement,
    /// What tells the locks of this ring from those of another.
    key: String,
}

impl Session {
    async fn open(url: &str, key: &str) -> Answer<Arc<Self>> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(async move { drop(connection.await) });
        let sql = "SELECT pg_advisory_lock(hashtext($1), $2), pg_advisory_unlock(hashtext($1), $3)";
        let swap = client.prepare(sql).await?;
        Ok(Arc::new(Session { client, swap, key: key.to_owned() }))
    }

    /// Take one, and give the other back.
    async fn swap(&self, take: i32, give: i32) -> Answer<()> {
        let row = self.client.query_one(&self.swap, &[&self.key, &take, &give]).await?;
        if row.try_get(1)? { Ok(()) } else { Err("the ring gave back what it had not".into()) }
    }
}

impl PostgresRing {
    pub(crate) async fn open(url: &str, key: &str, member: Member) -> Answer<Self> {
        let ring = PostgresRing {
            holds: Session::open(url, key).await?,
            waits: Session::open(url, key).await?,
            count: i32::try_from(member.count)?,
            turn: i32::try_from(member.at)?,
        };
        let held = "SELECT pg_advisory_lock(hashtext($1), $2)";
        ring.holds.client.execute(held, &[&key, &ring.turn]).await?;
        Ok(ring)
    }
}

impl Rival for PostgresRing {
    type Taken = ();

    async fn take(&mut self, _key: &str) -> Answer<()> {
        let before = self.turn - 1;
        if before < 0 { Ok(()) } else { self.waits.swap(before, before).await }
    }

    async fn give_back(&mut self, _token: ()) -> Answer<()> {
        let (mine, next) = (self.turn, self.turn + self.count);
        self.turn = next;
        self.holds.swap(next, mine).await
    }
}
