//! Tasks that fight for one key: in this process or, as `redis-bench worker …`, in another.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use lockkeeper_core::{Clock, Moment};

use crate::Outcome;
use crate::rivals::Rival;

/// What one process reports.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Guards of each task.
    pub(crate) guards: Vec<u64>,
    /// How often the guard before was another task's.
    pub(crate) handoffs: u64,
    /// Median and 99th percentile, in nanoseconds, from the release by one process to the grant in another.
    pub(crate) handoff_p50: u64,
    pub(crate) handoff_p99: u64,
}

/// What everybody changes under the lock and nobody may change otherwise: count, last task, release time.
#[derive(Clone)]
pub(crate) enum Shared {
    /// Between processes.
    File(Arc<File>),
    /// Within one; read and written apart on purpose, so that two holders at once would lose an update.
    Memory(Arc<[AtomicU64; 3]>),
}

impl Shared {
    pub(crate) fn file(path: &Path) -> Outcome<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Shared::File(Arc::new(file)))
    }

    pub(crate) fn memory() -> Self {
        Shared::Memory(Arc::default())
    }

    /// How many guards were counted.
    pub(crate) fn counted(&self) -> u64 {
        self.read()[0]
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

/// Fight for `key` with so many tasks for so long.
pub(crate) async fn fight(
    rival: &Rival,
    key: &str,
    tasks: u64,
    span: Duration,
    shared: &Shared,
    process: u64,
) -> Outcome<Report> {
    let clock = Clock::boot();
    let until = clock.now().after(span);
    let tasks = (0..tasks).map(|task| {
        let me = (process << 32) | (task + 1);
        let (rival, key, clock, shared) = (rival.clone(), key.to_owned(), clock.clone(), shared.clone());
        tokio::spawn(async move { one_task(rival, &key, me, clock, until, &shared).await })
    });
    let mut report = Report::default();
    let mut latency = Histogram::<u64>::new(3)?;
    for done in try_join_all(tasks.collect::<Vec<_>>()).await? {
        let (guards, handoffs, seen) = done?;
        report.guards.push(guards);
        report.handoffs += handoffs;
        latency.add(seen)?;
    }
    report.handoff_p50 = latency.value_at_quantile(0.5);
    report.handoff_p99 = latency.value_at_quantile(0.99);
    Ok(report)
}

async fn one_task(
    mut rival: Rival,
    key: &str,
    me: u64,
    clock: Clock,
    until: Moment,
    shared: &Shared,
) -> Outcome<(u64, u64, Histogram<u64>)> {
    let (mut guards, mut handoffs, mut latency) = (0, 0, Histogram::<u64>::new(3)?);
    while clock.now() < until {
        let mut found = [0; 3];
        let work = || {
            let now = clock.now();
            found = shared.read();
            (found, now)
        };
        let mut seen = None;
        let after = |(found, now): ([u64; 3], Moment)| {
            seen = Some((found, now));
            shared.write([found[0] + 1, me, clock.now().as_nanos()]);
        };
        rival.cycle(key, work, after).await?;
        let Some((found, now)) = seen else { continue };
        guards += 1;
        handoffs += u64::from(found[1] != me);
        let from_another_process = found[1] != 0 && found[1] >> 32 != me >> 32;
        if from_another_process {
            latency.record(now.as_nanos().saturating_sub(found[2]))?;
        }
    }
    Ok((guards, handoffs, latency))
}

/// `worker RIVAL URL KEY TASKS MILLIS FILE PROCESS`: says `ready`, waits for a line, fights, reports.
pub(crate) async fn run(arguments: &[String]) -> Outcome {
    let [rival, url, key, tasks, millis, path, process] = arguments else {
        return Err("worker RIVAL URL KEY TASKS MILLIS FILE PROCESS".into());
    };
    let rival = Rival::named(rival, url).await?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let span = Duration::from_millis(millis.parse()?);
    let report =
        fight(&rival, key, tasks.parse()?, span, &Shared::file(Path::new(path))?, process.parse()?).await?;
    let guards: u64 = report.guards.iter().sum();
    println!("{guards} {} {} {}", report.handoffs, report.handoff_p50, report.handoff_p99);
    Ok(())
}
