//! The plain Redis lock of the books: set if absent with an expiry, ask again after a pause, delete if it is ours.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::{ClaimId, Clock, Moment};
use redis::IntoConnectionInfo as _;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;

use crate::books::Trouble;
use crate::counting::Trips;

/// How long a contender sleeps between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
const TTL: Duration = Duration::from_secs(30);

pub(crate) struct PlainLock {
    asking: MultiplexedConnection,
    /// A connection of its own, so that giving back does not stand behind everybody who asks.
    giving: MultiplexedConnection,
    name: String,
    trips: Arc<Trips>,
}

/// A plain lock that is held.
pub(crate) struct Held<'a> {
    lock: &'a PlainLock,
    token: String,
}

const DELETE_IF_OURS: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl PlainLock {
    pub(crate) async fn open(url: &str, name: &str, trips: Arc<Trips>) -> Result<Self, Trouble> {
        let (asking, giving) = (connect(url).await?, connect(url).await?);
        Ok(PlainLock { asking, giving, name: name.to_owned(), trips })
    }

    /// Ask until it is ours, or it is too late, or there is no more sense in it.
    pub(crate) async fn acquire(
        &self,
        until: Moment,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<Held<'_>>, Trouble> {
        let (clock, token) = (Clock::boot(), ClaimId::random()?.to_hex());
        while !is_over() {
            self.trips.count();
            let mut set = redis::cmd("SET");
            set.arg(&self.name).arg(&token).arg("NX").arg("PX").arg(u64::try_from(TTL.as_millis())?);
            let answer: Option<String> = set.query_async(&mut self.asking.clone()).await?;
            if answer.is_some() {
                return Ok(Some(Held { lock: self, token }));
            }
            if until <= clock.now() {
                break;
            }
            clock.sleep(PAUSE).await;
        }
        Ok(None)
    }
}

impl Held<'_> {
    /// Delete it if it is ours.
    pub(crate) async fn release(self) -> Result<(), Trouble> {
        let Held { lock, token } = self;
        lock.trips.count();
        let mut delete = redis::cmd("EVAL");
        delete.arg(DELETE_IF_OURS).arg(1).arg(&lock.name).arg(token);
        Ok(delete.exec_async(&mut lock.giving.clone()).await?)
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, Trouble> {
    let tcp = TcpSettings::default().set_nodelay(true);
    // The driver's error may quote what it could not read; a password is not for logs.
    let info = url.into_connection_info().map_err(|_| "the Redis driver cannot read this URL")?;
    let client = redis::Client::open(info.set_tcp_settings(tcp))?;
    // A crowd of askers must not look like a dead server.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
