//! The operator's view: who holds what, who waits, and breaking a lock by hand.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::{Fence, Key, Label};
use redis::{Cmd, Value};

use crate::options::Deployment;
use crate::script::{Call, Script};
use crate::seen::Seen;
use crate::{Redis, doctor, fault, naming, record};

const LISTING: &str = "listing the locks";
const SHOWING: &str = "looking at the lock";
const BREAKING: &str = "breaking the lock";

/// Who held a lock with a record that is not ours.
const UNKNOWN: &str = "(unknown)";

/// Keys looked at per step of a listing.
const SCAN_COUNT: u32 = 512;
/// Locks looked at by one script: many, so that a trip is worth it, and not so many that others wait for long.
const LOOKED_AT: usize = 256;
/// Such scripts that are under way at a time: while one is read the next is served.
const UNDER_WAY: usize = 4;

impl Inspect for Redis {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let groups = self.grouped(self.all_keys().await?);
        let looks =
            stream::iter(groups.into_iter().map(|(tag, mains)| self.look_at(LISTING, mains, tag, None)));
        let found: Vec<Vec<LockInfo>> = looks.buffered(UNDER_WAY).try_collect().await?;
        let mut infos: Vec<LockInfo> =
            found.into_iter().flatten().filter(|it| it.key.as_str().starts_with(prefix)).collect();
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let (main, tag) = self.0.main_key(key);
        Ok(self.look_at(SHOWING, vec![main], tag, Some(key)).await?.into_iter().next())
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        self.take_away(key, None).await
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        let lost = self.take_away(key, Some(fence)).await?;
        Ok(lost.into_iter().next().map_or(Broken::Changed, Broken::Lost))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::examine(&self.0).await
    }
}

impl Redis {
    pub(crate) async fn run(
        &self,
        doing: &'static str,
        tag: u8,
        script: &Script,
        call: &Call<'_>,
    ) -> Result<Value> {
        let desk = self.0.desk(doing)?;
        desk.commands.call(doing, tag, script, call, self.options().timeout).await.answer
    }

    /// Take the lock away from all who hold it, or from the one with this fence.
    async fn take_away(&self, key: &Key, only: Option<Fence>) -> Result<Vec<Occupant>> {
        let (main, tag) = self.0.main_key(key);
        let only = only.map_or(String::new(), |it| it.counter().to_string());
        let call = Call { keys: &[&main, &self.0.mark_key(tag)], args: &[only.as_bytes()] };
        let answer = self.run(BREAKING, tag, &self.0.scripts().break_lock, &call).await?;
        let (now, records) = opened(BREAKING, answer)?;
        let nobody_known = || Occupant::new(Label::new(UNKNOWN.to_owned(), 0, None, None), Duration::ZERO);
        let lost = records.iter().filter_map(bytes).map(|it| record::read(it, now));
        Ok(lost.map(|it| it.map_or_else(nobody_known, |(_, occupant)| occupant)).collect())
    }

    /// Those of these locks, all of this tag on a cluster, that are not free. `asked` is the name of the only one, where it is
    /// known.
    async fn look_at(
        &self,
        doing: &'static str,
        mains: Vec<String>,
        tag: u8,
        asked: Option<&Key>,
    ) -> Result<Vec<LockInfo>> {
        let keys: Vec<&str> = mains.iter().map(String::as_str).collect();
        let answer = self.run(doing, tag, &self.0.scripts().show, &Call { keys: &keys, args: &[] }).await?;
        let (now, locks) = opened(doing, answer)?;
        let infos = mains.iter().zip(&locks).map(|(main, it)| Seen::read(main, it, now)?.lock(asked));
        Ok(infos.flatten().collect())
    }

    /// The keys of locks, sorted, in groups that can share a script: on a cluster only those of one tag can.
    fn grouped(&self, keys: Vec<String>) -> Vec<(u8, Vec<String>)> {
        let apart = self.options().deployment == Deployment::Cluster;
        let mut groups: Vec<(u8, Vec<String>)> = Vec::new();
        for key in keys {
            let Some(tag) = naming::tag_of(&self.options().prefix, &key) else { continue };
            match groups.last_mut() {
                Some((of, mains)) if (!apart || *of == tag) && mains.len() < LOOKED_AT => mains.push(key),
                _ => groups.push((tag, vec![key])),
            }
        }
        groups
    }

    /// The keys of all locks, on a cluster those of every primary.
    async fn all_keys(&self) -> Result<Vec<String>> {
        let (mut keys, desk) = (Vec::new(), self.0.desk(LISTING)?);
        for (_, live) in desk.commands.servers(LISTING).await? {
            let mut cursor = 0;
            loop {
                let command = scan(&naming::pattern(&self.options().prefix), cursor);
                let answer = live.send(&command, self.options().timeout).await;
                let answer = answer.map_err(|it| live.fault(LISTING, it))?;
                let (next, page): (u64, Vec<Vec<u8>>) =
                    redis::from_redis_value(answer).map_err(|it| live.fault(LISTING, it.into()))?;
                // What is no text has no name of ours.
                keys.extend(page.into_iter().filter_map(|it| String::from_utf8(it).ok()));
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

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(it) => Some(it),
        _ => None,
    }
}
