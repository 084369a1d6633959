//! Tasks that fight for one key: in this process or in another that is told by its standard input.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use lockkeeper_core::{Clock, Moment};
use redis::PushKind;

use super::rivals::{self, Rival};
use crate::Answer;

/// The word that makes this program a worker.
pub(crate) const WORKER: &str = "fight-for-redis";

/// The span that counts. Everybody fights before it begins, so that nobody has the key to itself in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
}

/// What one process reports.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Guards in all.
    pub(crate) total: u64,
    /// Guards of each task, in the window.
    pub(crate) guards: Vec<u64>,
    /// Median and 99th percentile, in nanoseconds, from the release by one process to the grant in another.
    pub(crate) hand_on: (u64, u64),
}

/// What everybody changes under the lock and nobody may change otherwise: count, last process, release time.
#[derive(Clone)]
pub(crate) enum Shared {
    /// Between processes.
    File(Arc<File>),
    /// Within one; read and written apart on purpose, so that two holders at once would lose an update.
    Memory(Arc<[AtomicU64; 3]>),
}

impl Shared {
    pub(crate) fn file(path: &Path) -> Answer<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Shared::File(Arc::new(file)))
    }

    pub(crate) fn memory() -> Self {
        Shared::Memory(Arc::default())
    }

    /// Whether every guard was counted.
    pub(crate) fn check(&self, guards: u64) -> Answer<()> {
        match self.read()[0] {
            counted if counted == guards => Ok(()),
            counted => Err(format!("{guards} guards, but only {counted} updates survived").into()),
        }
    }

    fn read(&self) -> [u64; 3] {
        match self {
            Shared::Memory(values) => std::array::from_fn(|it| values[it].load(Ordering::Relaxed)),
            Shared::File(file) => {
                let mut bytes = [0; 24];
                let _ = file.read_at(&mut bytes, 0);
                std::array::from_fn(|it| u64::from_le_bytes(std::array::from_fn(|at| bytes[it * 8 + at])))
            }
        }
    }

    fn write(&self, values: [u64; 3]) {
        match self {
            Shared::Memory(shared) => {
                for (to, value) in shared.iter().zip(values) {
                    to.store(value, Ordering::Relaxed);
                }
            }
            Shared::File(file) => {
                let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
                let _ = file.write_all_at(&bytes, 0);
            }
        }
    }
}

/// One fighting task.
#[derive(Clone)]
struct Fighter {
    rival: Rival,
    key: Arc<str>,
    clock: Clock,
    window: Window,
    shared: Shared,
    process: u64,
}

/// Fight for `key` with so many tasks until the window ends.
pub(crate) async fn fight(
    rival: &Rival,
    key: &str,
    tasks: u64,
    window: Window,
    shared: &Shared,
    process: u64,
) -> Answer<Report> {
    let (rival, clock, shared) = (rival.clone(), Clock::boot(), shared.clone());
    let fighter = Fighter { rival, key: key.into(), clock, window, shared, process };
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(fighter.clone().run())).collect();
    let (mut report, mut latency) = (Report::default(), Histogram::<u64>::new(3)?);
    for done in try_join_all(tasks).await? {
        let (total, guards, seen) = done?;
        report.total += total;
        report.guards.push(guards);
        latency.add(seen)?;
    }
    report.hand_on = (latency.value_at_quantile(0.5), latency.value_at_quantile(0.99));
    Ok(report)
}

impl Fighter {
    /// Guards in all, guards in the window, and how long they took to come from another process.
    async fn run(mut self) -> Answer<(u64, u64, Histogram<u64>)> {
        let (mut total, mut guards, mut latency) = (0, 0, Histogram::<u64>::new(3)?);
        while self.clock.now() < self.window.until {
            let (mut now, mut found) = (self.window.until, [0; 3]);
            let (clock, shared, process) = (&self.clock, &self.shared, self.process);
            let work = || {
                now = clock.now();
                found = shared.read();
                shared.write([found[0] + 1, process, clock.now().as_nanos()]);
            };
            self.rival.cycle(&self.key, work).await?;
            total += 1;
            if now < self.window.from || self.window.until <= now {
                continue;
            }
            guards += 1;
            if found[1] != 0 && found[1] != self.process {
                latency.record(now.as_nanos().saturating_sub(found[2]))?;
            }
        }
        Ok((total, guards, latency))
    }
}

/// `RIVAL URL KEY TASKS FILE PROCESS`: says `ready` and does what the lines of its input say: `ping COUNT`,
/// `relay NEXT ROUNDS` or `fight FROM UNTIL`.
pub(crate) fn work(arguments: &[String]) -> Answer<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(obey(arguments))
}

async fn obey(arguments: &[String]) -> Answer<()> {
    let [rival, url, key, tasks, path, process] = arguments else {
        return Err("usage: RIVAL URL KEY TASKS FILE PROCESS".into());
    };
    let (rival, shared) = (Rival::named(rival, url).await?, Shared::file(Path::new(path))?);
    say("ready")?;
    loop {
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        match words[..] {
            ["ping", count] => say(&ping(url, count.parse()?).await?.to_string())?,
            ["relay", next, rounds] => relay(url, process, next, rounds.parse()?).await?,
            ["fight", from, until] => {
                let moment = |it: &str| it.parse().map(Moment::from_nanos);
                let window = Window { from: moment(from)?, until: moment(until)? };
                let report = fight(&rival, key, tasks.parse()?, window, &shared, process.parse()?).await?;
                let guards: u64 = report.guards.iter().sum();
                say(&format!("{} {guards} {} {}", report.total, report.hand_on.0, report.hand_on.1))?;
            }
            _ => return Err(format!("{line:?} is not understood").into()),
        }
    }
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// Pass a bare message on to the next process, so many times; the first of them begins. Says `listening`, and then the
/// median of what one round took, in nanoseconds.
async fn relay(url: &str, me: &str, next: &str, rounds: u32) -> Answer<()> {
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
    let mut connection = rivals::listener(url, sender).await?;
    connection.subscribe(format!("relay:{me}")).await?;
    say("listening")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let pass_on = redis::cmd("PUBLISH").arg(format!("relay:{next}")).arg("go").to_owned();
    let (clock, mut times) = (Clock::boot(), Histogram::<u64>::new(3)?);
    let mut before = clock.now();
    if line.trim() == "begin" {
        let _: i64 = pass_on.query_async(&mut connection).await?;
    }
    for _ in 0..rounds {
        while messages.recv().await.ok_or("the relay was cut")?.kind != PushKind::Message {}
        let now = clock.now();
        times.record((now - before).as_nanos().try_into()?)?;
        before = now;
        let _: i64 = pass_on.query_async(&mut connection).await?;
    }
    say(&times.value_at_quantile(0.5).to_string())?;
    Ok(())
}

/// The median of bare round trips on the same client, in nanoseconds.
async fn ping(url: &str, count: u32) -> Answer<u64> {
    let mut connection = rivals::connection(url).await?;
    let (clock, mut times) = (Clock::boot(), Histogram::<u64>::new(3)?);
    for _ in 0..count {
        let before = clock.now();
        let _: String = redis::cmd("PING").query_async(&mut connection).await?;
        times.record((clock.now() - before).as_nanos().try_into()?)?;
    }
    Ok(times.value_at_quantile(0.5))
}
