//! Replicas that confirm: a grant counts only when enough of them have it, by WAIT.
//!
//! WAIT asks about what its own connection wrote last. So the grant is written once more here, by the
//! renewal script, which also proves that it still stands on this primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper_core::backend::Fault;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use crate::connection::{Link, Live};
use crate::dial::{SharedDialer, Wire, field};
use crate::fault;
use crate::options::Replicas;
use crate::place::digits;
use crate::script::{Call, Scripts};

/// Confirms grants on a connection of its own, because WAIT blocks it.
#[derive(Debug)]
pub(crate) struct Sync {
    link: Link,
    dialer: SharedDialer,
    scripts: Arc<Scripts>,
    /// The most replicas ever seen, for `majority`: one that is down still counts as a server.
    most_seen: AtomicU32,
}

impl Sync {
    pub(crate) fn new(link: Link, dialer: SharedDialer, scripts: Arc<Scripts>) -> Self {
        Sync { link, dialer, scripts, most_seen: AtomicU32::new(0) }
    }

    /// Fails if too few replicas confirm in time, or the grant is not there any more.
    pub(crate) async fn confirm(
        &self,
        doing: &'static str,
        main: &str,
        id: &[u8; 16],
        ttl_ms: u64,
    ) -> Result<(), Fault> {
        let mut live = self.link.open(doing).await?;
        let outcome = self.ask(&mut live, main, id, ttl_ms).await;
        let (held, confirmed, needed) = outcome.map_err(|it| live.fault(doing, it))?;
        if held && needed <= confirmed {
            return Ok(());
        }
        let what = if held {
            format!("only {confirmed} of {needed} replicas confirmed the grant in time; it was given up")
        } else {
            "the grant was gone when the replicas were asked".to_owned()
        };
        Err(Fault::transient(fault::NAME, doing, what))
    }

    async fn ask(
        &self,
        live: &mut Live,
        main: &str,
        id: &[u8; 16],
        ttl_ms: u64,
    ) -> RedisResult<(bool, u32, u32)> {
        let needed = self.needed(live, main).await?;
        let mut buffer = [0; 20];
        let call = Call { keys: &[main], args: &[id, digits(ttl_ms, &mut buffer)] };
        let mut wait = Cmd::new();
        let millis = u64::try_from(self.dialer.options.replicas_timeout.as_millis()).unwrap_or(u64::MAX);
        wait.arg("WAIT").arg(needed).arg(millis.max(1));
        let mut answers = run(live, main, &[self.scripts.renew.by_hash(&call), wait.clone()]).await;
        if answers.as_ref().is_err_and(is_noscript) {
            answers = run(live, main, &[self.scripts.renew.by_text(&call), wait]).await;
        }
        match answers?.as_slice() {
            [Value::BulkString(digit), Value::Int(confirmed)] => {
                let confirmed = u32::try_from(*confirmed).unwrap_or(0);
                Ok((digit.first() != Some(&b'0'), confirmed, needed))
            }
            _ => Ok((false, 0, needed)),
        }
    }

    async fn needed(&self, live: &mut Live, main: &str) -> RedisResult<u32> {
        match self.dialer.options.replicas {
            Replicas::None => return Ok(0),
            Replicas::Count(count) => return Ok(count),
            Replicas::Majority => {}
        }
        let mut info = Cmd::new();
        info.arg("INFO").arg("replication");
        let answers = run(live, main, &[info]).await?;
        let text: String = answers.into_iter().next().map_or(Ok(String::new()), redis::from_redis_value)?;
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

/// Send commands one after the other to the server that keeps this lock.
async fn run(live: &mut Live, main: &str, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command.clone());
    }
    match live.wire() {
        Wire::Server(it) => pipeline.query_async(it).await,
        Wire::Cluster(it) => {
            let route = Route::with_key(main, SlotAddr::Master);
            let values = it
                .route_pipeline(pipeline, 0, commands.len(), SingleNodeRoutingInfo::SpecificNode(route))
                .await?;
            values.into_iter().map(Value::extract_error).collect()
        }
    }
}
