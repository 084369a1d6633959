//! Memos: small values that outlive their writer, as long as the server's data survive.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::memos::{Memo, Memos, Swap};
use redis::Value;

use crate::script::Call;
use crate::{Redis, fault, naming};

const READING: &str = "reading a memo";
const WRITING: &str = "writing a memo";

/// As long as Redis counts.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Memos for Redis {
    /// By the script that writes: it writes nothing for a version that nobody has.
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        match self.call_memo(READING, key, "-", "0", b"").await? {
            Swap::Conflict(there) => Ok(there),
            _ => Err(unexpected(READING)),
        }
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        let seen = seen.map(|it| it.to_string()).unwrap_or_default();
        let keep = if keep.is_zero() { 0 } else { keep.min(KEEP_MAX).as_millis().max(1) };
        self.call_memo(WRITING, key, &seen, &keep.to_string(), value).await
    }
}

impl Redis {
    async fn call_memo(
        &self,
        doing: &'static str,
        key: &Key,
        seen: &str,
        keep: &str,
        value: &[u8],
    ) -> Result<Swap> {
        let (main, tag) = self.0.main_key(key);
        let (memo, versions) = (naming::memo_key(&main), naming::versions_key(&self.0.mark_key(tag)));
        let call = Call { keys: &[&memo, &versions], args: &[seen.as_bytes(), keep.as_bytes(), value] };
        let answer = self.run(doing, tag, &self.0.scripts().memo, &call).await?;
        answer_of(answer).ok_or_else(|| unexpected(doing))
    }
}

fn answer_of(answer: Value) -> Option<Swap> {
    let Value::Array(parts) = answer else { return None };
    match parts.as_slice() {
        [Value::Int(1), Value::BulkString(version)] => number(version).map(Swap::Done),
        // A script's `false` ends the list.
        [Value::Int(0)] | [Value::Int(0), Value::Nil] => Some(Swap::Conflict(None)),
        [Value::Int(0), Value::BulkString(there)] => {
            let blank = there.iter().position(|it| *it == b' ')?;
            let (version, value) = there.split_at(blank);
            Some(Swap::Conflict(Some(Memo::new(number(version)?, value.get(1..)?.to_vec()))))
        }
        _ => None,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn unexpected(doing: &'static str) -> Fault {
    let what =
        "the key of the memo holds something else; move away what is not Lockkeeper's, or choose a prefix";
    Fault::permanent(fault::NAME, doing, what)
}
