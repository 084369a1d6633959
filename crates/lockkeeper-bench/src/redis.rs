//! Redis locks beside bare commands on the same client and beside rslock, on one throw-away server whose own
//! statistics count the commands.

mod crowd;
mod renewals;
mod rivals;
mod solo;
mod tally;
mod worker;

use lockkeeper_testkit::servers::{Redis, RedisOptions};

use crate::Outcome;
pub(crate) use worker::{WORKER, work};

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Redis::start(RedisOptions::default()).await?;
        let mut rows = vec![solo::one(&server).await?, solo::many(&server).await?];
        rows.extend(crowd::one_process(&server).await?);
        rows.extend(crowd::four_crowds(&server).await?);
        rows.extend(crowd::four_alone(&server).await?);
        rows.push(renewals::run(&server).await?);
        Ok(rows)
    })
}
