//! Hold a lock until it is lost or the process ends: `hold URL NAME TTL_MS`. Says `held FENCE`, then `lost`.

#![expect(clippy::print_stdout, reason = "it speaks to whoever started it")]

use std::io::Write as _;
use std::time::Duration;

use lockkeeper_core::{Error, Locker, Result};
use lockkeeper_redis::Redis;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, name, ttl] = arguments.as_slice() else {
        return Err(Error::invalid("usage: hold URL NAME TTL_MS"));
    };
    let ttl = ttl.parse().map(Duration::from_millis);
    let ttl = ttl.map_err(|_| Error::invalid("TTL_MS must be a number"))?;
    let locker = Locker::new(Redis::connect(url).await?);
    let guard = locker.lock(name).ttl(ttl).await?;
    println!("held {}", guard.fence());
    let _ = std::io::stdout().flush();
    guard.lost().await;
    println!("lost");
    Ok(())
}
