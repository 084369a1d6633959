//! Eight processes add to a number in a plain file, two hundred times each, under one SQLite lock.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};

use crate::Outcome;
use crate::measure::time;
use crate::report::{Bound, Row};

/// The word that makes this program a worker.
pub(crate) const WORKER: &str = "add-to-file";

const PROCESSES: u32 = 8;
const ROUNDS: u32 = 200;

/// One guarded round: when the lock was asked for, had and given back, in nanoseconds of the boot clock.
struct Round {
    process: usize,
    asked: u64,
    had: u64,
    gave: u64,
}

pub(crate) fn run() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (database, number) = (folder.path().join("locks.db"), folder.path().join("number"));
    fs::write(&number, "0")?;
    let mut rounds = Err("no worker ran".into());
    let took = time(&mut || rounds = compete(&database, &number));
    let rounds = rounds?;
    let sum: u32 = fs::read_to_string(&number)?.trim().parse()?;
    let wait_max = rounds.iter().map(|it| it.had - it.asked).max().unwrap_or(0);
    let note = format!(
        "{:.0} rounds/s, {}, longest wait {:.0?}, Jain index {:.3} while all run",
        f64::from(PROCESSES * ROUNDS) / took.as_secs_f64(),
        overtaking(&rounds),
        Duration::from_nanos(wait_max),
        jain(&rounds),
    );
    Ok(vec![
        Row {
            what: "8 processes × 200 rounds of read, add, write on a plain file under one SQLite lock: the sum",
            ours: sum.to_string(),
            theirs: (PROCESSES * ROUNDS).to_string(),
            ratio: f64::from(sum) / f64::from(PROCESSES * ROUNDS),
            bound: Bound::AtLeast(1.0),
            note,
        },
        Row {
            what: "the same: how evenly the processes are served (Jain index, 1 = even)",
            ours: format!("{:.3}", jain(&rounds)),
            theirs: "1".to_owned(),
            ratio: jain(&rounds),
            bound: Bound::AtLeast(0.95),
            note: String::new(),
        },
    ])
}

fn compete(database: &Path, number: &Path) -> Result<Vec<Round>, Box<dyn Error + Send + Sync>> {
    let program = std::env::current_exe()?;
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let mut command = Command::new(&program);
        command.arg(WORKER).arg(format!("sqlite:{}", database.display())).arg(number);
        workers.push(command.stdout(Stdio::piped()).spawn()?);
    }
    let mut rounds = Vec::new();
    for (process, worker) in workers.into_iter().enumerate() {
        let out = worker.wait_with_output()?;
        if !out.status.success() {
            return Err(format!("worker {process} failed: {}", out.status).into());
        }
        for line in String::from_utf8(out.stdout)?.lines() {
            let mut words = line.split(' ').map(str::parse);
            let mut next = || {
                words.next().ok_or("a worker's line is short")?.map_err(Box::<dyn Error + Send + Sync>::from)
            };
            rounds.push(Round { process, asked: next()?, had: next()?, gave: next()? });
        }
    }
    rounds.sort_by_key(|it| it.had);
    Ok(rounds)
}

/// What a worker does: `URL FILE`.
pub(crate) fn work(args: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [url, number] = args else { return Err("usage: add-to-file URL FILE".into()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let clock = Clock::boot();
    let nanos = |it: Moment| it.as_nanos();
    let mut lines = String::new();
    runtime.block_on(async {
        let locker = lockkeeper::connect(url).await?;
        for _ in 0..ROUNDS {
            let asked = clock.now();
            let guard = locker.lock("number").await?;
            let had = clock.now();
            let seen: u32 = fs::read_to_string(number)?.trim().parse()?;
            fs::write(number, (seen + 1).to_string())?;
            guard.release().await?;
            writeln!(lines, "{} {} {}", nanos(asked), nanos(had), nanos(clock.now()))?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    std::io::Write::write_all(&mut std::io::stdout().lock(), lines.as_bytes())?;
    Ok(())
}

/// How many rounds were had before one that was surely asked for earlier, by another process, and still waited.
fn overtaking(rounds: &[Round]) -> String {
    // A claim needs a moment to reach the file; only a clear lead counts as having come first.
    let lead = 20_000_000;
    let overtook = rounds.iter().filter(|it| {
        rounds
            .iter()
            .any(|other| other.process != it.process && other.asked + lead < it.asked && it.had < other.had)
    });
    format!("{} of {} overtook an earlier one", overtook.count(), rounds.len())
}

/// Jain's index over the rounds each process had until the first process was done.
fn jain(rounds: &[Round]) -> f64 {
    let last = |process| rounds.iter().filter(|it| it.process == process).map(|it| it.gave).max();
    let first_done = (0..PROCESSES as usize).filter_map(last).min().unwrap_or(0);
    let first_begun = |process| rounds.iter().filter(|it| it.process == process).map(|it| it.asked).min();
    let all_begun = (0..PROCESSES as usize).filter_map(first_begun).max().unwrap_or(0);
    let counts: Vec<f64> = (0..PROCESSES as usize)
        .map(|process| {
            let in_time = |it: &&Round| it.process == process && all_begun < it.had && it.had <= first_done;
            f64::from(u32::try_from(rounds.iter().filter(in_time).count()).unwrap_or(0))
        })
        .collect();
    let (sum, squares): (f64, f64) = (counts.iter().sum(), counts.iter().map(|it| it * it).sum());
    if squares == 0.0 { 1.0 } else { sum * sum / (f64::from(PROCESSES) * squares) }
}
