//! Everybody who comes from the command, also those who left its process group (`setsid`, daemons).
//!
//! ```text
//!   lockkeeper lives ─▶ it adopts the orphans of the command: all are its descendants
//!   lockkeeper is gone ─▶ the warden asks the cgroup, and looks for the mark in everybody's environment
//! ```

use std::fs;
use std::io;

use lockkeeper::spi::Clock;
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};

use crate::run::cgroup::Cgroup;

/// The variable by which what the command starts is found again.
pub(crate) const MARK: &str = "LOCKKEEPER_RUN";

/// How the command's processes are found.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Lockkeeper, whose descendants they all are.
    pub(crate) root: Pid,
    pub(crate) mark: String,
    pub(crate) cgroup: Option<Cgroup>,
}

impl Tree {
    /// Become the one who adopts orphans, before there is anybody to be orphaned.
    pub(crate) fn plant() -> io::Result<Self> {
        let root = process::getpid();
        #[cfg(target_os = "linux")]
        process::set_child_subreaper(Some(root))?;
        let mark = format!("{}-{:x}", root.as_raw_pid(), Clock::boot().now().as_nanos());
        Ok(Tree { root, mark, cgroup: Cgroup::make() })
    }

    /// It is not needed any more: leave nothing of it in the system.
    pub(crate) fn fell(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Send a signal to all of them.
    pub(crate) fn send(&self, signal: Signal, spared: &[Pid]) {
        if let (Signal::KILL, Some(cgroup)) = (signal, &self.cgroup) {
            cgroup.kill();
        }
        for it in self.living(spared) {
            let _ = process::kill_process(it, signal);
        }
    }

    /// All of them who live, but not the spared and what comes from those.
    pub(crate) fn living(&self, spared: &[Pid]) -> Vec<Pid> {
        let us = process::getpid();
        let mut found = Vec::new();
        if self.root == us || process::getppid() == Some(self.root) {
            // As long as the root is our parent or ourselves, its number means no stranger.
            let mut unseen = children(self.root);
            while let Some(next) = unseen.pop() {
                if next != us && !spared.contains(&next) && !found.contains(&next) {
                    found.push(next);
                    unseen.extend(children(next));
                }
            }
        } else {
            found = marked(&self.mark);
        }
        found.extend(self.cgroup.iter().flat_map(Cgroup::members));
        found.retain(|it| *it != us && !spared.contains(it) && is_alive(*it));
        found
    }

    /// Take note of the end of those whom we adopted; nobody else does.
    pub(crate) fn reap_adopted(&self, own: &[Pid]) {
        for it in children(self.root).into_iter().filter(|it| !own.contains(it)) {
            let _ = process::waitid(WaitId::Pid(it), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// The children of a process, also those that its threads started.
fn children(of: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", of.as_raw_pid())) else {
        return Vec::new();
    };
    let listed = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("children")).ok());
    listed.flat_map(|it| it.split_whitespace().filter_map(number).collect::<Vec<_>>()).collect()
}

/// Everybody in whose environment the mark stands.
fn marked(mark: &str) -> Vec<Pid> {
    let wanted = format!("{MARK}={mark}");
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let has_mark = |pid: &Pid| {
        let variables = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        variables.split(|it| *it == 0).any(|it| it == wanted.as_bytes())
    };
    processes.filter_map(|it| number(it.ok()?.file_name().to_str()?)).filter(has_mark).collect()
}

fn number(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

/// Whether it is more than a record of an end that nobody took note of.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|it| it.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}
