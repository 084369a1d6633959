//! Memos: small values under keys of their own, each with a lease that nobody keeps alive. A version is the revision of
//! its write.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Key;
use lockkeeper_core::backend::Result;
use lockkeeper_core::memos::{Memo, Memos, Swap};
use lockkeeper_core::record::segment_of;

use crate::fault;
use crate::linger::whole_seconds;
use crate::session::{grant_id, revoke_id};
use crate::wake::What;
use crate::wire::{
    Answer as _, Compare, KeyValue, RangeResponse, RequestOp, TxnRequest, created_at, delete, one, put,
    range, written_at,
};
use crate::{Etcd, store::Store};

const READING: &str = "reading a memo";
const WRITING: &str = "writing a memo";

impl Etcd {
    fn memo_key(&self, key: &Key) -> Bytes {
        format!("{}/memos/{}", self.0.prefix(), segment_of(key.as_str())).into()
    }
}

/// The memo, and as of when.
async fn look(store: &Store, key: &Bytes) -> Result<(Option<Memo>, i64)> {
    // A write that leaves no trace goes with it, so that what is read is not old.
    let nothing = delete(&Bytes::from(format!("{}/nothing", store.prefix())));
    let txn = TxnRequest { success: vec![range(one(key)), nothing], ..TxnRequest::default() };
    let answer = store.connection.txn(txn).await.map_err(|it| fault::from_status(READING, &it))?;
    let found = answer.range(0).ok_or_else(|| fault::garbled(READING))?;
    Ok((memo(found), answer.revision()))
}

fn memo(found: &RangeResponse) -> Option<Memo> {
    found.kvs.first().map(memo_of)
}

fn memo_of(kv: &KeyValue) -> Memo {
    Memo::new(kv.mod_revision.unsigned_abs(), kv.value.to_vec())
}

impl Memos for Etcd {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        Ok(look(&self.0, &self.memo_key(key)).await?.0)
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        let (connection, key) = (&self.0.connection, self.memo_key(key));
        let as_seen = match seen {
            None => created_at(&key, 0),
            Some(version) => written_at(&key, i64::try_from(version).unwrap_or(i64::MAX)),
        };
        if keep.is_zero() {
            return self.change(&key, as_seen, delete(&key), None).await;
        }
        let (lease, _) = grant_id(connection, whole_seconds(keep)).await?;
        let write = put(&key, value.to_vec(), lease);
        let swapped = self.change(&key, as_seen, write, Some(lease)).await;
        // After an error it may be in use all the same: then it ends by itself, with or without a key.
        if let Ok(Swap::Conflict(_)) = &swapped {
            revoke_id(connection, lease).await;
        }
        swapped
    }

    /// By a watch, which also tells of a memo whose time is over.
    async fn changed(&self, key: &Key, seen: Option<u64>) {
        let key = self.memo_key(key);
        let Ok((there, revision)) = look(&self.0, &key).await else { return };
        if there.map(|it| it.version) != seen {
            return;
        }
        let end = Bytes::from([&key[..], b"\0"].concat());
        let mut watch = self.0.wake.watch(What::Range(key, end), revision + 1);
        watch.told().await;
    }
}

impl Etcd {
    /// Do this if the memo is as it was seen. `lease` is that of the write: who finds it has written.
    async fn change(
        &self,
        key: &Bytes,
        as_seen: Compare,
        change: RequestOp,
        lease: Option<i64>,
    ) -> Result<Swap> {
        let txn =
            TxnRequest { compare: vec![as_seen], success: vec![change], failure: vec![range(one(key))] };
        let answer = self.0.connection.txn(txn).await.map_err(|it| fault::from_status(WRITING, &it))?;
        let done = |revision: i64| Swap::Done(revision.unsigned_abs());
        if answer.succeeded {
            self.0.connection.history.saw(answer.revision());
            return Ok(done(answer.revision()));
        }
        let found = answer.range(0).ok_or_else(|| fault::garbled(WRITING))?;
        match found.kvs.first() {
            // It was sent twice, because the first answer was late.
            Some(kv) if Some(kv.lease) == lease => Ok(done(kv.mod_revision)),
            _ => Ok(Swap::Conflict(memo(found))),
        }
    }
}
