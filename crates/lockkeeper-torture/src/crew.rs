//! The workers as their parent has them: started, stopped, killed, replaced.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::spi::Clock;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use crate::dice::Dice;
use crate::history::History;
use crate::keys;
use crate::witness::{Counts, Witness};
use crate::worker::{Job, WORKER};
use crate::{Findings, Trouble, check};

/// Who fights where.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The program to start for each worker; it must call [`helper`](crate::helper) first.
    pub program: PathBuf,
    /// The store.
    pub url: String,
    /// The same store, as the first process reaches it, if by another way than the others.
    pub aside: Option<String>,
    /// What every lock's name begins with.
    pub prefix: String,
    /// How many processes.
    pub processes: usize,
    /// How many tasks in each.
    pub tasks: usize,
    /// Of the locks.
    pub ttl: Duration,
    /// Of those that are asked for in a storm of cancellations: long, so that what is left behind is seen.
    pub storm_ttl: Duration,
    /// Whether every round has a pause, for the sake of others who use the store.
    pub gentle: bool,
    /// Names everything that is left to chance.
    pub seed: u64,
}

impl Plan {
    /// Three processes with eleven tasks each, and locks of two seconds. The lockers of all but the last keep locks warm.
    pub fn new(program: PathBuf, url: &str, prefix: &str, seed: u64) -> Self {
        Plan {
            program,
            url: url.to_owned(),
            aside: None,
            prefix: prefix.to_owned(),
            processes: 3,
            tasks: 11,
            ttl: Duration::from_secs(2),
            storm_ttl: Duration::from_secs(120),
            gentle: false,
            seed,
        }
    }
}

/// What all workers do from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Ask, hold, write, give back.
    Work,
    /// Ask and go away.
    Storm,
    /// Go on in another runtime; what is under way goes with the old one.
    DropRuntime,
    /// Fork while a lock is held.
    Fork,
}

/// What remains when all have come to an end.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ended {
    /// What they believed.
    pub history: History,
    /// What the checks found in it.
    pub findings: Findings,
    /// Those that did not end in time or as they should.
    pub stuck: Vec<String>,
    /// The last that the witness saw.
    pub counts: Counts,
}

/// The workers, the witness, and the folder of their histories.
#[derive(Debug)]
pub struct Crew {
    plan: Plan,
    dice: Dice,
    members: Vec<Member>,
    witness: Witness,
    folder: TempDir,
    paused: Vec<(String, Range<u64>)>,
    started: usize,
}

#[derive(Debug)]
struct Member {
    name: String,
    child: Child,
    orders: ChildStdin,
    /// Since when it stands still.
    still: Option<u64>,
}

