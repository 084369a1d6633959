//! A place in a line of the database: a free lock is taken and given back by one statement on one row; whatever
//! concerns others is one call of a procedure.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};

use super::{NAME, Store};
use crate::batch::{self, Batch, Due, RenewAll};
use crate::name::{NameHash, hash, micros_up, printable, span};
use crate::pace::Pace;

/// The shortest time after which asking again is worthwhile.
pub(super) const RECHECK_MIN: Duration = Duration::from_millis(1);

const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";

/// The server's clock in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Where the store knows us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nowhere: we have not asked yet.
    Nowhere,
    /// We took the lock when it was free, and stand in its row unless somebody has come since.
    Alone,
    /// In the line, or nobody can tell.
    InLine,
}

/// A claim's place in a line of [`Mysql`](super::Mysql).
#[derive(Debug)]
pub struct MysqlPlace {
    pub(super) store: Arc<Store>,
    pub(super) claim: Arc<Claim>,
    pub(super) lock: NameHash,
    /// We wait, and nobody has told us otherwise.
    pub(super) waiting: bool,
    /// Somebody waits behind us, as we know already.
    pub(super) knows_wanted: bool,
    standing: Standing,
    pub(super) pace: Pace,
}

impl MysqlPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        MysqlPlace {
            lock: hash(&claim.key),
            store,
            claim: Arc::new(claim),
            waiting: false,
            knows_wanted: false,
            standing: Standing::Nowhere,
            pace: Pace::new(),
        }
    }

    fn turn_sql(&self) -> String {
        let (claim, label) = (&self.claim, &self.claim.label);
        format!(
            "CALL lockkeeper_turn_2({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})",
            bytes(&self.lock),
            bytes(claim.id.as_bytes()),
            text(claim.key.as_str()),
            micros_up(claim.ttl),
            claim.load.weight,
            claim.load.capacity,
            claim.patient,
            text(&printable(&label.host)),
            label.pid,
            optional(label.owner.as_deref()),
            optional(label.note.as_deref()),
        )
    }
}

/// Bytes as a literal. Hexadecimal digits cannot end it, whatever the server's mode.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

/// Text as a literal.
pub(super) fn text(text: &str) -> String {
    format!("_utf8mb4 {}", bytes(text.as_bytes()))
}

fn optional(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |it| text(&printable(it)))
}

impl Place for MysqlPlace {
    async fn turn(&mut self) -> Result<Turn> {
        let links = &self.store.links;
        links.note_ttl(self.claim.ttl);
        // Whatever comes of it, from now on others may be there because of us.
        if std::mem::replace(&mut self.standing, Standing::InLine) == Standing::Nowhere
            && let Some(counter) = self.store.take_free(TAKING, &self.lock, &self.claim).await?
        {
            self.standing = Standing::Alone;
            return Ok(Turn::Held(Grant::new(counter, self.claim.ttl).wanted(false)));
        }
        let answer = links.numbers(TAKING, &self.turn_sql()).await?;
        let [held, counter, wanted, ahead, ahead_waiting, expiry] = answer[..] else {
            return Err(Fault::permanent(NAME, TAKING, "the answer has another form than expected"));
        };
        (self.waiting, self.knows_wanted) = (held == 0, wanted != 0);
        if held != 0 {
            return Ok(Turn::Held(Grant::new(counter.unsigned_abs(), self.claim.ttl).wanted(wanted != 0)));
        }
        self.pace.pause(links.clock.now(), ahead_waiting, self.claim.ttl / 3);
        Ok(Turn::wait(span(expiry).min(self.claim.ttl / 3).max(RECHECK_MIN), u64::try_from(ahead).ok()))
    }

    async fn changed(&mut self) {
        self.look_until_changed().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let due = Due { lock: self.lock, claim: self.claim.clone() };
        let renewal = batch::renew(&self.store, due).await?;
        if let Renewal::Held { wanted, .. } = renewal {
            self.knows_wanted = wanted;
        }
        Ok(renewal)
    }

    async fn leave(&mut self) -> Result<()> {
        let standing = std::mem::replace(&mut self.standing, Standing::InLine);
        let alone = standing == Standing::Alone && !self.knows_wanted;
        if !(alone && self.store.give_back(LEAVING, &self.lock, &self.claim).await?) {
            let (lock, id) = (bytes(&self.lock), bytes(self.claim.id.as_bytes()));
            let sql = format!("CALL lockkeeper_leave_2({lock}, {id})");
            self.store.links.ask(LEAVING, &sql).await?;
        }
        self.waiting = false;
        Ok(())
    }
}

impl RenewAll for Store {
    fn batch(&self) -> &Batch {
        &self.batch
    }

    /// By a connection on the present runtime, which is the keeper's: no user code can block it.
    async fn renew_all(&self, dues: &[Due]) -> Result<Vec<Renewal>> {
        let ours: Vec<String> = dues
            .iter()
            .map(|it| format!("(`lock` = {} AND id = {})", bytes(&it.lock), bytes(it.claim.id.as_bytes())))
            .collect();
        let ours = ours.join(" OR ");
        // In one trip. What the last statement finds alive was renewed by one of the others. A claim moves only
        // from its lock's row to the others of its line, so that whoever looks in this order finds it.
        let sql = format!(
            "UPDATE lockkeeper_lock SET expires = {NOW} + ttl WHERE expires > {NOW} AND ({ours}); \
             UPDATE lockkeeper_claim SET expires = {NOW} + ttl WHERE held AND expires > {NOW} AND ({ours}); \
             SELECT id, FALSE FROM lockkeeper_lock WHERE expires > {NOW} AND ({ours}) UNION ALL \
             SELECT c.id, EXISTS (SELECT 1 FROM lockkeeper_claim AS w WHERE w.`lock` = c.`lock` AND NOT w.held) \
             FROM lockkeeper_claim AS c WHERE c.held AND c.expires > {NOW} AND ({})",
            ours.replace("`lock`", "c.`lock`").replace(" id ", " c.id ")
        );
        let answer = self.links.ask("renewing the lock", &sql).await?;
        let kept: Vec<(Vec<u8>, bool)> = answer
            .into_iter()
            .flatten()
            .filter_map(|it| Some((it.get_opt(0)?.ok()?, it.get_opt(1)?.ok()?)))
            .collect();
        let renewal = |due: &Due| {
            let found = kept.iter().find(|(id, _)| id == due.claim.id.as_bytes());
            found.map_or(Renewal::Lost, |(_, wanted)| Renewal::held(due.claim.ttl, *wanted))
        };
        Ok(dues.iter().map(renewal).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_its_literal() {
        assert_eq!(text("a'; DROP"), "_utf8mb4 x'61273b2044524f50'");
        assert_eq!(bytes(&[]), "x''");
        assert_eq!(optional(None), "NULL");
    }
}
