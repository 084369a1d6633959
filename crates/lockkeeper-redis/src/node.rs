//! A single server as one of several nodes that vote: who it is, how old its memory, and its counter raised.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use redis::{Cmd, RedisResult, Value};

use crate::connection::Live;
use crate::dial::{Wire, field};
use crate::fault::NAME;
use crate::options::Deployment;
use crate::place::digits;
use crate::script::Call;
use crate::{Redis, RedisPlace};

const LOOKING: &str = "asking a node who it is";
const RAISING: &str = "raising the counter";

/// What is known of the server at the other end of one connection. A server that restarts breaks it, so this
/// stays true for as long as the connection lives.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    run: Arc<str>,
    uptime: Duration,
    seen_at: Moment,
}

impl Node for Redis {
    async fn standing(&self) -> Result<Standing> {
        if self.options().deployment != Deployment::Single {
            let what =
                "a node must be a single server: give its own address, not that of sentinels or a cluster";
            return Err(Fault::permanent(NAME, LOOKING, what));
        }
        let mut live = self.0.commands().open(LOOKING).await?;
        let server = server(&mut live, || self.0.now()).await.map_err(|it| live.fault(LOOKING, it))?;
        let remembers = Some(server.uptime + (self.0.now() - server.seen_at));
        Ok(Standing::new(server.run, remembers))
    }
}

/// Ask once for every connection.
async fn server(live: &mut Live, now: impl Fn() -> Moment) -> RedisResult<Server> {
    if let Some(known) = live.server().get() {
        return Ok(known.clone());
    }
    let Wire::Server(connection) = live.wire() else {
        return Err((redis::ErrorKind::Client, "a cluster is no single server").into());
    };
    let info: String = Cmd::new().arg("INFO").arg("server").query_async(connection).await?;
    let seen_at = now();
    let run = field(&info, "run_id").unwrap_or_default().into();
    let seconds = field(&info, "uptime_in_seconds").and_then(|it| it.parse().ok()).unwrap_or(0_u64);
    // Counted in whole seconds of the wall clock: it may be one too many.
    let server = Server { run, uptime: Duration::from_secs(seconds.saturating_sub(1)), seen_at };
    Ok(live.server().get_or_init(|| server).clone())
}

impl RaiseCounter for RedisPlace {
    async fn raise(&mut self, counter: u64) -> Result<Option<u64>> {
        let mut text = [0; 20];
        let (store, main, id) = self.known_as();
        let call = Call { keys: &[main], args: &[id, digits(counter, &mut text)] };
        match store.commands().call(RAISING, &store.scripts().raise, &call).await? {
            Value::Int(0) => Ok(None),
            Value::Int(counter) => Ok(Some(counter.unsigned_abs())),
            _ => Err(Fault::transient(NAME, RAISING, "the script gave an answer that is not ours")),
        }
    }
}
