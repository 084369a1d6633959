//! `torture 2pc`: coordinators that die at steps that a seed draws, servers that die beside them, and a bank that must not lose
//! a coin; and then the same without the log, to see what it was good for.

mod bank;
mod lost;
mod page;
mod worker;

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper_torture::{Dice, Trouble};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

use bank::{Bank, Servers, TTL, Told, check};
pub use lost::Lost;
pub use page::write_two_phase;
use worker::Orders;
pub use worker::helper;

/// Coordinators at a time.
const AT_ONCE: u64 = 4;
/// Deaths between two looks at everything.
const ROUND: u64 = 250;

/// What to do.
#[derive(Clone, Debug)]
pub struct TwoPhaseTorture {
    /// The program that is started for each coordinator.
    pub program: PathBuf,
    /// How many coordinators die, or stand still until they are replaced.
    pub crashes: u64,
    /// Rounds without a log.
    pub lost: u64,
    /// Whether servers die, too.
    pub servers: bool,
    /// Names everything that is left to chance.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct TwoPhaseVerdict {
    /// Coordinators that were killed.
    pub killed: u64,
    /// Coordinators that stood still beyond their ttl and went on.
    pub stopped: u64,
    /// Deaths of servers.
    pub servers: u64,
    /// Transfers of which somebody was told that they are committed.
    pub committed: u64,
    /// Transfers of which somebody was told that they are aborted.
    pub aborted: u64,
    /// Transfers that are at both servers in the end.
    pub moved: u64,
    /// What was not as it must be.
    pub wrong: Vec<String>,
    /// The rounds without a log.
    pub lost: Lost,
    /// What named all that was left to chance.
    pub seed: u64,
}

impl TwoPhaseVerdict {
    /// Whether with a log nothing was damaged, and without it everything that was is told.
    pub fn is_kept(&self) -> bool {
        self.wrong.is_empty() && self.lost.damaged_by_us == 0 && self.lost.reported == self.lost.damaged
    }
}

impl std::fmt::Display for TwoPhaseVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lost { rounds, damaged, reported, damaged_by_us, left } = self.lost;
        write!(
            f,
            "torture: 2pc killed={} stopped={} servers={} committed={} aborted={} moved={} damage={} seed={}; \
             without the log rounds={rounds} damage={damaged} reported={reported} by-our-rule={damaged_by_us} left-to-a-person={left}",
            self.killed,
            self.stopped,
            self.servers,
            self.committed,
            self.aborted,
            self.moved,
            self.wrong.len(),
            self.seed,
        )
    }
}

/// Run it. `say` hears how far it is.
///
/// # Cancel safety
/// Dropped half-way, coordinators and servers are killed.
///
/// # Errors
/// If a server or a coordinator cannot be started. Damage is no error but a verdict.
pub async fn run_two_phase(
    torture: &TwoPhaseTorture,
    say: &(dyn Fn(&str) + Sync),
) -> Result<TwoPhaseVerdict, Trouble> {
    let servers = Arc::new(Servers::start().await?);
    let folder = tempfile::tempdir()?;
    let bank = servers.bank(folder.path());
    let mut verdict = TwoPhaseVerdict { seed: torture.seed, ..TwoPhaseVerdict::default() };
    let mut dice = Dice::seeded(torture.seed);
    let numbers = Arc::new(AtomicU64::new(0));
    let mut told = Vec::new();
    while verdict.killed + verdict.stopped < torture.crashes && verdict.wrong.is_empty() {
        let rest = torture.crashes - verdict.killed - verdict.stopped;
        let round = Round {
            program: torture.program.clone(),
            bank: bank.clone(),
            numbers: numbers.clone(),
            left: Arc::new(AtomicU64::new(rest.min(ROUND))),
        };
        let seen = round.play(&servers, &mut dice, torture.servers).await?;
        verdict.killed += seen.killed;
        verdict.stopped += seen.stopped;
        verdict.servers += seen.servers;
        told.extend(seen.told);
        bank.recover().await?;
        verdict.wrong.extend(check(&servers, &bank, &told).await?);
        say(&format!(
            "2pc: {} of {} died, {} wrong",
            verdict.killed + verdict.stopped,
            torture.crashes,
            verdict.wrong.len()
        ));
    }
    let count = |word: &str| told.iter().filter(|it| it.word == word).count() as u64;
    (verdict.committed, verdict.aborted) = (count("committed"), count("aborted"));
    verdict.moved = servers.moves().await?.0.len() as u64;
    say("2pc: without the log");
    verdict.lost = lost::lose(&servers, &torture.program, torture.lost).await?;
    Ok(verdict)
}

