//! Following a Sentinel switch: the sentinels announce a new primary, and the old connection is given up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::RedisResult;

use crate::connection::State;
use crate::dial::SharedDialer;
use crate::options::Host;
use crate::wake::Board;

const SWITCH: &str = "+switch-master";

/// Pause before the next sentinel is tried, when none can be heard.
const PAUSE: Duration = Duration::from_secs(1);

/// Listen to one sentinel after the other until the service is switched, then break the connection.
///
/// Without this a primary that was cut off from its sentinels, but not from us, would be believed until
/// it is told of its demotion.
pub(crate) async fn watch(dialer: SharedDialer, service: String, state: Weak<State>, board: Arc<Board>) {
    let hosts = dialer.options.hosts.clone();
    for host in hosts.iter().cycle() {
        if matches!(switched(&dialer, host, &service).await, Ok(true)) {
            if let Some(state) = state.upgrade() {
                state.give_up();
            }
            board.call_all();
            return;
        }
        if state.strong_count() == 0 {
            return;
        }
        dialer.clock.sleep(PAUSE).await;
    }
}

/// Whether the service was switched, as heard from this sentinel. `false` when it stops talking.
async fn switched(dialer: &SharedDialer, host: &Host, service: &str) -> RedisResult<bool> {
    let mut pubsub = dialer.sentinel_client(host)?.get_async_pubsub().await?;
    pubsub.subscribe(SWITCH).await?;
    let mut messages = pubsub.into_on_message();
    while let Some(message) = messages.next().await {
        let text: String = message.get_payload()?;
        if text.split(' ').next() == Some(service) {
            return Ok(true);
        }
    }
    Ok(false)
}
