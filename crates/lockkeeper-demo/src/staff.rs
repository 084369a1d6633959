//! The processes that sell, as their parent sees them: how they are started, asked and followed.

use std::io::{IsTerminal as _, Write as _};

use lockkeeper::spi::{Clock, Moment};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::FlashSale;
use crate::failure::{Failure, Result, SYSTEM};
use crate::instance::{INSTANCE, Said, Task};
use crate::strategy::Strategy;

/// A process that sells.
pub(crate) struct Instance {
    process: Child,
    words: Lines<BufReader<ChildStdout>>,
}

impl Instance {
    /// Start it, and wait until it is ready to sell.
    pub(crate) async fn start(task: &Task) -> Result<Self> {
        let failed = |it: std::io::Error| Failure::system("an instance of the shop cannot be started", &it);
        let program = std::env::current_exe().map_err(failed)?;
        let task = serde_json::to_string(task).map_err(|it| failed(it.into()))?;
        let mut command = Command::new(program);
        command.arg(INSTANCE).kill_on_drop(true);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let words = process.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        let mut instance = Instance { process, words: BufReader::new(words).lines() };
        instance.tell(&task).await?;
        instance.next().await?;
        Ok(instance)
    }

    pub(crate) async fn tell(&mut self, words: &str) -> Result<()> {
        let failed = |it| Failure::system("an instance of the shop does not listen", &it);
        if let Some(input) = &mut self.process.stdin {
            input
                .write_all(format!("{words}\n").as_bytes())
                .await
                .map_err(|it: std::io::Error| failed(it))?;
        }
        Ok(())
    }

    /// What it says next.
    pub(crate) async fn next(&mut self) -> Result<Said> {
        let line = self
            .words
            .next_line()
            .await
            .map_err(|it| Failure::system("an instance of the shop is not heard", &it))?;
        let said = line.and_then(|it| serde_json::from_str(&it).ok());
        said.ok_or_else(|| Failure::new(SYSTEM, "an instance of the shop ended too early; see above"))
    }

    pub(crate) async fn end(mut self) {
        let _ = self.process.wait().await;
    }
}

/// A line on the terminal that follows the sale.
pub(crate) struct Progress {
    strategy: Strategy,
    buyers: u32,
    stock: u32,
    /// Of each instance: how many it sold, how many buyers it served.
    counts: Vec<(u64, u64)>,
    /// When the shop opened.
    opened: Option<Moment>,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(strategy: Strategy, sale: &FlashSale) -> Self {
        let shown = std::io::stderr().is_terminal() && !sale.json;
        let counts = vec![(0, 0); sale.instances as usize];
        Progress { strategy, buyers: sale.buyers, stock: sale.stock, counts, opened: None, shown }
    }

    pub(crate) fn begins(&mut self, opened: Moment) {
        self.opened = Some(opened);
    }

    pub(crate) fn count(&mut self, index: usize, sold: u64, done: u64) {
        self.counts[index] = (sold, done);
        self.show();
    }

    pub(crate) fn show(&self) {
        if self.shown {
            draw(&format!("\r\x1b[K{}", self.line(Clock::boot().now())));
        }
    }

    /// How it stands at this moment.
    fn line(&self, now: Moment) -> String {
        let name = self.strategy.name();
        let Some(opened) = self.opened else {
            return format!("{name:<14} starting {} processes", self.counts.len());
        };
        let (sold, done) = self.counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let filled = usize::try_from(done * 20 / u64::from(self.buyers)).unwrap_or(20).min(20);
        let (bar, rest) = ("█".repeat(filled), "░".repeat(20 - filled));
        let seconds = (now - opened).as_secs_f64();
        format!(
            "{name:<14} {bar}{rest} {seconds:.1} s, {done} of {} buyers, {sold} sold of {}",
            self.buyers, self.stock
        )
    }

    pub(crate) fn clear(&self) {
        if self.shown {
            draw("\r\x1b[K");
        }
    }
}

/// Nobody is left to see it if that fails.
fn draw(words: &str) {
    let _ = std::io::stderr().lock().write_all(words.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_line_grows_with_every_buyer_and_its_time_goes_on() {
        let (strategy, opened) = (Strategy::Optimistic, Moment::from_nanos(0));
        let counts = vec![(0, 0); 2];
        let mut line = Progress { strategy, buyers: 200, stock: 9, counts, opened: None, shown: false };
        let after = |seconds| opened.after(Duration::from_secs(seconds));
        assert_eq!(line.line(after(1)), "optimistic     starting 2 processes");
        line.begins(opened);
        let none = "░".repeat(20);
        assert_eq!(line.line(after(1)), format!("optimistic     {none} 1.0 s, 0 of 200 buyers, 0 sold of 9"));
        line.count(1, 4, 60);
        line.count(0, 5, 40);
        let half = format!("{}{}", "█".repeat(10), "░".repeat(10));
        assert_eq!(
            line.line(after(2)),
            format!("optimistic     {half} 2.0 s, 100 of 200 buyers, 9 sold of 9")
        );
        line.count(0, 5, 140);
        assert!(line.line(after(3)).contains(&"█".repeat(20)));
    }
}