/// Deaths until the next look.
#[derive(Clone)]
struct Round {
    program: PathBuf,
    bank: Bank,
    numbers: Arc<AtomicU64>,
    left: Arc<AtomicU64>,
}

/// What a round, or one coordinator after the other, has seen.
#[derive(Default)]
struct Seen {
    killed: u64,
    stopped: u64,
    servers: u64,
    told: Vec<Told>,
}

impl Round {
    async fn play(
        &self,
        servers: &Arc<Servers>,
        dice: &mut Dice,
        break_servers: bool,
    ) -> Result<Seen, Trouble> {
        let mut lanes = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (round, dice) = (self.clone(), dice.fork());
            lanes.spawn(async move { round.one_after_the_other(dice).await });
        }
        let mut seen = Seen::default();
        let nemesis =
            break_servers.then(|| tokio::spawn(kill_servers(servers.clone(), self.clone(), dice.fork())));
        while let Some(lane) = lanes.join_next().await {
            let lane = lane??;
            seen.killed += lane.killed;
            seen.stopped += lane.stopped;
            seen.told.extend(lane.told);
        }
        if let Some(nemesis) = nemesis {
            seen.servers = nemesis.await??;
        }
        Ok(seen)
    }

    /// Whether one more is to die.
    fn next(&self) -> bool {
        let less = |it: u64| it.checked_sub(1);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    async fn one_after_the_other(&self, mut dice: Dice) -> Result<Seen, Trouble> {
        let mut seen = Seen::default();
        while self.next() {
            // Those that ended before they could die do not count.
            while !self.one(&mut dice, &mut seen).await? {}
        }
        Ok(seen)
    }

    /// One coordinator. Whether it died, or stood still.
    async fn one(&self, dice: &mut Dice, seen: &mut Seen) -> Result<bool, Trouble> {
        let number = self.numbers.fetch_add(1, Ordering::SeqCst);
        let stop = dice.below(40) == 0;
        let orders = Orders { number, seed: dice.draw(), stop, ..Orders::default() };
        let mut command = Command::new(&self.program);
        command
            .args(orders.words(&self.bank))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let pid = child.id().and_then(|it| i32::try_from(it).ok()).and_then(Pid::from_raw);
        let mut lines = BufReader::new(child.stdout.take().ok_or("a coordinator without a voice")?).lines();
        let mut stood = false;
        let mut stands = std::pin::pin!(until_it_stands(pid));
        loop {
            tokio::select! {
                line = lines.next_line() => match line? {
                    Some(line) => seen.told.extend(read(&line)),
                    None => break,
                },
                () = &mut stands, if stop && !stood => {
                    stood = true;
                    // Long enough to be replaced.
                    Clock::boot().sleep(Duration::from_secs(3).max(TTL * 2)).await;
                    if let Some(pid) = pid {
                        let _ = kill_process(pid, Signal::CONT);
                    }
                }
            }
        }
        let status = child.wait().await?;
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        seen.killed += u64::from(killed);
        seen.stopped += u64::from(stood && !killed);
        Ok(killed || stood)
    }
}

/// Wait until it stands still, as the kernel says; for ever if it ends before.
async fn until_it_stands(pid: Option<Pid>) {
    loop {
        let stat =
            pid.and_then(|it| std::fs::read_to_string(format!("/proc/{}/stat", it.as_raw_nonzero())).ok());
        let state = stat.as_deref().and_then(|it| it.rsplit(')').next()).map(str::trim_start);
        if state.is_some_and(|it| it.starts_with('T')) {
            return;
        }
        Clock::boot().sleep(Duration::from_millis(20)).await;
    }
}

/// `told TAG WORD …`
fn read(line: &str) -> Option<Told> {
    let mut words = line.strip_prefix("told ")?.split(' ');
    Some(Told { tag: words.next()?.to_owned(), word: words.next()?.to_owned() })
}

/// Kill one server or both now and then, and start them again, for as long as the round lasts. How many died.
async fn kill_servers(servers: Arc<Servers>, round: Round, mut dice: Dice) -> Result<u64, Trouble> {
    let mut died = 0;
    while round.left.load(Ordering::SeqCst) > 0 {
        Clock::boot().sleep(Duration::from_secs(3) + dice.span(Duration::from_secs(6))).await;
        let which = dice.below(3);
        if which != 1 {
            servers.orders.kill()?;
            died += 1;
        }
        if which != 0 {
            servers.stock.kill()?;
            died += 1;
        }
        if which != 1 {
            servers.orders.start().await?;
        }
        if which != 0 {
            servers.stock.start().await?;
        }
    }
    Ok(died)
}
