//! Holding without company: a free lock is taken and given back by one statement that writes one row.
//!
//! Both statements are prepared, once for each connection: they cost the server about as much as the bare insert
//! and delete of a unique row. Where they change nothing somebody else is there, and a procedure decides.

use std::sync::LazyLock;

use lockkeeper_core::backend::Result;
use mysql_async::Value;

use super::Store;
use super::place::NOW;
use crate::name::{NameHash, micros_up, printable};
use lockkeeper_core::Claim;

/// Whether the row's lock may be taken the short way.
const FREE: &str = "id IS NULL AND closed <= {now}";

/// Take a free lock. Leaves the number of the grant, or none if the lock is not free.
///
/// Every assignment asks for the row as it was, whether the server assigns one column after the other or all at
/// once: `closed` does not change, `counter` changes after `seq`, and `id` changes last. The values of the row that
/// could not be inserted are computed before; so what they left must be taken back.
static TAKE: LazyLock<String> = LazyLock::new(|| {
    "INSERT INTO lockkeeper_lock (`lock`, name, counter, id, seq, expires, since, ttl, weight, capacity, host, pid, \
     owner, note) \
     VALUES (?, ?, IF(DEFAULT(closed) <= {now}, LAST_INSERT_ID({now} DIV 1000), 0), \
     IF(DEFAULT(closed) <= {now}, ?, NULL), {now} DIV 1000, {now} + ?, {now}, ?, ?, ?, ?, ?, ?, ?) \
     ON DUPLICATE KEY UPDATE \
     seq = IF({free}, GREATEST(counter + 1, {now} DIV 1000), seq), \
     counter = IF({free}, LAST_INSERT_ID(GREATEST(counter + 1, {now} DIV 1000)), \
     counter + LAST_INSERT_ID(0)), \
     expires = IF({free}, {now} + ?, expires), since = IF({free}, {now}, since), ttl = IF({free}, ?, ttl), \
     weight = IF({free}, ?, weight), capacity = IF({free}, ?, capacity), host = IF({free}, ?, host), \
     pid = IF({free}, ?, pid), owner = IF({free}, ?, owner), note = IF({free}, ?, note), id = IF({free}, ?, id)"
        .replace("{free}", FREE)
        .replace("{now}", NOW)
});

/// Give back what we hold without company.
const GIVE_BACK: &str = "UPDATE lockkeeper_lock SET id = NULL WHERE `lock` = ? AND id = ?";

impl Store {
    /// Take the lock if it is free, and tell the number of the grant.
    pub(super) async fn take_free(
        &self,
        doing: &'static str,
        lock: &NameHash,
        claim: &Claim,
    ) -> Result<Option<u64>> {
        if claim.load.capacity < claim.load.weight {
            return Ok(None);
        }
        let (label, id) = (&claim.label, Value::from(claim.id.as_bytes().as_slice()));
        let optional = |it: &Option<String>| Value::from(it.as_deref().map(printable));
        let ttl = micros_up(claim.ttl);
        let rest = [
            ttl.into(),
            ttl.into(),
            claim.load.weight.into(),
            claim.load.capacity.into(),
            printable(&label.host).into(),
            label.pid.into(),
            optional(&label.owner),
            optional(&label.note),
        ];
        let mut params = vec![lock.as_slice().into(), claim.key.as_str().into(), id.clone()];
        params.extend_from_slice(&rest);
        params.extend(rest);
        params.push(id);
        let done = self.links.run(doing, &TAKE, params).await?;
        // Either alone would do; a lock is not given away because a server counts in another way.
        Ok((done.changed != 0 && done.number != 0).then_some(done.number))
    }

    /// Give the lock back if we hold it without company. `false` means that others must be looked after.
    pub(super) async fn give_back(
        &self,
        doing: &'static str,
        lock: &NameHash,
        claim: &Claim,
    ) -> Result<bool> {
        let params = vec![lock.as_slice().into(), claim.id.as_bytes().as_slice().into()];
        Ok(self.links.run(doing, GIVE_BACK, params).await?.changed != 0)
    }
}
