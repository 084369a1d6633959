//! What we are measured against: bare commands on the same client library, and rslock.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{ClaimId, Locker};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, Script};
use rslock::LockManager;
use tokio::sync::mpsc::UnboundedSender;

use crate::Answer;

pub(crate) const TTL: Duration = Duration::from_secs(10);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Somebody who can take a lock and give it back.
#[derive(Clone)]
pub(crate) enum Rival {
    /// SET NX PX and compare-and-delete: no line, no fence, no renewal. Only for locks that are free.
    Bare(MultiplexedConnection, Arc<Script>),
    /// Lockkeeper with everything on.
    Ours(Locker),
    /// rslock 0.10 with its defaults.
    Rslock(LockManager),
}

/// The client's own half second is little on a busy machine, and an error would end the run.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(TTL))
}

/// A connection like the one that our own client uses.
pub(crate) async fn connection(url: &str) -> Answer<MultiplexedConnection> {
    let config = patient().set_pipeline_buffer_size(4096);
    Ok(client(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// A connection that hears messages, again like our own client's.
pub(crate) async fn listener(
    url: &str,
    messages: UnboundedSender<PushInfo>,
) -> Answer<MultiplexedConnection> {
    let mut info = url.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let resp3 = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info = info.set_redis_settings(resp3);
    let config = patient().set_push_sender(messages);
    Ok(Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn client(url: &str) -> Answer<Client> {
    let info = url.into_connection_info()?;
    Ok(Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?)
}

impl Rival {
    pub(crate) async fn bare(url: &str) -> Answer<Self> {
        Ok(Rival::Bare(connection(url).await?, Arc::new(Script::new(COMPARE_AND_DELETE))))
    }

    pub(crate) async fn ours(url: &str) -> Answer<Self> {
        Ok(Rival::Ours(Locker::new(lockkeeper_redis::Redis::connect(url).await?)))
    }

    pub(crate) fn rslock(url: &str) -> Answer<Self> {
        Ok(Rival::Rslock(LockManager::from_clients(vec![client(url)?])))
    }

    pub(crate) async fn named(name: &str, url: &str) -> Answer<Self> {
        match name {
            "bare" => Rival::bare(url).await,
            "ours" => Rival::ours(url).await,
            "rslock" => Rival::rslock(url),
            other => Err(format!("unknown rival {other:?}").into()),
        }
    }

    /// Take the lock, do `work` with it, give it back.
    pub(crate) async fn cycle(&mut self, key: &str, work: impl FnOnce()) -> Answer<()> {
        match self {
            Rival::Bare(connection, script) => {
                let id = ClaimId::random()?.to_hex();
                let taken: Option<String> = redis::cmd("SET")
                    .arg(key)
                    .arg(&id)
                    .arg("NX")
                    .arg("PX")
                    .arg(TTL.as_millis())
                    .query_async(connection)
                    .await?;
                if taken.is_none() {
                    return Err("the lock was not free".into());
                }
                work();
                let _: i64 = script.key(key).arg(&id).invoke_async(connection).await?;
            }
            Rival::Ours(locker) => {
                let guard = locker.lock(key).ttl(TTL).wait_at_most(Duration::from_secs(60)).await?;
                work();
                guard.release().await?;
            }
            Rival::Rslock(manager) => {
                let guard = manager.acquire(key, TTL).await?;
                work();
                guard.release().await;
            }
        }
        Ok(())
    }
}
