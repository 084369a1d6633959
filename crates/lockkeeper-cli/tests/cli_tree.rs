//! `run` and whoever left the command's process group: a daemon dies with the lock too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;
use std::process::Stdio;

use common::{Store, Talking, is_dead, send, until};
use rustix::process::Signal;

/// A command, deaf to TERM, with a daemon in a session of its own whose parent is gone. Each tells its process id.
const DAEMON: &str = "(setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1000; done' &); \
    trap '' TERM; echo $$; while :; do sleep 1000; done";

/// Run by the next holder: tells which of the processes still live, as the kernel sees them at that moment.
const WHO_LIVES: &str = "for p in \"$@\"; do s=X; read _ _ s _ 2>/dev/null < /proc/$p/stat; case $s in X|Z) ;; *) echo $p lives;; esac; done; echo looked";

/// Once with a group of the kernel's, where one may be made, and once without.
const CGROUPS: [&str; 2] = ["on", "off"];

fn daemon(store: &Store, cgroup: &str, options: &[&str]) -> (Talking, [String; 2]) {
    let args = ["run"].iter().chain(options).chain(&["x", "--", "sh", "-c", DAEMON]);
    let talking = Talking::start(store.lockkeeper(args).env("LOCKKEEPER_CGROUP", cgroup));
    let pids = [talking.line().unwrap(), talking.line().unwrap()];
    (talking, pids)
}

fn next(store: &Store, pids: &[String]) -> Talking {
    let mut next = store.lockkeeper(["run", "x", "--", "sh", "-c", WHO_LIVES, "sh"]);
    let next = Talking::start(next.args(pids));
    store.await_waiters("x", 1);
    next
}

#[test]
fn when_max_hold_ends_a_daemon_is_dead_before_the_next_holder_starts() {
    for cgroup in CGROUPS {
        let store = Store::new();
        let (daemon, pids) = daemon(&store, cgroup, &["--max-hold", "3s"]);
        let next = next(&store, &pids);
        next.expect("looked");
        assert_eq!(next.finish(), (0, String::new()));
        assert_eq!(daemon.line(), None, "everybody who could write is dead");
        assert_eq!(daemon.finish().0, 76);
    }
}

#[test]
fn when_lockkeeper_stands_still_the_warden_kills_a_daemon_before_the_lock_expires() {
    for cgroup in CGROUPS {
        let store = Store::new();
        let (daemon, pids) = daemon(&store, cgroup, &["--ttl", "6s"]);
        let next = next(&store, &pids);
        daemon.send(Signal::STOP);
        next.expect("looked");
        assert_eq!(next.finish(), (0, String::new()));
        daemon.send(Signal::CONT);
        assert_eq!(daemon.line(), None);
        assert_eq!(daemon.finish().0, 76);
    }
}

#[test]
fn if_lockkeeper_is_killed_a_daemon_dies_too() {
    for cgroup in CGROUPS {
        let store = Store::new();
        let (daemon, pids) = daemon(&store, cgroup, &[]);
        daemon.send(Signal::KILL);
        assert_eq!(daemon.line(), None, "everybody who could write is dead");
        assert_eq!(daemon.finish().0, -9);
        until("they are dead", || pids.iter().all(|it| is_dead(it.parse().unwrap())));
    }
}

#[test]
fn who_stays_behind_when_the_command_ends_is_left_alone() {
    for cgroup in CGROUPS {
        let store = Store::new();
        let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!";
        let mut command = store.lockkeeper(["run", "x", "--", "sh", "-c", script]);
        let talking = Talking::start(command.env("LOCKKEEPER_CGROUP", cgroup));
        let (lockkeeper, left): (_, u32) = (talking.child.id(), talking.line().unwrap().parse().unwrap());
        assert_eq!(talking.finish(), (0, String::new()));
        assert!(!is_dead(left), "the command had ended, and its lock with it");
        assert_eq!(groups_of(lockkeeper), Vec::<String>::new(), "its group is gone, and was left in time");
        send(left, Signal::KILL);
    }
}

/// Control groups that bear a process's number, wherever they are mounted.
fn groups_of(lockkeeper: u32) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|it| it.contains(" - cgroup2 "));
    let mounts = mounts.filter_map(|it| it.split(' ').nth(4)).map(Path::new);
    mounts.flat_map(|it| find(it, &format!("lockkeeper-{lockkeeper}"))).collect()
}

fn find(folder: &Path, name: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let folders = entries.filter_map(Result::ok).filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
    folders
        .flat_map(|it| {
            let mut found = find(&it.path(), name);
            if it.file_name() == name {
                found.push(it.path().display().to_string());
            }
            found
        })
        .collect()
}

#[test]
fn an_orphan_that_ends_is_not_left_a_zombie() {
    let store = Store::new();
    let script = "(sh -c 'echo $$' &); read line";
    let mut talking =
        Talking::start(store.lockkeeper(["run", "x", "--", "sh", "-c", script]).stdin(Stdio::piped()));
    let orphan = talking.line().unwrap();
    until("its end was noted", || !Path::new(&format!("/proc/{orphan}")).exists());
    drop(talking.child.stdin.take());
    talking.finish();
}

#[test]
fn lockkeeper_that_goes_on_with_little_time_left_tries_to_renew_first() {
    let store = Store::new();
    let script = "echo ready; read line; echo got-$line; exit 4";
    let args = ["run", "--ttl", "15s", "x", "--", "sh", "-c", script];
    let mut talking = Talking::start(store.lockkeeper(args).stdin(Stdio::piped()));
    talking.expect("ready");
    talking.send(Signal::STOP);
    // Less than what is left when the command would be asked to end, which is 5 s; it is killed 1 s before the end.
    let left = || store.shown("x")["holders"][0]["valid_for_ms"].as_u64().unwrap();
    until("little time is left", || left() < 4500);
    talking.send(Signal::CONT);
    until("it was renewed", || left() > 6000);
    std::io::Write::write_all(talking.child.stdin.as_mut().unwrap(), b"hello\n").unwrap();
    talking.expect("got-hello");
    assert_eq!(talking.finish(), (4, String::new()));
}
