//! What processes force to the disk, as the kernel sees it, told apart by who did it: strace, attached while something runs.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::Answer;

/// What was forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forced {
    /// Of the log, by whoever serves a connection: who commits or promises does that.
    pub(super) served: u64,
    /// Of the log, by whoever serves nobody: the once-a-second write, cleaning, a checkpoint. And a file of it that is full, which
    /// whoever comes to its end forces beside what it has to.
    pub(super) by_itself: u64,
    /// Of other files, by whomever: they grow, or are written back.
    pub(super) files: u64,
}

/// A server under strace.
pub(super) struct Traced {
    strace: Child,
    trace: PathBuf,
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Whoever is traced goes on.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

impl Traced {
    /// Attach to a process, to those that it has started and to those that it will start. Waits until that is done.
    pub(super) fn attach(pid: u32, trace: &Path) -> Answer<Self> {
        let pids = with_children(pid)?;
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-e", "trace=fsync,fdatasync,recvfrom", "-o"]).arg(trace);
        command.args(pids.iter().map(|it| format!("--attach={it}"))).stderr(Stdio::piped());
        let started = command.spawn();
        let strace = started.map_err(|it| format!("strace, which counts forced writes: {it}; install it"))?;
        let mut traced = Traced { strace, trace: trace.to_owned() };
        let said = traced.strace.stderr.take().ok_or("strace has no voice")?;
        let mut said = BufReader::new(said).lines();
        // One line for each; who ended meanwhile is none to count, but the first must be there.
        for word in std::iter::once(" attached").chain(pids.iter().skip(1).map(|_| "attach")) {
            let heard = said.next().ok_or("strace attaches to nobody")??;
            if !heard.contains(word) {
                return Err(format!("{heard}; run it as root, where tracing is allowed").into());
            }
        }
        // Else it waits for somebody to read what it says of new processes.
        std::thread::spawn(move || said.for_each(drop));
        Ok(traced)
    }

    /// Let go, and count. A file of the log has this in its path.
    pub(super) fn end(mut self, log: &str) -> Answer<Forced> {
        kill_process(Pid::from_child(&self.strace), Signal::INT)?;
        self.strace.wait()?;
        Ok(counted(&std::fs::read_to_string(&self.trace)?, log))
    }
}

/// The process, and those that it has started.
fn with_children(pid: u32) -> Answer<Vec<u32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(str::parse);
    Ok(std::iter::once(Ok(pid)).chain(children).collect::<Result<_, _>>()?)
}

/// Who receives anything serves a connection. A call that is told in two lines counts where it begins.
fn counted(trace: &str, log: &str) -> Forced {
    let calls = || trace.lines().filter_map(|it| it.split_once(char::is_whitespace));
    let serving: HashSet<&str> =
        calls().filter(|it| it.1.trim_start().starts_with("recvfrom(")).map(|it| it.0).collect();
    let (mut forced, mut logs) = (Forced { served: 0, by_itself: 0, files: 0 }, HashSet::new());
    for (who, call) in calls() {
        let call = call.trim_start();
        if !(call.starts_with("fsync(") || call.starts_with("fdatasync(")) {
            continue;
        }
        match (call.contains(log), serving.contains(who)) {
            (true, true) => {
                forced.served += 1;
                logs.insert(call.split(['<', '>']).nth(1));
            }
            (true, false) => forced.by_itself += 1,
            (false, _) => forced.files += 1,
        }
    }
    let full = u64::try_from(logs.len().saturating_sub(1)).unwrap_or(0);
    Forced { served: forced.served - full, by_itself: forced.by_itself + full, ..forced }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forced_is_told_apart_by_who_did_it_and_of_which_file() {
        let trace = "\
            71 recvfrom(44<TCP:[127.0.0.1:53306]>, \"\\3COMMIT\", 16384, 0, NULL, NULL) = 7\n\
            71 fdatasync(12</data/ib_logfile0>) = 0\n\
            8  fdatasync(12</data/ib_logfile0> <unfinished ...>\n\
            71 fdatasync(12</data/ib_logfile0> <unfinished ...>\n\
            8  <... fdatasync resumed>)        = 0\n\
            71 <... fdatasync resumed>)        = 0\n\
            71 fsync(31</data/shop/move.ibd>)  = 0\n\
            8  fsync(31</data/shop/move.ibd>)  = 0\n\
            72 recvfrom(45<TCP:[127.0.0.1:53306]> <unfinished ...>\n\
            72 +++ exited with 0 +++\n";
        assert_eq!(counted(trace, "/ib_logfile"), Forced { served: 2, by_itself: 1, files: 2 });
        let full = "\
            5 recvfrom(9<socket:[1]>, \"Q\", 8192, 0, NULL, NULL) = 1\n\
            5 fdatasync(12</data/pg_wal/000000010000000000000001>) = 0\n\
            5 fdatasync(12</data/pg_wal/000000010000000000000001>) = 0\n\
            5 fsync(13</data/pg_wal/xlogtemp.5>) = 0\n\
            5 fdatasync(12</data/pg_wal/000000010000000000000002>) = 0\n";
        assert_eq!(counted(full, "/pg_wal/0"), Forced { served: 2, by_itself: 1, files: 1 });
        assert_eq!(counted("", "/ib_logfile"), Forced { served: 0, by_itself: 0, files: 0 });
    }
}
