//! What goes over the wire: the generated stubs, and short ways to write the requests that locks need.

use bytes::Bytes;

/// Generated from `proto/etcd.proto`; `tests/stubs.rs` holds it to that, byte by byte.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "generated"
)]
#[rustfmt::skip]
mod etcdserverpb;

pub(crate) use etcdserverpb::*;

use compare::{CompareResult, CompareTarget, TargetUnion};
use range_request::{SortOrder, SortTarget};

/// The end of the range of all keys that begin with `prefix`, which must not end with byte 255.
pub(crate) fn range_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end.into()
}

/// The key exists since exactly this revision; 0 means that it does not exist.
pub(crate) fn created_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        range_end: Bytes::new(),
    }
}

/// The key was last written at exactly this revision.
pub(crate) fn written_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        target: CompareTarget::Mod.into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..created_at(key, 0)
    }
}

/// No key begins with `prefix`.
pub(crate) fn nobody_in(prefix: &Bytes) -> Compare {
    Compare { range_end: range_end(prefix), ..created_at(prefix, 0) }
}

pub(crate) fn put(key: &Bytes, value: impl Into<Bytes>, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), value: value.into(), lease, ..PutRequest::default() };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

/// Write a key as it is: nothing changes but its revision.
pub(crate) fn touch(key: &Bytes) -> RequestOp {
    let (ignore_value, ignore_lease) = (true, true);
    let put = PutRequest { key: key.clone(), ignore_value, ignore_lease, ..PutRequest::default() };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

/// Put a key under another lease: its value stays.
pub(crate) fn move_to(key: &Bytes, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), lease, ignore_value: true, ..PutRequest::default() };
    RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

pub(crate) fn delete(key: &Bytes) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
    RequestOp { request: Some(request_op::Request::RequestDeleteRange(delete)) }
}

pub(crate) fn range(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

/// One key.
pub(crate) fn one(key: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), ..RangeRequest::default() }
}

/// All keys that begin with `prefix`, oldest first.
pub(crate) fn oldest_first(prefix: &Bytes) -> RangeRequest {
    RangeRequest {
        range_end: range_end(prefix),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..one(prefix)
    }
}

/// The name of the newest key that begins with `prefix`, if need be only of those created before a revision.
/// The answer's `count` is that of all keys with the prefix.
pub(crate) fn newest(prefix: &Bytes, before: Option<i64>) -> RangeRequest {
    RangeRequest {
        sort_order: SortOrder::Descend.into(),
        limit: 1,
        keys_only: true,
        max_create_revision: before.map_or(0, |it| it - 1),
        ..oldest_first(prefix)
    }
}

/// What every answer begins with: who gave it, and when.
pub(crate) trait Answer {
    /// Its header, if it has one.
    fn header(&self) -> Option<&ResponseHeader>;

    /// The cluster of the node that answered; 0 if it does not say.
    fn cluster(&self) -> u64 {
        self.header().map_or(0, |it| it.cluster_id)
    }

    /// The store's revision when it answered.
    fn revision(&self) -> i64 {
        self.header().map_or(0, |it| it.revision)
    }

    /// The term of the leader, as the answering node knew it.
    fn term(&self) -> u64 {
        self.header().map_or(0, |it| it.raft_term)
    }
}

macro_rules! answers {
    ($($kind:ty)*) => {
        $(impl Answer for $kind {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        })*
    };
}

answers! {
    RangeResponse TxnResponse LeaseGrantResponse LeaseRevokeResponse LeaseKeepAliveResponse LeaseTimeToLiveResponse
    WatchResponse AuthenticateResponse AlarmResponse StatusResponse MemberListResponse
}

impl TxnResponse {
    /// The answer to the operation at `at`, which was a range.
    pub(crate) fn range(&self, at: usize) -> Option<&RangeResponse> {
        match self.responses.get(at)?.response.as_ref()? {
            response_op::Response::ResponseRange(it) => Some(it),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_behind_the_last_key_with_its_prefix() {
        assert_eq!(range_end(b"a/"), Bytes::from_static(b"a0"));
        assert!(b"a/zzz".as_slice() < &range_end(b"a/")[..]);
    }
}
