//! Fenced writes: a fence beside each key of yours, which refuses whoever comes with an old one.
//!
//! Every access goes through a script that checks and raises the fence and then does the work, in one step of
//! the server. Reading raises it too: the first access of a new holder must, or an old holder's late write slips in
//! between its read and its write. Those who share a lock raise a second number, which refuses writers that came before
//! them and no one who shares.

use std::time::Duration;

use lockkeeper_core::{Error, Fence, FencedError, Key, SharedFence};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, ToRedisArgs};

const GUARD: &str = include_str!("scripts/fenced.lua");

/// What our script says to an old fence: which key, and what its fence is.
const STALE: &str = "STALEFENCE";

/// How our script is told that a fence is that of one who shares.
const SHARES: &str = "S";

/// A fence beside each key, in the same hash slot, so that it works on a cluster as well.
///
/// A key must be guarded by one lock only: fences of different locks say nothing about each other. All programs
/// that write the key must do so through a checker with the same prefix.
///
/// ```no_run
/// # async fn f(guard: lockkeeper_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// # use lockkeeper_core::Key;
/// # use lockkeeper_redis::RedisFences;
/// let mut shop = redis::Client::open("redis://127.0.0.1/")?.get_multiplexed_async_connection().await?;
/// let (fences, stock) = (RedisFences::default(), Key::new("stock:7")?);
/// let amount: u64 = fences.get(&mut shop, &stock, guard.fence()).await?;
/// fences.set(&mut shop, &stock, amount - 1, guard.fence()).await?;
///
/// let take = fences.script("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// let left: i64 = take.call(&mut shop, &[&stock], &["1"], guard.fence()).await?;
/// # Ok(()) }
/// ```
///
/// Those who share a lock read by [`RedisFences::read`]. Of two living readers neither is refused; whoever wrote before
/// they read is.
///
/// ```no_run
/// # async fn f(locker: lockkeeper_core::Locker) -> Result<(), Box<dyn std::error::Error>> {
/// # use lockkeeper_core::Key;
/// # use lockkeeper_redis::RedisFences;
/// # let mut shop = redis::Client::open("redis://127.0.0.1/")?.get_multiplexed_async_connection().await?;
/// # let (fences, stock) = (RedisFences::default(), Key::new("stock:7")?);
/// let reader = locker.read("stock:7").await?;
/// let amount: u64 = fences.read(&mut shop, &stock, reader.fence()).await?;
/// # Ok(()) }
/// ```
///
/// What writes does not take their fence:
///
/// ```compile_fail,E0308
/// # async fn f(locker: lockkeeper_core::Locker) -> Result<(), Box<dyn std::error::Error>> {
/// # use lockkeeper_core::Key;
/// # use lockkeeper_redis::RedisFences;
/// # let mut shop = redis::Client::open("redis://127.0.0.1/")?.get_multiplexed_async_connection().await?;
/// # let (fences, stock) = (RedisFences::default(), Key::new("stock:7")?);
/// let reader = locker.read("stock:7").await?;
/// fences.set(&mut shop, &stock, 8, reader.fence()).await?; // expected `Fence`, found `SharedFence`
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisFences {
    prefix: String,
    kept_for: Option<Duration>,
}

impl Default for RedisFences {
    /// Fences under `lk:fence`, kept for ever.
    fn default() -> Self {
        RedisFences { prefix: "lk:fence".to_owned(), kept_for: None }
    }
}

impl RedisFences {
    /// Fences under this prefix.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty or contains `{`, which would choose another hash slot.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        if prefix.is_empty() || prefix.contains('{') {
            return Err(Error::invalid(format!(
                "the prefix of fences cannot be {prefix:?}; use a word without `{{`"
            )));
        }
        Ok(RedisFences { prefix: prefix.to_owned(), ..RedisFences::default() })
    }

    /// Forget the fence of a key that nobody accessed for this long, so that keys which come and go leave nothing.
    ///
    /// A holder that was frozen for longer is not refused any more: choose days, not seconds.
    #[must_use]
    pub fn kept_for(mut self, span: Duration) -> Self {
        self.kept_for = Some(span);
        self
    }

    /// Where the fence of a key is kept.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key with `}` that has no hash tag: no other key is sure to share its slot.
    pub fn fence_key(&self, key: &Key) -> Result<String, Error> {
        let (name, prefix) = (key.as_str(), &self.prefix);
        let Some(tag) = hash_tag(name) else {
            return Err(Error::invalid(format!(
                "the key {name:?} cannot be fenced, as it contains `}}` but no hash tag; put a tag such as `{{7}}` before it"
            )));
        };
        Ok(format!("{prefix}:{{{tag}}}:{name}"))
    }

    /// Read a string and raise its fence to ours. A key that is not there is `None`, if `T` is an `Option`.
    ///
    /// # Cancel safety
    /// If dropped, the fence may or may not be raised.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was here. Otherwise the driver's error.
    pub async fn get<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        key: &Key,
        fence: Fence,
    ) -> Result<T, FencedError<RedisError>> {
        self.script("return redis.call('GET', KEYS[1])").call(connection, &[key], &[""; 0], fence).await
    }

    /// Read a string under a lock that is shared. Whoever wrote before is refused from now on; others who share are not.
    ///
    /// # Cancel safety
    /// If dropped, the fence may or may not be raised.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer lock wrote, or read alone. Otherwise the driver's error.
    pub async fn read<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        key: &Key,
        fence: SharedFence,
    ) -> Result<T, FencedError<RedisError>> {
        let script = self.script("return redis.call('GET', KEYS[1])");
        script.call_shared(connection, &[key], &[""; 0], fence).await
    }

    /// Write a string, unless our fence is stale. What was there before goes, with its expiry.
    ///
    /// # Cancel safety
    /// If dropped, the value may or may not be written.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was here: nothing is written. Otherwise the
    /// driver's error: whether it is written is unknown.
    pub async fn set(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        key: &Key,
        value: impl ToRedisArgs + Send + Sync,
        fence: Fence,
    ) -> Result<(), FencedError<RedisError>> {
        let script = self.script("redis.call('SET', KEYS[1], ARGV[1])");
        script.call(connection, &[key], &[value], fence).await
    }

    /// A script of yours that runs only if the fence is not stale for any of its keys.
    pub fn script(&self, text: &str) -> FencedScript {
        let text = format!("{GUARD}{text}");
        let hash = redis::Script::new(&text).get_hash().to_owned();
        FencedScript { fences: self.clone(), text, hash }
    }
}

