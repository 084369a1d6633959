//! The same test in another process: it is started again with a word in its environment that tells it its part.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const VARIABLE: &str = "LOCKKEEPER_TEST_CHILD";
const PREFIX: &str = "child: ";

/// What the parent told us, if we are the child.
pub(crate) fn told() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// Tell the parent something.
pub(crate) fn tell(line: &str) {
    println!("{PREFIX}{line}");
}

/// The next line from the parent; `None` when it has gone.
pub(crate) async fn hear() -> Option<String> {
    let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
    line.await.unwrap()?.ok()
}

/// A process that plays the other part of the test. Killed on drop.
pub(crate) struct Other {
    process: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Other {
    /// Start `test` again and tell it this.
    pub(crate) fn start(test: &str, word: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test runner's own words may stand before ours on the line.
                if let Some((_, said)) = line.split_once(PREFIX) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Other { process, stdin, lines }
    }

    /// The next thing it tells, without this prefix.
    pub(crate) fn expect(&self, prefix: &str) -> String {
        let said = self.lines.recv_timeout(Duration::from_secs(60)).unwrap();
        let rest = said.strip_prefix(prefix);
        rest.unwrap_or_else(|| panic!("expected {prefix:?}, heard {said:?}")).trim().to_owned()
    }

    /// Tell it something.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Send it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
