//! Tasks that fight for one key: in this process or, as `redis-bench worker …`, in another.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
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

/// A file that everybody changes under the lock and nobody may change otherwise: count, last task, release time.
#[derive(Clone)]
struct Shared(Arc<File>);

impl Shared {
    fn open(path: &Path) -> Outcome<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Shared(Arc::new(file)))
    }

    fn read(&self) -> [u64; 3] {
        let mut bytes = [0; 24];
        let _ = self.0.read_at(&mut bytes, 0);
        std::array::from_fn(|it| u64::from_le_bytes(std::array::from_fn(|at| bytes[it * 8 + at])))
    }

    fn write(&self, values: [u64; 3]) {
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let _ = self.0.write_all_at(&bytes, 0);
    }
}

/// How many guards were counted in the file.
pub(crate) fn counted(path: &Path) -> Outcome<u64> {
    Ok(Shared::open(path)?.read()[0])
}

/// Fight for `key` with so many tasks for so long.
pub(crate) async fn fight(
    rival: &Rival,
    key: &str,
    tasks: u64,
    span: Duration,
    path: &Path,
    process: u64,
) -> Outcome<Report> {
    let (clock, shared) = (Clock::boot(), Shared::open(path)?);
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
    let report = fight(&rival, key, tasks.parse()?, span, Path::new(path), process.parse()?).await?;
    let guards: u64 = report.guards.iter().sum();
    println!("{guards} {} {} {}", report.handoffs, report.handoff_p50, report.handoff_p99);
    Ok(())
}
