//! Free locks: one task, and a thousand tasks on a thousand keys.

use futures_util::future::try_join_all;
use lockkeeper_core::Clock;
use lockkeeper_testkit::servers::Redis;

use crate::Outcome;
use crate::rivals::Rival;
use crate::tally::{self, median, rate};

pub(crate) async fn one(server: &Redis) -> Outcome {
    println!("\n## Free lock, one task: take and give back (target: at most 1.15 times two bare commands)\n");
    compare(server, 1, 3000, 11, &["bare", "ours", "rslock"]).await
}

pub(crate) async fn many(server: &Redis) -> Outcome {
    println!("\n## Free locks, 1,000 tasks on 1,000 keys (target: at least 0.8 times the bare commands)\n");
    compare(server, 1000, 60, 7, &["bare", "ours", "rslock"]).await
}

/// Ours alone, for a profiler.
pub(crate) async fn ours(server: &Redis) -> Outcome {
    println!("\n## Ours alone, 1,000 tasks on 1,000 keys\n");
    compare(server, 1000, 100, 7, &["ours"]).await
}

/// Every rival in turn, several times, so that a slow moment of the machine hits all.
async fn compare(server: &Redis, tasks: usize, cycles: u64, rounds: usize, names: &[&str]) -> Outcome {
    let mut rivals = Vec::new();
    for name in names {
        let rival = Rival::named(name, &server.url()).await?;
        run(&rival, name, tasks, cycles.min(50)).await?;
        rivals.push((*name, rival, Vec::new(), Vec::new()));
    }
    for _ in 0..rounds {
        let mut bare = 0.0;
        for (name, rival, rates, ratios) in &mut rivals {
            let rate = run(rival, name, tasks, cycles).await?;
            if *name == "bare" {
                bare = rate;
            }
            rates.push(rate);
            ratios.push(rate / bare);
        }
    }
    println!(
        "| | cycles/s (median of {rounds}) | of bare | commands per cycle | CPU µs per cycle: client / server |"
    );
    println!("|---|---|---|---|---|");
    for (name, rival, rates, ratios) in &mut rivals {
        tally::commands(server).await?;
        let pids = (std::process::id(), server.pid().unwrap_or(0));
        let before = (tally::cpu_seconds(pids.0), tally::cpu_seconds(pids.1));
        for _ in 0..rounds {
            run(rival, name, tasks, cycles).await?;
        }
        let after = (tally::cpu_seconds(pids.0), tally::cpu_seconds(pids.1));
        let cycles = cycles * u64::try_from(rounds)?;
        let total = u64::try_from(tasks)? * cycles;
        let scripts = tally::calls(server, "evalsha").await? + tally::calls(server, "eval").await?;
        let sets = if *name == "ours" { 0 } else { tally::calls(server, "set").await? };
        let commands = tally::per(scripts + sets, total);
        let micros = |seconds: f64| seconds * 1e6 / tally::rate(total, std::time::Duration::from_secs(1));
        println!(
            "| {name} | {:.0} | {:.2} | {commands:.2} | {:.1} / {:.1} |",
            median(rates),
            median(ratios),
            micros(after.0 - before.0),
            micros(after.1 - before.1)
        );
    }
    Ok(())
}

async fn run(rival: &Rival, name: &str, tasks: usize, cycles: u64) -> Outcome<f64> {
    let clock = Clock::boot();
    let started = clock.now();
    let tasks: Vec<_> = (0..tasks)
        .map(|it| {
            let (mut rival, key) = (rival.clone(), format!("bench:{name}:{it}"));
            tokio::spawn(async move {
                for _ in 0..cycles {
                    rival.cycle(&key, || (), drop).await?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .collect();
    let total = u64::try_from(tasks.len())? * cycles;
    for done in try_join_all(tasks).await? {
        done?;
    }
    Ok(rate(total, clock.now() - started))
}
