//! A place in a line of the database: each verb is one statement, which calls one function.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use tokio::sync::Notify;
use tokio_postgres::types::Type;

use super::{NAME, Store, wake};
use crate::batch::{self, Batch, Due, RenewAll};
use crate::name::{NameHash, hash, micros_up, printable, span};
use crate::pace::Pace;

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// A claim's place in a line of [`Postgres`](super::Postgres).
#[derive(Debug)]
pub struct PostgresPlace {
    store: Arc<Store>,
    claim: Arc<Claim>,
    lock: NameHash,
    /// Rings when a message names us.
    bell: Option<Arc<Notify>>,
    /// We wait, and nobody has told us otherwise.
    waiting: bool,
    pace: Pace,
}

impl PostgresPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        PostgresPlace {
            lock: hash(&claim.key),
            store,
            claim: Arc::new(claim),
            bell: None,
            waiting: false,
            pace: Pace::new(),
        }
    }

    async fn ask(&self) -> Result<Vec<i64>> {
        let (claim, label) = (&self.claim, &self.claim.label);
        let optional = |it: &Option<String>| it.as_deref().map(printable);
        self.store.links.note_ttl(claim.ttl);
        self.store
            .links
            .numbers(
                "taking the lock",
                &self.store.sql.turn,
                &[
                    (&self.lock.as_slice(), Type::BYTEA),
                    (&claim.id.as_bytes().as_slice(), Type::BYTEA),
                    (&claim.key.as_str(), Type::TEXT),
                    (&micros_up(claim.ttl), Type::INT8),
                    (&i64::from(claim.load.weight), Type::INT8),
                    (&i64::from(claim.load.capacity), Type::INT8),
                    (&claim.patient, Type::BOOL),
                    (&printable(&label.host), Type::TEXT),
                    (&i64::from(label.pid), Type::INT8),
                    (&optional(&label.owner), Type::TEXT),
                    (&optional(&label.note), Type::TEXT),
                    (&self.store.channel(), Type::TEXT),
                ],
            )
            .await
    }

    /// Look at the line; `true` if asking is worthwhile, else how long to pause.
    async fn look(&mut self) -> std::result::Result<(), Duration> {
        let most = self.claim.ttl / 3;
        let params = [
            (&self.lock.as_slice() as _, Type::BYTEA),
            (&self.claim.id.as_bytes().as_slice() as _, Type::BYTEA),
        ];
        let seen = self.store.links.numbers("looking", &self.store.sql.look, &params).await;
        match seen.as_deref() {
            // Still waiting behind somebody alive.
            Ok([0, waiting_before, expiry]) if 0 < *expiry => {
                let pause = self.pace.pause(self.store.links.clock.now(), *waiting_before, most);
                Err(pause.min(span(*expiry)).max(RECHECK_MIN))
            }
            Ok(_) => Ok(()),
            // Let the next `turn` meet the fault: it can tell it.
            Err(_) => Err(most),
        }
    }
}

impl Place for PostgresPlace {
    async fn turn(&mut self) -> Result<Turn> {
        if self.bell.is_none() {
            // Before we ask: a message that comes right after the answer must find us.
            self.bell = Some(self.store.wake.bell(self.claim.id));
        }
        let answer = self.ask().await?;
        let [held, counter, wanted, ahead, ahead_waiting, expiry] = answer[..] else {
            return Err(Fault::permanent(
                NAME,
                "taking the lock",
                "the answer has another form than expected",
            ));
        };
        self.waiting = held == 0;
        if held != 0 {
            return Ok(Turn::Held(Grant::new(counter.unsigned_abs(), self.claim.ttl).wanted(wanted != 0)));
        }
        if self.claim.patient {
            wake::start(&self.store);
        }
        self.pace.pause(self.store.links.clock.now(), ahead_waiting, self.claim.ttl / 3);
        Ok(Turn::wait(span(expiry).min(self.claim.ttl / 3).max(RECHECK_MIN), u64::try_from(ahead).ok()))
    }

    async fn changed(&mut self) {
        let Some(bell) = self.bell.clone() else {
            return std::future::pending().await;
        };
        // The holder hears that it is wanted by its renewals, too; only those who wait need to look.
        if !self.waiting || self.store.wake.is_listening() {
            return bell.notified().await;
        }
        let clock = self.store.links.clock.clone();
        let mut pause = self.pace.last();
        loop {
            tokio::select! {
                () = bell.notified() => return,
                () = clock.sleep(pause) => {}
            }
            match self.look().await {
                Ok(()) => return,
                Err(longer) => pause = longer,
            }
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let due = Due { lock: self.lock, claim: self.claim.clone() };
        batch::renew(&self.store, due).await
    }

    async fn leave(&mut self) -> Result<()> {
        let params = [
            (&self.lock.as_slice() as _, Type::BYTEA),
            (&self.claim.id.as_bytes().as_slice() as _, Type::BYTEA),
        ];
        let sql = &self.store.sql.leave;
        self.store.links.numbers("giving the lock back", sql, &params).await?;
        self.waiting = false;
        Ok(())
    }
}

impl Drop for PostgresPlace {
    fn drop(&mut self) {
        if self.bell.is_some() {
            self.store.wake.remove(self.claim.id);
        }
    }
}

impl RenewAll for Store {
    fn batch(&self) -> &Batch {
        &self.batch
    }

    /// By a connection on the present runtime, which is the keeper's: no user code can block it.
    async fn renew_all(&self, dues: &[Due]) -> Result<Vec<Renewal>> {
        let locks: Vec<&[u8]> = dues.iter().map(|it| it.lock.as_slice()).collect();
        let ids: Vec<&[u8]> = dues.iter().map(|it| it.claim.id.as_bytes().as_slice()).collect();
        let ttls: Vec<i64> = dues.iter().map(|it| micros_up(it.claim.ttl)).collect();
        let params = [
            (&locks as _, Type::BYTEA_ARRAY),
            (&ids as _, Type::BYTEA_ARRAY),
            (&ttls as _, Type::INT8_ARRAY),
        ];
        let answers = self.links.numbers("renewing the lock", &self.sql.renew, &params).await?;
        let renewals = dues.iter().zip(answers).map(|(due, answer)| match answer {
            0 => Renewal::Lost,
            it => Renewal::held(due.claim.ttl, it == 2),
        });
        Ok(renewals.collect())
    }
}
