//! Redis locks beside bare commands on the same client and beside rslock, on one throw-away server whose own
//! statistics count the commands.

mod renewals;
mod rivals;
mod socket;
mod solo;
pub(crate) mod tally;
pub(crate) mod trips;
mod wanted;

use lockkeeper_servers::{Redis, RedisOptions};

use crate::Outcome;
pub(crate) use rivals::OnRedis;

/// Free locks.
pub(crate) fn free() -> Outcome {
    on_server(async |server| {
        let mut rows =
            vec![solo::one(server).await?, solo::many(server).await?, solo::metered(server).await?];
        rows.extend(socket::rows(server).await?);
        Ok(rows)
    })
}

/// One key that many want.
pub(crate) fn wanted() -> Outcome {
    on_server(async |server| {
        let mut rows = wanted::one_process(server).await?;
        rows.extend(wanted::four_crowds(server).await?);
        rows.extend(wanted::four_alone(server).await?);
        Ok(rows)
    })
}

/// Locks that are kept for long.
pub(crate) fn kept() -> Outcome {
    on_server(async |server| Ok(vec![renewals::run(server).await?]))
}

fn on_server(suite: impl AsyncFnOnce(&Redis) -> Outcome) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Redis::start(RedisOptions::default()).await?;
        suite(&server).await
    })
}
