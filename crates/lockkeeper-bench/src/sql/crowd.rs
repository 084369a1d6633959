//! Several processes on one lock: the right sum, everybody served, few statements; and waiters that cost nothing.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_core::Clock;

use super::served::{Guards, Service};
use crate::Outcome;
use crate::measure::time;
use crate::report::{Bound, Row};

/// The word that makes this program a worker.
pub(crate) const WORKER: &str = "crowd";

const PROCESSES: u32 = 4;
const TASKS: u32 = 16;
/// How long the crowd works. Long enough for many turns of each process.
const WORK_FOR: Duration = Duration::from_secs(3);

const IDLE_PROCESSES: u32 = 10;
const IDLE_TASKS: u32 = 100;
/// How long the waiters are watched.
const IDLE_FOR: Duration = Duration::from_secs(20);
const IDLE_TTL: Duration = Duration::from_secs(30);

/// What a worker does: `add URL FILE`, or `wait URL`.
pub(crate) fn work(args: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args {
        [how, url, number] if how == "add" => runtime.block_on(add(url, number)),
        [how, url] if how == "wait" => runtime.block_on(wait(url)),
        _ => Err("usage: crowd add URL FILE | crowd wait URL".into()),
    }
}

/// Add to a number in a file, by many tasks, and tell when each guard was had.
async fn add(url: &str, number: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let locker = lockkeeper::connect(url).await?;
    // All begin at once, whoever connects first.
    writeln!(std::io::stdout(), "ready")?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
    let guards = Guards::begin();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (locker, number, guards) = (locker.clone(), number.to_owned(), guards.clone());
            tokio::spawn(async move {
                while guards.since_begun() < WORK_FOR {
                    let guard = locker.lock("crowd").wait_at_most(Duration::from_secs(2 * 60)).await;
                    let Ok(guard) = guard else { return false };
                    guards.had();
                    if add_one(&number).is_none() {
                        return false;
                    }
                    let _ = guard.release().await;
                }
                true
            })
        })
        .collect();
    for task in tasks {
        if !task.await? {
            return Err("a task failed".into());
        }
    }
    guards.print()
}

/// Read, add, write. In place: a file system takes its time to empty a file.
fn add_one(number: &str) -> Option<()> {
    let seen: u32 = fs::read_to_string(number).ok()?.trim().parse().ok()?;
    let file = fs::OpenOptions::new().write(true).open(number).ok()?;
    file.write_all_at(format!("{:10}", seen + 1).as_bytes(), 0).ok()
}

/// Stand in line by many tasks, for as long as our parent lives.
async fn wait(url: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let locker = lockkeeper::connect(url).await?;
    for _ in 0..IDLE_TASKS {
        let locker = locker.clone();
        tokio::spawn(async move {
            drop(locker.lock("idle").ttl(IDLE_TTL).wait_at_most(Duration::from_secs(5 * 60)).await);
        });
    }
    // Until the first has reached the server and the listener listens.
    Clock::boot().sleep(Duration::from_secs(1)).await;
    writeln!(std::io::stdout(), "waiting")?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
    std::process::exit(0);
}

fn start(args: &[&str]) -> Result<Child, Box<dyn Error + Send + Sync>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORKER).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command.spawn()?)
}

/// Many tasks of several processes add to a number in a plain file.
pub(crate) fn compete(url: &str, statements: impl Fn() -> u32, per_guard: f64) -> Outcome {
    let folder = tempfile::tempdir()?;
    let number = folder.path().join("number");
    fs::write(&number, "0")?;
    let before = statements();
    let mut outcome = Err("nobody worked".into());
    let took = time(&mut || outcome = crowd(url, &number.to_string_lossy()));
    let service = outcome?;
    let used = statements().saturating_sub(before);
    let (sum, guards) = (fs::read_to_string(&number)?.trim().parse::<u32>()?, service.guards());
    let each = f64::from(used) / f64::from(guards);
    Ok(vec![
        Row {
            what: "4 processes × 16 tasks for 3 s, each read, add, write on a plain file: the sum",
            ours: sum.to_string(),
            theirs: guards.to_string(),
            ratio: f64::from(sum) / f64::from(guards),
            bound: Bound::AtLeast(1.0),
            note: format!("{:.0} guards/s", f64::from(guards) / took.as_secs_f64()),
        },
        Row {
            what: "the same: statements per guard, as the server counts them",
            ours: used.to_string(),
            theirs: guards.to_string(),
            ratio: each,
            bound: Bound::AtMost(per_guard),
            note: String::new(),
        },
        service.row("the same: processes that are served while all compete"),
    ])
}

/// All workers at once, until the last is done.
fn crowd(url: &str, number: &str) -> Result<Service, Box<dyn Error + Send + Sync>> {
    let workers: Result<Vec<_>, _> = (0..PROCESSES).map(|_| start(&["add", url, number])).collect();
    let mut workers = workers?;
    let mut outputs = Vec::new();
    for worker in &mut workers {
        let mut output = BufReader::new(worker.stdout.take().ok_or("a worker has no output")?);
        output.read_line(&mut String::new())?;
        outputs.push(output);
    }
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    let mut service = Service::default();
    for (mut worker, mut output) in workers.into_iter().zip(outputs) {
        let mut told = String::new();
        output.read_to_string(&mut told)?;
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
        service.add(&told)?;
    }
    Ok(service)
}

/// Waiters that are called cost no statements while somebody else holds.
pub(crate) fn idle(url: &str, statements: impl Fn() -> u32) -> Result<Row, Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let locker = runtime.block_on(lockkeeper::connect(url))?;
    let guard = runtime.block_on(async { locker.lock("idle").await })?;
    let mut workers = Vec::new();
    for _ in 0..IDLE_PROCESSES {
        workers.push(start(&["wait", url])?);
    }
    for worker in &mut workers {
        let stdout = worker.stdout.take().ok_or("a worker has no output")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
    }
    // The server's counters lag behind by up to ten seconds for connections that have become quiet.
    std::thread::sleep(Duration::from_secs(12));
    let before = statements();
    std::thread::sleep(IDLE_FOR);
    let used = statements().saturating_sub(before);
    for mut worker in workers {
        drop(worker.stdin.take());
        worker.wait()?;
    }
    runtime.block_on(guard.release())?;
    let rate = f64::from(used) / IDLE_FOR.as_secs_f64();
    Ok(Row {
        what: "1,000 waiters in 10 processes while the lock is held: statements per second at the server",
        ours: format!("{used} in {} s", IDLE_FOR.as_secs()),
        theirs: "0".to_owned(),
        ratio: rate,
        // Each process keeps its place by one statement in ten seconds; counting them costs some as well.
        bound: Bound::AtMost(2.0),
        note: "ttl 30 s".to_owned(),
    })
}
