//! Many who want one key: tasks of one process, and tasks of four.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_testkit::servers::Redis;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::Outcome;
use crate::rivals::Rival;
use crate::tally::{self, jain, median, per, rate};
use crate::worker::{self, Report, Shared};

const SPAN: Duration = Duration::from_secs(3);
const PROCESSES: u64 = 4;

pub(crate) async fn one_process(server: &Redis) -> Outcome {
    println!(
        "\n## 64 tasks of one process on one key (target: 40 times rslock, at most 0.1 commands per guard)\n"
    );
    println!("| | guards/s | hand-offs/s | Jain of tasks | commands per guard |");
    println!("|---|---|---|---|---|");
    let mut rates = Vec::new();
    for name in ["rslock", "ours"] {
        let rival = Rival::named(name, &server.url()).await?;
        tally::commands(server).await?;
        let shared = Shared::memory();
        let report = worker::fight(&rival, &format!("crowd:{name}"), 64, SPAN, &shared, 1).await?;
        let guards: u64 = report.guards.iter().sum();
        exact(guards, &shared)?;
        let commands = sent(server, name).await?;
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} | {:.3} |",
            rate(guards, SPAN),
            rate(report.handoffs, SPAN),
            jain(&report.guards),
            per(commands, guards)
        );
        rates.push(rate(guards, SPAN));
    }
    println!("\nours is {:.1} times rslock", rates[1] / rates[0]);
    Ok(())
}

pub(crate) async fn four_processes(server: &Redis, tasks: u64) -> Outcome {
    let target = match tasks {
        1 => "at most 2.2 commands per guard, median hand-off at most 2 bare round trips",
        _ => "Jain of processes at least 0.95, 10 times rslock, at most 0.3 commands per guard",
    };
    println!("\n## {PROCESSES} processes with {tasks} tasks each on one key (target: {target})\n");
    println!("a bare round trip takes {:.0} µs (median)\n", round_trip(server).await?);
    println!(
        "| | guards/s | hand-offs/s | Jain of processes | commands per guard | hand-off between processes p50 / p99 |"
    );
    println!("|---|---|---|---|---|---|");
    let mut rates = Vec::new();
    for name in ["rslock", "ours"] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("shared");
        let key = format!("processes:{tasks}:{name}");
        let reports = processes(server, name, &key, tasks, &path).await?;
        let commands = sent(server, name).await?;
        let counts: Vec<u64> = reports.iter().map(|it| it.guards[0]).collect();
        let guards: u64 = counts.iter().sum();
        exact(guards, &Shared::file(&path)?)?;
        let handoffs: u64 = reports.iter().map(|it| it.handoffs).sum();
        let mut p50: Vec<f64> = reports.iter().map(|it| micros(it.handoff_p50)).collect();
        let mut p99: Vec<f64> = reports.iter().map(|it| micros(it.handoff_p99)).collect();
        println!(
            "| {name} | {:.0} | {:.0} | {:.3} | {:.3} | {:.0} / {:.0} µs |",
            rate(guards, SPAN),
            rate(handoffs, SPAN),
            jain(&counts),
            per(commands, guards),
            median(&mut p50),
            median(&mut p99)
        );
        rates.push(rate(guards, SPAN));
    }
    println!("\nours is {:.1} times rslock", rates[1] / rates[0]);
    println!("a script of ours takes the server {:.1} µs", tally::script_micros(server).await?);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a few seconds at most")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn exact(guards: u64, shared: &Shared) -> Outcome {
    let counted = shared.counted();
    if counted != guards {
        return Err(format!("{guards} guards, but only {counted} updates survived").into());
    }
    Ok(())
}

/// Commands that the clients sent.
async fn sent(server: &Redis, name: &str) -> Outcome<u64> {
    let scripts = tally::calls(server, "evalsha").await? + tally::calls(server, "eval").await?;
    let sets = if name == "ours" { 0 } else { tally::calls(server, "set").await? };
    Ok(scripts + sets)
}

async fn round_trip(server: &Redis) -> Outcome<f64> {
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let clock = Clock::boot();
    let mut times = Vec::new();
    for _ in 0..2000 {
        let before = clock.now();
        let _: String = redis::cmd("PING").query_async(&mut connection).await?;
        times.push((clock.now() - before).as_secs_f64() * 1e6);
    }
    Ok(median(&mut times))
}

async fn processes(server: &Redis, name: &str, key: &str, tasks: u64, path: &Path) -> Outcome<Vec<Report>> {
    let mut workers: Vec<(Child, Lines<BufReader<ChildStdout>>)> = Vec::new();
    for process in 1..=PROCESSES {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", name, &server.url(), key, &tasks.to_string()])
            .arg(SPAN.as_millis().to_string())
            .arg(path)
            .arg(process.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(stdout).lines();
        lines.next_line().await?;
        workers.push((child, lines));
    }
    tally::commands(server).await?;
    for (child, _) in &mut workers {
        let mut stdin = child.stdin.take().ok_or("no input")?;
        stdin.write_all(b"go\n").await?;
    }
    let mut reports = Vec::new();
    for (mut child, mut lines) in workers {
        let line = lines.next_line().await?.ok_or("a worker said nothing")?;
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [guards, handoffs, handoff_p50, handoff_p99] = numbers[..] else {
            return Err(format!("a worker said {line:?}").into());
        };
        reports.push(Report { guards: vec![guards], handoffs, handoff_p50, handoff_p99 });
        child.wait().await?;
    }
    Ok(reports)
}
