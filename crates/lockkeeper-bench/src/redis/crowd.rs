//! Many who want one key: tasks of one process, and tasks of four.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_servers::Redis;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::rivals::Rival;
use super::tally::{self, jain, median, per, rate};
use super::worker::{self, Report, Shared, WORKER, Window};
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

const SPAN: Duration = Duration::from_secs(2);
/// Everybody has begun by then.
const WARM_UP: Duration = Duration::from_millis(500);
const PROCESSES: usize = 4;
/// How often the rivals take turns.
const TURNS: usize = 3;
/// How many bare round trips are measured.
const TRIPS: u32 = 1000;

/// What all processes of one rival reached together.
struct Crowd {
    /// Guards of each process in the window.
    guards: Vec<u64>,
    commands: u64,
    /// From the release by one process to the grant in another, in microseconds: median, 99th percentile.
    hand_on: (f64, f64),
    /// Right before, by the same processes, in microseconds: a bare round trip of one, and a bare message from one to
    /// the next, which is a round trip from process to process.
    ping: f64,
    message: f64,
}

pub(crate) async fn one_process(server: &Redis) -> Outcome {
    let mut rates = Vec::new();
    let mut commands = 0.0;
    for name in ["rslock", "ours"] {
        let rival = Rival::named(name, &server.url()).await?;
        let (shared, window) = (Shared::memory(), soon());
        tally::reset(server).await?;
        let report = worker::fight(&rival, &format!("crowd:{name}"), 64, window, &shared, 1).await?;
        shared.check(report.total)?;
        commands = per(tally::sent(server, name).await?, report.total);
        rates.push(rate(report.guards.iter().sum(), SPAN));
    }
    Ok(vec![
        Row::of_rates(
            "64 tasks of one process on one key, guards per second, beside rslock",
            (rates[1], rates[0]),
            40.0,
        ),
        Row::of_number("the same: commands per guard", commands, Bound::AtMost(0.1)),
    ])
}

/// Four processes with sixteen tasks each.
pub(crate) async fn four_crowds(server: &Redis) -> Outcome {
    let (mut ratios, mut rates, mut evenness, mut commands) = (vec![], [vec![], vec![]], vec![], vec![]);
    for turn in 0..TURNS {
        let theirs = processes(server, "rslock", 16, turn).await?;
        let ours = processes(server, "ours", 16, turn).await?;
        let rate_of = |it: &Crowd| rate(it.guards.iter().sum(), SPAN);
        ratios.push(rate_of(&ours) / rate_of(&theirs));
        rates[0].push(rate_of(&ours));
        rates[1].push(rate_of(&theirs));
        evenness.push(jain(&ours.guards));
        commands.push(per(ours.commands, ours.guards.iter().sum()));
    }
    let what = "4 processes × 16 tasks on one key, guards per second, beside rslock";
    let mut row = Row::of_rates(what, (median(&mut rates[0]), median(&mut rates[1])), 10.0);
    row.ratio = median(&mut ratios);
    row.note.push_str("every guard counted in a plain file: none lost");
    let least_even = evenness.iter().copied().fold(1.0, f64::min);
    Ok(vec![
        row,
        Row::of_number(
            "the same: how evenly the processes are served (Jain index, 1 = even)",
            least_even,
            Bound::AtLeast(0.95),
        ),
        Row::of_number("the same: commands per guard", median(&mut commands), Bound::AtMost(0.3)),
    ])
}

/// Four processes with one task each: every guard crosses processes.
pub(crate) async fn four_alone(server: &Redis) -> Outcome {
    let (mut ratios, mut hand_ons, mut messages, mut pings) = (vec![], vec![], vec![], vec![]);
    let (mut slowest, mut commands, mut rates) = (vec![], vec![], vec![]);
    for turn in 0..2 * TURNS {
        let ours = processes(server, "ours", 1, turn).await?;
        ratios.push(ours.hand_on.0 / ours.message);
        hand_ons.push(ours.hand_on.0);
        slowest.push(ours.hand_on.1);
        messages.push(ours.message);
        pings.push(ours.ping);
        commands.push(per(ours.commands, ours.guards.iter().sum()));
        rates.push(rate(ours.guards.iter().sum(), SPAN));
    }
    let note = format!(
        "99 %: {:.0} µs; {:.0} guards/s; `PING` by one process alone {:.0} µs",
        median(&mut slowest),
        median(&mut rates),
        median(&mut pings)
    );
    Ok(vec![
        Row {
            what: "4 processes × 1 task on one key, from release to grant in another, beside a bare message (`PUBLISH`) \
                   from process to process",
            ours: format!("{:.0}µs", median(&mut hand_ons)),
            theirs: format!("{:.0}µs", median(&mut messages)),
            ratio: median(&mut ratios),
            bound: Bound::AtMost(2.0),
            note,
        },
        Row::of_number("the same: commands per guard", median(&mut commands), Bound::AtMost(2.2)),
    ])
}

