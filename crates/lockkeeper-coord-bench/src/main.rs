//! Figures for Lockkeeper on etcd and ZooKeeper: against bare requests on the same client and against the lock that the
//! server or the client crate offers, in one run.
//!
//! `coord-bench [etcd1|etcd3|zookeeper1|zookeeper3…]`, all if none is named. Throw-away servers are started. Only
//! ratios within one run carry over to other machines.

#![expect(clippy::print_stdout, reason = "figures are its product")]

mod etcd;
mod hand_off;
mod measure;
mod zookeeper;

use std::error::Error;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen: Vec<&str> = match arguments.as_slice() {
        [] => vec!["etcd1", "etcd3", "zookeeper1", "zookeeper3"],
        some => some.iter().map(String::as_str).collect(),
    };
    println!("| what | ours | beside it | ratio | must be |");
    println!("|---|---|---|---|---|");
    for suite in chosen {
        match suite {
            "etcd1" => etcd::run(false).await?,
            "etcd3" => etcd::run(true).await?,
            "zookeeper1" => zookeeper::run(false).await?,
            "zookeeper3" => zookeeper::run(true).await?,
            other => return Err(format!("unknown suite {other:?}").into()),
        }
    }
    Ok(())
}
