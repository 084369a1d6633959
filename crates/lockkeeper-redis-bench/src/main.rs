//! Figures for Lockkeeper on Redis: against bare commands on the same client and against rslock, in one run.
//!
//! `redis-bench [WORKLOAD…]` with the workloads `one`, `many`, `crowd`, `processes`, `handoff`, `renewals`; all but
//! the last if none is named. A throw-away server is started; its own statistics count the commands. Only
//! ratios within one run carry over to other machines.

#![expect(clippy::print_stdout, reason = "figures are its product")]

mod crowd;
mod renewals;
mod rivals;
mod solo;
mod tally;
mod worker;

use std::error::Error;

use lockkeeper_testkit::servers::{Redis, RedisOptions};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|it| it == "worker") {
        return worker::run(&arguments[1..]).await;
    }
    let server = Redis::start(RedisOptions::default()).await?;
    let all = ["one", "many", "crowd", "processes", "handoff"];
    let chosen: Vec<&str> = match arguments.as_slice() {
        [] => all.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    for workload in chosen {
        match workload {
            "one" => solo::one(&server).await?,
            "many" => solo::many(&server).await?,
            "ours" => solo::ours(&server).await?,
            "crowd" => crowd::one_process(&server).await?,
            "processes" => crowd::four_processes(&server, 16).await?,
            "handoff" => crowd::four_processes(&server, 1).await?,
            "renewals" => renewals::run(&server).await?,
            other => return Err(format!("unknown workload {other:?}").into()),
        }
    }
    Ok(())
}
