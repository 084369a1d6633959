//! Locks are judged by a clock that goes on while the machine sleeps, as the store's does.

use std::process::Command;
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};

const CHILD: &str = "LOCKKEEPER_TEST_ASLEEP";
const SLEPT: Duration = Duration::from_secs(1_000_000);

fn since_boot() -> Duration {
    Clock::boot().now() - Moment::from_nanos(0)
}

/// A namespace of time stands in for a machine that has slept: there the clock that goes on is ahead by as much, and
/// the one that stops in sleep is not.
#[test]
fn the_time_that_the_machine_slept_counts() {
    if std::env::var_os(CHILD).is_some() {
        println!("since boot: {}.", since_boot().as_secs());
        return;
    }
    let mut command = Command::new("unshare");
    // Without root's rights it takes a namespace of users in which we have them.
    let root = std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    command.args(if root { [].as_slice() } else { ["--user", "--map-root-user"].as_slice() });
    command.args(["--time", "--boottime", &SLEPT.as_secs().to_string(), "--fork", "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "the_time_that_the_machine_slept_counts", "--nocapture"]).env(CHILD, "1");
    let before = since_boot();
    let out = command.output().expect("`unshare` of Debian's package util-linux is installed");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let seconds = said.split("since boot: ").nth(1).and_then(|it| it.split('.').next()?.parse().ok());
    let there = seconds.map(Duration::from_secs);
    let there = there.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&out.stderr)));
    let ahead = there.saturating_sub(before);
    assert!(
        SLEPT <= ahead + Duration::from_secs(1),
        "the clock stood still in sleep: {there:?} after {before:?}"
    );
}
