//! What we are measured against: bare commands on the same client library, and rslock.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Guard;
use lockkeeper_core::ClaimId;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, Script};
use rslock::{LockGuard, LockManager};
use tokio::sync::mpsc::UnboundedSender;

use crate::Answer;
use crate::rival::{Ours, Rival};

pub(crate) const TTL: Duration = Duration::from_secs(10);
pub(super) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The rivals that only Redis has, and ours.
#[derive(Clone)]
pub(crate) enum OnRedis {
    /// SET NX PX and compare-and-delete: no line, no fence, no renewal. Only for locks that are free.
    Bare(MultiplexedConnection, Arc<Script>),
    /// Lockkeeper with everything on.
    Ours(Ours),
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

impl OnRedis {
    pub(crate) async fn named(name: &str, url: &str) -> Answer<Self> {
        match name {
            "bare" => Ok(OnRedis::Bare(connection(url).await?, Arc::new(Script::new(COMPARE_AND_DELETE)))),
            "ours" => Ok(OnRedis::Ours(Ours::connect(url).await?)),
            "rslock" => Ok(OnRedis::Rslock(LockManager::from_clients(vec![client(url)?]))),
            other => Err(format!("unknown rival {other:?}").into()),
        }
    }
}

/// What a holder has in hand.
pub(crate) enum Taken {
    /// The key and our mark in it.
    Bare(String, String),
    Ours(Guard),
    Rslock(LockGuard),
}

impl Rival for OnRedis {
    type Taken = Taken;

    async fn take(&mut self, key: &str) -> Answer<Taken> {
        match self {
            OnRedis::Bare(connection, _) => {
                let id = ClaimId::random()?.to_hex();
                let taken: Option<String> = redis::cmd("SET")
                    .arg(key)
                    .arg(&id)
                    .arg("NX")
                    .arg("PX")
                    .arg(TTL.as_millis())
                    .query_async(connection)
                    .await?;
                taken.map(|_| Taken::Bare(key.to_owned(), id)).ok_or_else(|| "the lock was not free".into())
            }
            OnRedis::Ours(ours) => Ok(Taken::Ours(ours.take(key).await?)),
            OnRedis::Rslock(manager) => Ok(Taken::Rslock(manager.acquire(key, TTL).await?)),
        }
    }

    async fn give_back(&mut self, taken: Taken) -> Answer<()> {
        match (self, taken) {
            (OnRedis::Bare(connection, script), Taken::Bare(key, id)) => {
                let _: i64 = script.key(key).arg(&id).invoke_async(connection).await?;
                Ok(())
            }
            (OnRedis::Ours(ours), Taken::Ours(guard)) => ours.give_back(guard).await,
            (OnRedis::Rslock(_), Taken::Rslock(guard)) => {
                guard.release().await;
                Ok(())
            }
            _ => Err("taken by another rival".into()),
        }
    }
}
