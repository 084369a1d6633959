//! A single server as one of several nodes that vote: who it is, how old its memory, and its counter raised.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::locked;
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use redis::{Cmd, RedisResult, Value};

use crate::connection::Live;
use crate::dial::field;
use crate::fault::NAME;
use crate::options::Deployment;
use crate::place::digits;
use crate::{Redis, RedisPlace};

const LOOKING: &str = "asking a node who it is";
const RAISING: &str = "raising the counter";

/// What is told of a server is believed for this long. A restart breaks the connection; a primary that an operator
/// turns into a replica goes on talking.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// What is known of the server at the other end of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    run: Arc<str>,
    uptime: Duration,
    seen_at: Moment,
    /// Whose replica it is, if it is one.
    follows: Option<String>,
}

impl Node for Redis {
    async fn standing(&self) -> Result<Standing> {
        if self.options().deployment != Deployment::Single {
            let what =
                "a node must be a single server: give its own address, not that of sentinels or a cluster";
            return Err(Fault::permanent(NAME, LOOKING, what));
        }
        let live = self.0.desk(LOOKING)?.commands.open(LOOKING, 0).await?;
        let server = self.server(&live).await.map_err(|it| live.fault(LOOKING, it))?;
        if let Some(primary) = server.follows {
            let what = format!(
                "{} is a replica of {primary}: a node must be a primary of its own, or its vote is its primary's; \
                 make it one by REPLICAOF NO ONE, or name another server",
                self.options()
            );
            return Err(Fault::permanent(NAME, LOOKING, what));
        }
        let remembers = Some(server.uptime + (self.0.now() - server.seen_at));
        Ok(Standing::new(server.run, remembers))
    }
}

impl Redis {
    /// Who is at the other end of this connection.
    async fn server(&self, live: &Live) -> RedisResult<Server> {
        let known = locked(live.server()).clone();
        if let Some(known) = known.filter(|it| self.0.now() - it.seen_at < BELIEVED_FOR) {
            return Ok(known);
        }
        // Before the question: what it tells is at least as new.
        let seen_at = self.0.now();
        let mut command = Cmd::new();
        command.arg("INFO").arg("server").arg("replication");
        let info: String = redis::from_redis_value(live.send(&command, self.options().timeout).await?)?;
        let run = field(&info, "run_id").unwrap_or_default().into();
        let seconds = field(&info, "uptime_in_seconds").and_then(|it| it.parse().ok()).unwrap_or(0_u64);
        let follows = (field(&info, "role") != Some("master")).then(|| {
            let part = |name| field(&info, name).unwrap_or("?");
            format!("{}:{}", part("master_host"), part("master_port"))
        });
        // Counted in whole seconds of the wall clock: it may be one too many.
        let server = Server { run, uptime: Duration::from_secs(seconds.saturating_sub(1)), seen_at, follows };
        *locked(live.server()) = Some(server.clone());
        Ok(server)
    }
}

impl RaiseCounter for RedisPlace {
    async fn raise(&mut self, counter: u64) -> Result<Option<u64>> {
        let mut text = [0; 20];
        let script = &self.store().scripts().raise;
        match self.call(RAISING, script, digits(counter, &mut text)).await? {
            Value::Int(0) => Ok(None),
            Value::Int(counter) => {
                self.store().note(counter.unsigned_abs());
                Ok(Some(counter.unsigned_abs()))
            }
            _ => Err(Fault::transient(NAME, RAISING, "the script gave an answer that is not ours")),
        }
    }
}