fn soon() -> Window {
    let from = Clock::boot().now().after(WARM_UP);
    Window { from, until: from.after(SPAN) }
}

async fn processes(server: &Redis, name: &str, tasks: u64, turn: usize) -> Answer<Crowd> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shared");
    let key = format!("processes:{tasks}:{name}:{turn}");
    let mut workers = Vec::new();
    for process in 1..=PROCESSES {
        let arguments = [name, &server.url(), &key, &tasks.to_string()];
        workers.push(Worker::start(&arguments, &path, process).await?);
    }
    let trips = (ping(&mut workers).await?, relay(&mut workers).await?);
    let (clock, window) = (Clock::boot(), soon());
    for worker in &mut workers {
        worker.tell(&format!("fight {} {}", window.from.as_nanos(), window.until.as_nanos())).await?;
    }
    clock.sleep_until(window.from).await;
    tally::reset(server).await?;
    clock.sleep_until(window.until).await;
    let commands = tally::sent(server, name).await?;
    let mut reports = Vec::new();
    for worker in workers {
        reports.push(worker.report().await?);
    }
    Shared::file(&path)?.check(reports.iter().map(|it| it.total).sum())?;
    let mut p50: Vec<f64> = reports.iter().map(|it| micros(it.hand_on.0)).collect();
    let mut p99: Vec<f64> = reports.iter().map(|it| micros(it.hand_on.1)).collect();
    Ok(Crowd {
        guards: reports.iter().map(|it| it.guards[0]).collect(),
        commands,
        hand_on: (median(&mut p50), median(&mut p99)),
        ping: trips.0,
        message: trips.1,
    })
}

async fn ping(workers: &mut [Worker]) -> Answer<f64> {
    let mut trips = Vec::new();
    for worker in workers {
        worker.tell(&format!("ping {TRIPS}")).await?;
        trips.push(micros(worker.answer().await?.parse()?));
    }
    Ok(median(&mut trips))
}

/// A bare message goes round the processes; what one step took.
async fn relay(workers: &mut [Worker]) -> Answer<f64> {
    let processes = workers.len();
    for (at, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("relay {} {TRIPS}", (at + 1) % processes + 1)).await?;
        worker.answer().await?;
    }
    for worker in workers.iter_mut().rev() {
        // The last who is told is the first process, which finds all others listening.
        worker.tell(if worker.process == 1 { "begin" } else { "listen" }).await?;
    }
    let mut rounds = Vec::new();
    for worker in &mut *workers {
        rounds.push(micros(worker.answer().await?.parse()?));
    }
    Ok(median(&mut rounds) / per(u64::try_from(processes)?, 1))
}

fn micros(nanos: u64) -> f64 {
    per(nanos, 1000)
}

/// A process that fights.
struct Worker {
    process: usize,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(arguments: &[&str], path: &Path, process: usize) -> Answer<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORKER).args(arguments).arg(path).arg(process.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take().ok_or("no input")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut worker = Worker { process, child, stdin, lines };
        worker.answer().await?;
        Ok(worker)
    }

    async fn tell(&mut self, line: &str) -> Answer<()> {
        Ok(self.stdin.write_all(format!("{line}\n").as_bytes()).await?)
    }

    async fn answer(&mut self) -> Answer<String> {
        Ok(self.lines.next_line().await?.ok_or("a worker said nothing")?)
    }

    async fn report(mut self) -> Answer<Report> {
        let line = self.answer().await?;
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [total, guards, p50, p99] = numbers[..] else {
            return Err(format!("a worker said {line:?}").into());
        };
        drop(self.stdin);
        self.child.wait().await?;
        Ok(Report { total, guards: vec![guards], hand_on: (p50, p99) })
    }
}
