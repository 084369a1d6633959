//! The processes below a process, read from `/proc`.

use std::time::Duration;
use std::{fs, io};

use lockkeeper_core::clock::pause_thread;
use rustix::process::{Pid, Signal};

use super::KitError;

/// Every living process below `root`. Postgres puts each of its own into a group of its own, so a process
/// group would not find them.
pub(super) fn descendants(root: Pid) -> Result<Vec<Pid>, KitError> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        if let Some((parent, state)) = parent_and_state(pid)
            && state != 'Z'
        {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|it| it.1 == parent).map(|it| it.0));
        next += 1;
    }
    Ok(found.into_iter().skip(1).filter_map(Pid::from_raw).collect())
}

fn parent_and_state(pid: i32) -> Option<(i32, char)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<(i32, char)> {
    // The name in brackets may hold anything; what follows the last bracket is "state parent …".
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Whether no thread of this process can run: each is stopped, or has ended.
pub(super) fn stands_still(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok();
        stat.as_deref().and_then(parse).is_none_or(|(_, state)| matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}

/// Whether a process with this pid exists and is more than a name in the table.
pub fn is_alive(pid: u32) -> bool {
    i32::try_from(pid).ok().and_then(parent_and_state).is_some_and(|(_, state)| state != 'Z')
}

/// Wait for the end of a process that was killed.
pub(super) fn until_gone(pid: Pid) {
    const POLLS_MAX: u32 = 10_000;
    let pid = pid.as_raw_nonzero().get().unsigned_abs();
    for _ in (0..POLLS_MAX).take_while(|_| is_alive(pid)) {
        pause_thread(Duration::from_millis(1));
    }
}

/// Send a signal to a process that may have ended.
pub(super) fn signal_if_there(pid: Pid, signal: Signal) -> Result<(), KitError> {
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
