//! Three hosts whose clocks are 60 ms apart start the same job: it runs once for each tick.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_servers::{Redis, RedisOptions};

const TICKS: [&str; 4] = ["2026-11-15", "2026-11-16", "2026-11-17", "2026-11-18"];
const INSTANCES: u32 = 3;
const APART: Duration = Duration::from_millis(60);

#[test]
fn a_job_runs_once_for_each_tick_on_three_instances_whose_clocks_are_apart() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redis = runtime.block_on(Redis::start(RedisOptions::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let start = |tick: &str| -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nightly-job"));
        command.arg(tick).arg(&report).env("LOCKKEEPER_URL", redis.url());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let (mut ran, mut found_done) = (0, 0);
    for tick in TICKS {
        let instances: Vec<Child> = (0..INSTANCES)
            .map(|at| {
                std::thread::sleep(if at == 0 { Duration::ZERO } else { APART });
                start(tick)
            })
            .collect();
        for instance in instances {
            let end = instance.wait_with_output().unwrap();
            assert!(end.status.success(), "{end:?}");
            let said = String::from_utf8(end.stdout).unwrap();
            ran += u32::from(said.ends_with(": ran\n"));
            found_done += u32::from(said.ends_with(": was done before\n"));
        }
    }
    let ticks = u32::try_from(TICKS.len()).unwrap();
    assert_eq!((ran, found_done), (ticks, ticks * (INSTANCES - 1)));
    let lines = std::fs::read_to_string(&report).unwrap();
    assert_eq!(lines.lines().collect::<Vec<_>>(), TICKS, "each once, and in order");
}
