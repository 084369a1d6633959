//! Free locks: one task, and a thousand tasks on a thousand keys.

use futures_util::future::try_join_all;
use lockkeeper_core::{Clock, Locker};
use lockkeeper_servers::Redis;

use super::OnRedis;
use super::tally;
use crate::Answer;
use crate::measure::{beside_requests, median, per, rate};
use crate::report::{Bound, Row};
use crate::rival::Rival as _;

const RIVALS: [&str; 3] = ["bare", "ours", "rslock"];

/// What one rival reached.
struct Figures {
    /// Cycles per second, the median.
    rate: f64,
    /// Of the bare commands' rate in the same turn, the median.
    of_bare: f64,
    /// Commands per cycle, as the server counts them.
    commands: f64,
    /// Microseconds of CPU per cycle, of this process and of the server.
    cpu: (f64, f64),
}

pub(crate) async fn one(server: &Redis) -> Answer<Row> {
    let [bare, ours, rslock] = compare(server, 1, 2000, 15).await?;
    let micros = |it: &Figures| format!("{:.1}µs", 1e6 / it.rate);
    Ok(Row {
        what: "lock + unlock, one task, beside `SET NX PX` and compare-and-delete",
        ours: micros(&ours),
        theirs: micros(&bare),
        ratio: 1.0 / ours.of_bare,
        bound: Bound::AtMost(1.15),
        note: note(&ours, &bare, &rslock),
    })
}

pub(crate) async fn many(server: &Redis) -> Answer<Row> {
    let [bare, ours, rslock] = compare(server, 1000, 60, 9).await?;
    Ok(Row {
        what: "lock + unlock, 1,000 tasks on 1,000 keys, cycles per second, beside the bare commands",
        ours: format!("{:.0}/s", ours.rate),
        theirs: format!("{:.0}/s", bare.rate),
        ratio: ours.of_bare,
        bound: Bound::AtLeast(0.8),
        note: note(&ours, &bare, &rslock),
    })
}

/// What it costs to be counted: the same lock with `Meters` and without.
pub(crate) async fn metered(server: &Redis) -> Answer<Row> {
    let meters = lockkeeper::Meters::new();
    let plain = lockkeeper::open(&server.url()).await?.locker.build();
    let metered = lockkeeper::open(&server.url()).await?.locker.observer(meters.clone()).build();
    let use_once =
        async |locker: &Locker| -> Answer<()> { Ok(locker.lock("metered").await?.release().await?) };
    let (on, off) =
        beside_requests(async || use_once(&metered).await, async || use_once(&plain).await).await?;
    let counted = meters.snapshot().sum("lockkeeper.store.duration", &[]);
    let mut row = Row::of_times("lock + unlock, one task, `Meters` on, beside no observer", (on, off), 1.05);
    row.note = format!("{counted} trips counted");
    Ok(row)
}

fn note(ours: &Figures, bare: &Figures, rslock: &Figures) -> String {
    format!(
        "{:.2} commands per cycle; CPU per cycle of client and server {:.1} + {:.1} µs, bare {:.1} + {:.1} µs; rslock \
         reaches {:.2} of bare; what remains: decision 74",
        ours.commands, ours.cpu.0, ours.cpu.1, bare.cpu.0, bare.cpu.1, rslock.of_bare
    )
}

/// Every rival in turn, several times, so that a slow moment of the machine hits all.
async fn compare(server: &Redis, tasks: usize, cycles: u64, turns: usize) -> Answer<[Figures; 3]> {
    let mut rivals = Vec::new();
    for name in RIVALS {
        let rival = OnRedis::named(name, &server.url()).await?;
        run(&rival, name, tasks, cycles.min(50)).await?;
        rivals.push(rival);
    }
    let (mut rates, mut ratios) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..turns {
        for (at, rival) in rivals.iter().enumerate() {
            let rate = run(rival, RIVALS[at], tasks, cycles).await?;
            rates[at].push(rate);
            ratios[at].push(rate / rates[0].last().copied().unwrap_or(rate));
        }
    }
    let mut all = Vec::new();
    for (at, rival) in rivals.iter().enumerate() {
        let (commands, cpu) = price(server, rival, RIVALS[at], tasks, cycles).await?;
        all.push(Figures { rate: median(&mut rates[at]), of_bare: median(&mut ratios[at]), commands, cpu });
    }
    all.try_into().map_err(|_| "a rival is missing".into())
}

/// Commands and CPU time per cycle, in a turn of its own.
async fn price(
    server: &Redis,
    rival: &OnRedis,
    name: &str,
    tasks: usize,
    cycles: u64,
) -> Answer<(f64, (f64, f64))> {
    let cycles = cycles * 5;
    let total = u64::try_from(tasks)? * cycles;
    let cpu = || (tally::cpu_seconds(std::process::id()), tally::cpu_seconds(server.pid().unwrap_or(0)));
    tally::reset(server).await?;
    let before = cpu();
    run(rival, name, tasks, cycles).await?;
    let after = cpu();
    let micros = |seconds: f64| seconds * 1e6 / per(total, 1);
    let commands = per(tally::sent(server, name).await?, total);
    Ok((commands, (micros(after.0 - before.0), micros(after.1 - before.1))))
}

async fn run(rival: &OnRedis, name: &str, tasks: usize, cycles: u64) -> Answer<f64> {
    let clock = Clock::boot();
    let started = clock.now();
    let tasks: Vec<_> = (0..tasks)
        .map(|it| {
            let (mut rival, key) = (rival.clone(), format!("bench:{name}:{it}"));
            tokio::spawn(async move {
                for _ in 0..cycles {
                    let taken = rival.take(&key).await?;
                    rival.give_back(taken).await?;
                }
                Answer::Ok(())
            })
        })
        .collect();
    let total = u64::try_from(tasks.len())? * cycles;
    for done in try_join_all(tasks).await? {
        done?;
    }
    Ok(rate(total, clock.now() - started))
}
