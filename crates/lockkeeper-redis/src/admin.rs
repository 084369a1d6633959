//! The operator's view: who holds what, who waits, and breaking a lock by hand.

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use redis::{Cmd, Value};

use crate::script::{Call, Script};
use crate::{Redis, doctor, fault, naming, record};

const LISTING: &str = "listing the locks";
const SHOWING: &str = "looking at the lock";
const BREAKING: &str = "breaking the lock";

/// Keys looked at per step of a listing.
const SCAN_COUNT: u32 = 512;

impl Inspect for Redis {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut infos = Vec::new();
        for main in self.all_keys().await? {
            let Some(tag) = naming::tag_of(&self.options().prefix, &main) else { continue };
            let info = self.look_at(LISTING, &main, tag).await?;
            infos.extend(info.filter(|it| it.key.as_str().starts_with(prefix)));
        }
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let (main, tag) = self.0.main_key(key);
        self.look_at(SHOWING, &main, tag).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let (main, tag) = self.0.main_key(key);
        let call = Call { keys: &[&main, &self.0.mark_key(tag)], args: &[] };
        let answer = self.run(BREAKING, tag, &self.0.scripts().break_lock, &call).await?;
        let (now, records) = opened(BREAKING, answer)?;
        let lost = records.iter().filter_map(|it| record::read(bytes(it)?, now));
        Ok(lost.map(|(_, occupant)| occupant).collect())
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }
}

impl Redis {
    async fn run(&self, doing: &'static str, tag: u8, script: &Script, call: &Call<'_>) -> Result<Value> {
        let desk = self.0.desk(doing)?;
        desk.commands.call(doing, tag, script, call, self.options().timeout).await.answer
    }

    async fn look_at(&self, doing: &'static str, main: &str, tag: u8) -> Result<Option<LockInfo>> {
        let answer = self.run(doing, tag, &self.0.scripts().show, &Call { keys: &[main], args: &[] }).await?;
        let (now, parts) = opened(doing, answer)?;
        let Some((Value::Int(holders), records)) = parts.split_first() else {
            return Ok(None);
        };
        let read: Vec<_> = records.iter().filter_map(|it| record::read(bytes(it)?, now)).collect();
        let Some((key, _)) = read.first() else {
            return Ok(None);
        };
        let key = key.clone();
        let mut occupants: Vec<_> = read.into_iter().map(|(_, occupant)| occupant).collect();
        let waiters = occupants.split_off(usize::try_from(*holders).unwrap_or(0).min(occupants.len()));
        Ok(Some(LockInfo::new(key, occupants, waiters)))
    }

    /// The keys of all locks, on a cluster those of every primary.
    async fn all_keys(&self) -> Result<Vec<String>> {
        let (mut keys, desk) = (Vec::new(), self.0.desk(LISTING)?);
        for (_, mut live) in desk.commands.servers(LISTING).await? {
            let mut cursor = 0;
            loop {
                let command = scan(&naming::pattern(&self.options().prefix), cursor);
                let answer = live.send(&command, self.options().timeout).await;
                let answer = answer.map_err(|it| live.fault(LISTING, it))?;
                let (next, page): (u64, Vec<String>) =
                    redis::from_redis_value(answer).map_err(|it| live.fault(LISTING, it.into()))?;
                keys.extend(page);
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

fn scan(pattern: &str, cursor: u64) -> Cmd {
    let mut command = Cmd::new();
    command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    command
}

/// The server's time, and the rest of an answer that begins with it.
fn opened(doing: &'static str, answer: Value) -> Result<(u64, Vec<Value>)> {
    let Value::Array(mut parts) = answer else {
        return Err(unexpected(doing));
    };
    if parts.is_empty() {
        return Err(unexpected(doing));
    }
    let now: u64 = redis::from_redis_value(parts.remove(0)).map_err(|it| fault::of(doing, it.into()))?;
    Ok((now, parts))
}

fn unexpected(doing: &'static str) -> Fault {
    Fault::transient(fault::NAME, doing, "the script gave an answer that is not ours")
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(it) => Some(it),
        _ => None,
    }
}
