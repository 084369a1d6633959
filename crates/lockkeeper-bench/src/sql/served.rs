//! Whether every process of a crowd is served, and how evenly.

use std::error::Error;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};

use crate::report::{Bound, Row};

/// When one process had its guards, in nanoseconds of the boot clock. Begins with when it began.
#[derive(Clone)]
pub(crate) struct Guards(Clock, Arc<Mutex<Vec<u64>>>, Moment);

impl Guards {
    pub(crate) fn begin() -> Self {
        let clock = Clock::boot();
        let begun = clock.now();
        Guards(clock, Arc::new(Mutex::new(vec![begun.as_nanos()])), begun)
    }

    pub(crate) fn since_begun(&self) -> Duration {
        self.0.now() - self.2
    }

    pub(crate) fn had(&self) {
        let now = self.0.now().as_nanos();
        locked(&self.1).push(now);
    }

    /// Tell them to the parent process.
    pub(crate) fn print(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let times = locked(&self.1);
        let lines: Vec<String> = times.iter().map(u64::to_string).collect();
        writeln!(std::io::stdout(), "{}", lines.join("\n"))?;
        Ok(())
    }
}

/// What all processes told.
#[derive(Debug, Default)]
pub(crate) struct Service(Vec<Vec<u64>>);

impl Service {
    /// One more process.
    pub(crate) fn add(&mut self, told: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let times: Result<Vec<u64>, _> = told.lines().map(str::parse).collect();
        self.0.push(times?);
        Ok(())
    }

    /// The guards of all processes together.
    pub(crate) fn guards(&self) -> u32 {
        self.0.iter().map(|it| u32::try_from(it.len().saturating_sub(1)).unwrap_or(u32::MAX)).sum()
    }

    /// When the last process had its first guard. Until then the first may hand its lock on as it likes: it does
    /// not know yet that others have come.
    fn all_served(&self) -> u64 {
        self.0.iter().map(|it| it.get(1).copied().unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX)
    }

    /// The guards of each process from then until the first was done.
    fn counts(&self) -> Vec<f64> {
        let all_served = self.all_served();
        let first_done = self.0.iter().filter_map(|it| it.last()).min().copied().unwrap_or(0);
        let within = |times: &Vec<u64>| {
            let count = times.iter().skip(1).filter(|it| all_served <= **it && **it <= first_done).count();
            f64::from(u32::try_from(count).unwrap_or(u32::MAX))
        };
        self.0.iter().map(within).collect()
    }

    /// How many processes were served, and how evenly (Jain's index).
    pub(crate) fn row(&self, what: &'static str) -> Row {
        let counts = self.counts();
        let (sum, squares): (f64, f64) = (counts.iter().sum(), counts.iter().map(|it| it * it).sum());
        let number = |it: usize| f64::from(u32::try_from(it).unwrap_or(u32::MAX));
        let (served, all) = (counts.iter().filter(|it| 0.0 < **it).count(), counts.len());
        let jain = if squares == 0.0 { 0.0 } else { sum * sum / (number(all) * squares) };
        let each: Vec<String> = counts.iter().map(|it| format!("{it:.0}")).collect();
        let begun = self.0.iter().filter_map(|it| it.first()).min().copied().unwrap_or(0);
        let first = Duration::from_nanos(self.all_served().saturating_sub(begun));
        Row {
            what,
            ours: served.to_string(),
            theirs: all.to_string(),
            ratio: number(served) / number(all),
            bound: Bound::AtLeast(1.0),
            note: format!(
                "guards of each: {}, Jain index {jain:.3}; the last had its first after {first:.0?}",
                each.join(", ")
            ),
        }
    }
}