/// A script behind the check. Made by [`RedisFences::script`]; make it once and keep it.
///
/// It finds its keys in `KEYS` and its arguments in `ARGV`, as any script does, and must touch no other keys. On a
/// cluster all keys must share a hash slot.
#[derive(Clone, Debug)]
pub struct FencedScript {
    fences: RedisFences,
    text: String,
    hash: String,
}

impl FencedScript {
    /// Check and raise the fence of every key, then run the script.
    ///
    /// # Cancel safety
    /// If dropped, the script may or may not have run.
    ///
    /// # Errors
    /// [`FencedError::Stale`] if somebody with a newer fence was at one of the keys: the script did not run.
    /// Otherwise the driver's error: whether it ran is unknown, and an error of its own does not undo what it wrote.
    pub async fn call<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        keys: &[&Key],
        args: &[impl ToRedisArgs + Sync],
        fence: Fence,
    ) -> Result<T, FencedError<RedisError>> {
        self.run(connection, keys, args, (fence, "")).await
    }

    /// The same for a script that only reads, under a lock that is shared. The fences refuse whoever wrote before, and
    /// no one who shares.
    ///
    /// # Cancel safety
    /// If dropped, the script may or may not have run.
    ///
    /// # Errors
    /// As for [`FencedScript::call`].
    pub async fn call_shared<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        keys: &[&Key],
        args: &[impl ToRedisArgs + Sync],
        fence: SharedFence,
    ) -> Result<T, FencedError<RedisError>> {
        self.run(connection, keys, args, (Fence::from_u64(fence.get()), SHARES)).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        keys: &[&Key],
        args: &[impl ToRedisArgs + Sync],
        (fence, kind): (Fence, &str),
    ) -> Result<T, FencedError<RedisError>> {
        let fences = keys.iter().map(|it| self.fences.fence_key(it)).collect::<Result<Vec<_>, _>>();
        let fences = fences.map_err(|it| invalid(it.to_string()))?;
        if keys.is_empty() {
            return Err(invalid("a fenced script needs the keys it works on".to_owned()));
        }
        let command = |verb: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(verb).arg(script).arg(keys.len() * 2);
            for key in keys {
                command.arg(key.as_str());
            }
            command.arg(&fences).arg(format!("{:020}{kind}", fence.get())).arg(self.kept_ms());
            for arg in args {
                command.arg(arg);
            }
            command
        };
        let mut answer = command("EVALSHA", &self.hash).query_async(connection).await;
        if answer.as_ref().is_err_and(is_noscript) {
            answer = command("EVAL", &self.text).query_async(connection).await;
        }
        answer.map_err(|error| stale(keys, fence, &error).unwrap_or(FencedError::Database(error)))
    }

    fn kept_ms(&self) -> u64 {
        self.fences.kept_for.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX >> 11).max(1))
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn invalid(what: String) -> FencedError<RedisError> {
    FencedError::Database(RedisError::from((ErrorKind::InvalidClientConfig, "cannot be fenced", what)))
}

/// The refusal that our script gave, if this is one.
fn stale(keys: &[&Key], fence: Fence, error: &RedisError) -> Option<FencedError<RedisError>> {
    if error.code() != Some(STALE) {
        return None;
    }
    let mut words = error.detail()?.split(' ');
    let (at, seen) = (words.next()?.parse::<usize>().ok()?, words.next()?.parse().ok()?);
    let resource = (*keys.get(at.checked_sub(1)?)?).clone();
    Some(FencedError::Stale { resource, fence, seen: Fence::from_u64(seen) })
}

/// What Redis hashes to find the slot of a key, if it can be put between braces.
fn hash_tag(key: &str) -> Option<&str> {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    match tagged.filter(|it| !it.is_empty()) {
        Some(tag) => Some(tag),
        None => (!key.contains('}')).then_some(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence_key(key: &str) -> Result<String, Error> {
        RedisFences::default().fence_key(&Key::new(key).unwrap())
    }

    #[test]
    fn a_fence_shares_the_tag_of_its_key() {
        assert_eq!(fence_key("stock:7").unwrap(), "lk:fence:{stock:7}:stock:7");
        assert_eq!(fence_key("{shop}:stock").unwrap(), "lk:fence:{shop}:{shop}:stock");
        assert_eq!(fence_key("{{shop}}").unwrap(), "lk:fence:{{shop}:{{shop}}");
        assert_eq!(fence_key("{open").unwrap(), "lk:fence:{{open}:{open");
        for untagged in ["a}b", "{}a", "a}{b"] {
            assert!(fence_key(untagged).unwrap_err().to_string().contains("hash tag"), "{untagged}");
        }
        assert!(RedisFences::new("{x}").is_err() && RedisFences::new("").is_err());
    }
}
