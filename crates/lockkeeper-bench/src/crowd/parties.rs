//! Several processes as one crowd, as their parent sees them.

use std::process::Stdio;
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::shared::Shared;
use super::{Crowd, Party, Round, WORKER, soon};
use crate::Answer;

/// A patience that only a hang exceeds.
const HANG: Duration = Duration::from_mins(10);

/// Who fights where for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) rival: &'a str,
    pub(crate) url: &'a str,
    pub(crate) key: &'a str,
    /// For ours; the others have their own.
    pub(crate) ttl: Duration,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
}

/// Processes that are ready.
pub(crate) struct Parties {
    workers: Vec<Worker>,
    folder: TempDir,
}

impl Parties {
    pub(crate) async fn start(plan: Plan<'_>) -> Answer<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("number");
        Shared::file(&path)?;
        let mut workers = Vec::new();
        for at in 0..plan.processes {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([WORKER, plan.rival, plan.url, plan.key]);
            command.args([plan.ttl.as_millis().to_string(), plan.tasks.to_string()]).arg(&path);
            command.args([at.to_string(), plan.processes.to_string()]);
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
            let stdin = child.stdin.take().ok_or("no input")?;
            let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
            workers.push(Worker { child, stdin, lines });
        }
        for worker in &mut workers {
            worker.answer().await?;
        }
        Ok(Parties { workers, folder })
    }

    /// All fight, and what they reach in `span` counts.
    pub(crate) async fn fight(self, span: Duration) -> Answer<Crowd> {
        self.fight_watched(span, async || Ok(()), async || Ok(())).await
    }

    /// The same, with something to do when what counts begins, and when it ends.
    pub(crate) async fn fight_watched(
        mut self,
        span: Duration,
        begun: impl AsyncFnOnce() -> Answer<()>,
        ended: impl AsyncFnOnce() -> Answer<()>,
    ) -> Answer<Crowd> {
        let (clock, window) = (Clock::boot(), soon(span, self.workers.len()));
        self.tell_all(&format!("fight {} {}", window.end.as_nanos(), usize::MAX)).await?;
        clock.sleep_until(window.start).await;
        begun().await?;
        clock.sleep_until(window.end).await;
        ended().await?;
        self.reports(window.start, window.end).await
    }

    /// Every task goes so many rounds. What they reach while all of them run counts.
    pub(crate) async fn rounds(mut self, rounds: usize) -> Answer<Crowd> {
        let now = Clock::boot().now();
        self.tell_all(&format!("fight {} {rounds}", now.after(HANG).as_nanos())).await?;
        Ok(self.reports(now, now).await?.while_all_run())
    }

    /// All stand in line, for as long as this lives.
    pub(crate) async fn stand_in_line(&mut self) -> Answer<()> {
        self.tell_all("wait").await?;
        for worker in &mut self.workers {
            worker.answer().await?;
        }
        Ok(())
    }

    /// All go.
    pub(crate) async fn dismiss(self) -> Answer<()> {
        for mut worker in self.workers {
            drop(worker.stdin);
            worker.child.wait().await?;
        }
        Ok(())
    }

    pub(crate) fn workers(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    async fn tell_all(&mut self, line: &str) -> Answer<()> {
        for worker in &mut self.workers {
            worker.tell(line).await?;
        }
        Ok(())
    }

    async fn reports(self, from: Moment, until: Moment) -> Answer<Crowd> {
        let mut parties = Vec::new();
        for worker in self.workers {
            parties.push(worker.report().await?);
        }
        let shared = Shared::file(&self.folder.path().join("number"))?;
        Crowd::of(parties, from.as_nanos()..until.as_nanos(), &shared)
    }
}

/// One process.
pub(crate) struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) async fn tell(&mut self, line: &str) -> Answer<()> {
        Ok(self.stdin.write_all(format!("{line}\n").as_bytes()).await?)
    }

    pub(crate) async fn answer(&mut self) -> Answer<String> {
        Ok(self.lines.next_line().await?.ok_or("a worker said nothing")?)
    }

    /// Its process, for signals.
    pub(crate) fn pid(&self) -> Answer<u32> {
        Ok(self.child.id().ok_or("a worker has ended")?)
    }

    async fn report(mut self) -> Answer<Party> {
        let [count, refused] = numbers(&self.answer().await?)?;
        let mut rounds = Vec::new();
        for _ in 0..count {
            let [asked, had, gave] = numbers(&self.answer().await?)?;
            rounds.push(Round { asked, had, gave });
        }
        drop(self.stdin);
        self.child.wait().await?;
        Ok(Party { rounds, refused })
    }
}

fn numbers<const N: usize>(line: &str) -> Answer<[u64; N]> {
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| format!("a worker said {line:?}").into())
}
