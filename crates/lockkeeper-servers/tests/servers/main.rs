//! Every server of the kit starts, answers, breaks as asked, and leaves nothing behind.

mod mysql;
mod others;
mod parted;
mod process;
mod redis;

use lockkeeper_servers::Daemon;
use lockkeeper_servers::process::is_alive;

/// The pid of a server that must be running.
fn pid(server: &Daemon) -> u32 {
    let pid = server.pid().expect("the server runs");
    assert!(is_alive(pid));
    pid
}

/// Remember the servers of a topology, drop it, and see that none is left.
fn drop_and_check<T>(topology: T, servers: impl Fn(&T) -> Vec<&Daemon>) {
    let pids: Vec<u32> = servers(&topology).into_iter().map(pid).collect();
    assert!(!pids.is_empty());
    drop(topology);
    let left: Vec<u32> = pids.into_iter().filter(|it| is_alive(*it)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
