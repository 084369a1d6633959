//! Replicas that confirm: a grant counts only when enough of them have it, by WAIT.
//!
//! WAIT asks about what its own connection wrote last. So the grant is written once more here, by the
//! renewal script, which also proves that it still stands on this primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper_core::backend::Fault;
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::connection::Live;
use crate::dial::{SharedDialer, field};
use crate::fault;
use crate::options::Replicas;
use crate::place::digits;
use crate::road::Road;
use crate::script::{Call, Scripts};
use crate::wake::Holding;

/// Confirms grants on a connection of its own, because WAIT blocks it.
#[derive(Debug)]
pub(crate) struct Sync {
    road: Road,
    dialer: SharedDialer,
    scripts: Arc<Scripts>,
    /// The most replicas ever seen, for `majority`: one that is down still counts as a server.
    /// Acquire and Release are more than enough: it only grows, and whoever asked alone judges by its own answer.
    most_seen: AtomicU32,
}

impl Sync {
    pub(crate) fn new(road: Road, dialer: SharedDialer, scripts: Arc<Scripts>) -> Self {
        Sync { road, dialer, scripts, most_seen: AtomicU32::new(0) }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.road.is_stuck()
    }

    /// Fails if too few replicas confirm in time, or the grant is not there any more.
    pub(crate) async fn confirm(&self, doing: &'static str, holding: &Holding) -> Result<(), Fault> {
        let mut live = self.road.open(doing, holding.tag).await?;
        let mut outcome = self.ask(&live, holding).await;
        if outcome.as_ref().is_err_and(|it| self.road.follow(holding.tag, it)) {
            live = self.road.open(doing, holding.tag).await?;
            outcome = self.ask(&live, holding).await;
        }
        let (held, confirmed, needed) = outcome.map_err(|it| live.fault(doing, it))?;
        if held && needed <= confirmed {
            return Ok(());
        }
        let what = if held {
            format!("only {confirmed} of {needed} replicas confirmed in time, so it does not count")
        } else {
            "the grant was gone when the replicas were asked".to_owned()
        };
        Err(Fault::transient(fault::NAME, doing, what))
    }

    async fn ask(&self, live: &Live, holding: &Holding) -> RedisResult<(bool, u32, u32)> {
        let needed = self.needed(live).await?;
        let mut buffer = [0; 20];
        let args: [&[u8]; 2] = [holding.id.as_bytes(), digits(holding.ttl_ms, &mut buffer)];
        let call = Call { keys: &[&holding.main], args: &args };
        let patience = self.dialer.options.timeout + self.dialer.options.replicas_timeout;
        let mut wait = Cmd::new();
        let millis = u64::try_from(self.dialer.options.replicas_timeout.as_millis()).unwrap_or(u64::MAX);
        wait.arg("WAIT").arg(needed).arg(millis.max(1));
        let mut answers = live.send_all(&[self.scripts.renew.by_hash(&call), wait.clone()], patience).await;
        if answers.as_ref().is_err_and(is_noscript) {
            answers = live.send_all(&[self.scripts.renew.by_text(&call), wait], patience).await;
        }
        match answers?.as_slice() {
            [Value::BulkString(digit), Value::Int(confirmed)] => {
                let confirmed = u32::try_from(*confirmed).unwrap_or(0);
                Ok((digit.first() != Some(&b'0'), confirmed, needed))
            }
            _ => Ok((false, 0, needed)),
        }
    }

    async fn needed(&self, live: &Live) -> RedisResult<u32> {
        match self.dialer.options.replicas {
            Replicas::None => return Ok(0),
            Replicas::Count(count) => return Ok(count),
            Replicas::Majority => {}
        }
        let mut info = Cmd::new();
        info.arg("INFO").arg("replication");
        let text: String = redis::from_redis_value(live.send(&info, self.dialer.options.timeout).await?)?;
        let seen = field(&text, "connected_slaves").and_then(|it| it.parse().ok());
        let seen = seen.unwrap_or(0);
        let most = self.most_seen.fetch_max(seen, Ordering::AcqRel).max(seen);
        // Of most + 1 servers the primary and this many replicas are more than half.
        Ok(most.div_ceil(2))
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
