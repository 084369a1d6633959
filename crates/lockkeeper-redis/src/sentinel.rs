//! Following a Sentinel switch: the sentinels announce a new primary, and what was opened before is given up.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lockkeeper_core::kit::locked;
use redis::RedisResult;

use crate::connection::within;
use crate::dial::SharedDialer;
use crate::options::Host;

const SWITCH: &str = "+switch-master";

/// Pause before a sentinel that cannot be heard is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Listen to all sentinels for ever, and call `switched` when one announces that the service has a new primary.
///
/// Without this a primary that was cut off from its sentinels, but not from us, would be believed until it is told of
/// its demotion. To all of them: one may be frozen, or cut off itself.
pub(crate) async fn watch(dialer: SharedDialer, service: String, switched: impl Fn() + Sync) {
    // Each tells of the same switch.
    let last = std::sync::Mutex::new(String::new());
    let heard = |news: String| {
        if std::mem::replace(&mut *locked(&last), news.clone()) != news {
            switched();
        }
    };
    let watching = dialer.options.hosts.iter().map(|host| {
        let (dialer, service, heard) = (&dialer, &service, &heard);
        async move {
            loop {
                // Whatever went wrong, this sentinel is asked again, and the others are heard meanwhile.
                let _ = listen(dialer, host, service, heard).await;
                dialer.clock.sleep(PAUSE).await;
            }
        }
    });
    join_all(watching).await;
}

/// Tell each switch of the service that this sentinel announces, until it stops talking.
async fn listen(
    dialer: &SharedDialer,
    host: &Host,
    service: &str,
    heard: impl Fn(String),
) -> RedisResult<()> {
    let client = dialer.sentinel_client(host)?;
    let subscribed = async {
        let mut pubsub = client.get_async_pubsub().await?;
        pubsub.subscribe(SWITCH).await?;
        RedisResult::Ok(pubsub)
    };
    let Some(pubsub) = within(&dialer.clock, dialer.longest_dial(), subscribed).await else {
        return Ok(());
    };
    let mut messages = pubsub?.into_on_message();
    while let Some(message) = messages.next().await {
        let text: String = message.get_payload()?;
        // Service, old address, new address.
        if text.split(' ').next() == Some(service) {
            heard(text);
        }
    }
    Ok(())
}