impl Crew {
    /// Start all.
    ///
    /// # Cancel safety
    /// Dropped half-way, what was started is killed.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn start(plan: Plan) -> Result<Self, Trouble> {
        let folder = tempfile::Builder::new().prefix("lockkeeper-torture-").tempdir()?;
        let witness = Witness::start(folder.path())?;
        let dice = Dice::seeded(plan.seed);
        let mut crew =
            Crew { plan, dice, members: Vec::new(), witness, folder, paused: Vec::new(), started: 0 };
        for index in 0..crew.plan.processes {
            let member = crew.hire(index).await?;
            crew.members.push(member);
        }
        Ok(crew)
    }

    /// The witness.
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// The names of those that live.
    pub fn names(&self) -> Vec<String> {
        self.members.iter().map(|it| it.name.clone()).collect()
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Kill one (SIGKILL) and start another in its place.
    ///
    /// # Cancel safety
    /// Dropped half-way, one may be missing.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn replace(&mut self, index: usize) -> Result<(), Trouble> {
        self.kill(index).await?;
        self.members[index] = self.hire(index).await?;
        Ok(())
    }

    /// Let one stand still (SIGSTOP).
    ///
    /// # Errors
    /// If the system refuses.
    pub fn pause(&mut self, index: usize) -> Result<(), Trouble> {
        self.members[index].still = Some(now());
        self.signal(index, Signal::STOP)
    }

    /// Let it run on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn resume(&mut self, index: usize) -> Result<(), Trouble> {
        self.signal(index, Signal::CONT)?;
        let member = &mut self.members[index];
        if let Some(since) = member.still.take() {
            self.paused.push((member.name.clone(), since..now()));
        }
        Ok(())
    }

    /// Tell all what to do.
    ///
    /// # Cancel safety
    /// Dropped half-way, some may have been told.
    ///
    /// # Errors
    /// If one has ended by itself.
    pub async fn tell(&mut self, order: Order) -> Result<(), Trouble> {
        let line: &[u8] = match order {
            Order::Work => b"work\n",
            Order::Storm => b"storm\n",
            Order::DropRuntime => b"drop\n",
            Order::Fork => b"fork\n",
        };
        for member in &mut self.members {
            member.orders.write_all(line).await.map_err(|it| format!("{} is gone: {it}", member.name))?;
        }
        Ok(())
    }

    /// Wait until every process has been served, each in a round that began after now; those that were not.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn served(&self, within: Duration) -> Vec<String> {
        let before = self.witness.rounds();
        // Each task has at most one round under way.
        let more = self.plan.tasks as u64 + 1;
        self.witness.served(&self.names(), &before, more, within).await
    }

    /// What the names of a storm begin with.
    pub fn storm_prefix(&self) -> String {
        keys::storm_prefix(&self.plan.prefix)
    }

    /// Let all come to an end, and read what they believed. Those that do not end in time are killed, and named.
    ///
    /// # Cancel safety
    /// Dropped half-way, all are killed.
    ///
    /// # Errors
    /// If a history cannot be read.
    pub async fn stop(mut self, within: Duration) -> Result<Ended, Trouble> {
        let clock = Clock::boot();
        let until = clock.now().after(within);
        let mut stuck = Vec::new();
        // All hear it at once: whoever is waited for first would else let the others fight on alone.
        let told = |Member { name, child, orders, .. }| {
            drop(orders);
            (name, child)
        };
        let ending: Vec<(String, Child)> = std::mem::take(&mut self.members).into_iter().map(told).collect();
        for (name, mut child) in ending {
            match clock.within(until, Box::pin(child.wait())).await {
                Some(Ok(status)) if status.success() => {}
                Some(_) => stuck.push(format!("{name} ended by itself")),
                None => {
                    stuck.push(format!("{name} did not come to an end"));
                    child.kill().await?;
                }
            }
        }
        let history = History::read(self.folder.path())?;
        let findings = check(&history, &self.paused);
        Ok(Ended { history, findings, stuck, counts: self.witness.counts() })
    }

    /// The folder of the histories, as it is now.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn kill(&mut self, index: usize) -> Result<(), Trouble> {
        self.members[index].child.kill().await?;
        Ok(())
    }

    async fn hire(&mut self, index: usize) -> Result<Member, Trouble> {
        let aside = self.plan.aside.clone().filter(|_| index == 0);
        let name = format!("w{}", self.started);
        self.started += 1;
        let job = Job {
            name: name.clone(),
            folder: self.folder.path().to_owned(),
            witness: self.witness.path().to_owned(),
            prefix: self.plan.prefix.clone(),
            ttl: self.plan.ttl,
            storm_ttl: self.plan.storm_ttl,
            tasks: self.plan.tasks,
            place: index,
            of: self.plan.processes,
            gentle: self.plan.gentle,
            seed: self.dice.draw(),
            url: aside.unwrap_or_else(|| self.plan.url.clone()),
        };
        let mut child =
            Command::new(&self.plan.program).arg(WORKER).stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut orders = child.stdin.take().ok_or("a worker without input")?;
        orders.write_all(job.line().as_bytes()).await?;
        Ok(Member { name, child, orders, still: None })
    }

    fn signal(&self, index: usize, signal: Signal) -> Result<(), Trouble> {
        let id = self.members[index].child.id().and_then(|it| i32::try_from(it).ok());
        let pid = id.and_then(Pid::from_raw).ok_or("a worker ended by itself")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

fn now() -> u64 {
    Clock::boot().now().as_nanos()
}
