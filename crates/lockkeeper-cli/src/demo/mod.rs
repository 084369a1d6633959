//! `lockkeeper demo flash-sale`: many buyers, little stock, several processes; one strategy after the other.
//!
//! ```text
//!   lockkeeper demo flash-sale ──┬── instance 0 ──┐
//!     │ starts, says go          ├── instance 1 ──┼──▶ stock.db (product, orders)    what is sold
//!     │ reads the books          ├── …            │
//!     ▼ one table, one plot      └── instance n ──┴──▶ locks.db, plain.db            who may sell
//! ```

mod books;
mod counting;
mod instance;
mod plain;
mod plot;
mod report;
mod strategy;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::exit::{self, Failure, Result};
use crate::{help, output, text};

use books::Books;
use instance::{INSTANCE, Said, Task};
use report::Report;
use strategy::Strategy;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Demo {
    /// Sell little stock to many buyers from several processes, with and without locks
    #[command(after_help = help::FLASH_SALE)]
    FlashSale(FlashSale),
}

#[derive(Debug, Args)]
pub(crate) struct FlashSale {
    /// How many processes sell
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: u32,

    /// How many buyers come, all at once
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,

    /// How many pieces there are
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    stock: u32,

    /// Only this strategy; may be said several times [default: all]
    #[arg(long, value_name = "NAME", value_enum)]
    strategy: Vec<Strategy>,

    /// Where to write the plot
    #[arg(long, value_name = "FILE", default_value = "flash-sale.svg")]
    plot: PathBuf,

    #[command(flatten)]
    json: crate::args::Json,
}

/// If the arguments call for an instance: be it.
pub(crate) fn helper(mut args: impl Iterator<Item = OsString>) -> Option<u8> {
    (args.next()? == INSTANCE).then(instance::sell)
}

pub(crate) async fn demo(demo: &Demo, url: Option<&str>) -> Result<u8> {
    let Demo::FlashSale(sale) = demo;
    let redis = url.filter(|it| it.starts_with("redis:") || it.starts_with("rediss:"));
    if let Some(url) = redis {
        output::say(&format!("the locks are on {}", text::plain(&text::url_without_secrets(url))));
    }
    let folder = Folder::make()?;
    let strategies = if sale.strategy.is_empty() { Strategy::ALL.to_vec() } else { sale.strategy.clone() };
    let mut reports = Vec::new();
    for strategy in strategies {
        let report = one_sale(sale, strategy, &folder.0, redis).await?;
        if !sale.json.json {
            output::say(&report.in_a_line());
        }
        reports.push(report);
    }
    if sale.json.json {
        output::json(&reports)?;
    } else {
        output::data(&report::table(&reports))?;
    }
    let drawn = plot::draw(
        &reports,
        &format!("{} buyers, {} pieces, {} processes", sale.buyers, sale.stock, sale.instances),
    );
    std::fs::write(&sale.plot, drawn).map_err(|it| {
        Failure::new(exit::OUTPUT, format!("the plot `{}` cannot be written: {it}", sale.plot.display()))
    })?;
    output::say(&format!("the plot is {}", text::plain(&sale.plot.display().to_string())));
    let broken = reports.iter().find(|it| it.strategy.promises() && !it.is_right());
    Ok(if broken.is_some() { exit::NO } else { 0 })
}

/// One strategy: fresh books, fresh locks, all instances at once.
async fn one_sale(
    sale: &FlashSale,
    strategy: Strategy,
    folder: &Path,
    redis: Option<&str>,
) -> Result<Report> {
    let folder = folder.join(strategy.name());
    std::fs::create_dir(&folder)
        .map_err(|it| Failure::system("a folder for the sale cannot be made", &it))?;
    Books::make(&folder, sale.stock)?;
    let mut instances = Vec::new();
    for index in 0..sale.instances {
        let share = |it: u32| sale.buyers / sale.instances * it + it.min(sale.buyers % sale.instances);
        let task = Task {
            folder: folder.clone(),
            strategy,
            lock: format!("lockkeeper-demo:{}:{}", std::process::id(), strategy.name()),
            redis: redis.map(str::to_owned),
            first: share(index),
            end: share(index + 1),
        };
        instances.push(Instance::start(&task).await?);
    }
    let started = lockkeeper::spi::Clock::boot().now();
    for instance in &mut instances {
        instance.tell("go").await?;
    }
    let mut progress = Progress::new(strategy, sale);
    let mut report = Report::new(strategy, sale.stock);
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    for (index, mut instance) in instances.into_iter().enumerate() {
        let sender = sender.clone();
        tokio::spawn(async move {
            loop {
                let said = instance.next().await;
                let is_last = !matches!(said, Ok(Said::Progress { .. }));
                if sender.send((index, said)).is_err() || is_last {
                    return instance.end().await;
                }
            }
        });
    }
    drop(sender);
    while let Some((index, said)) = heard.recv().await {
        match said? {
            Said::Progress { sold, done } => progress.show(index, sold, done),
            Said::Done(account) => report.add(account, started),
            Said::Ready => {}
        }
    }
    progress.clear();
    report.check(&Books::read_up(&folder)?);
    Ok(report)
}

/// A folder that goes when the demo ends.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("lockkeeper-flash-sale-{}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|it| Failure::system(&format!("the folder `{}` cannot be made", path.display()), &it))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that sells.
struct Instance {
    process: Child,
    words: Lines<BufReader<ChildStdout>>,
}

impl Instance {
    /// Start it, and wait until it is ready to sell.
    async fn start(task: &Task) -> Result<Self> {
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

    async fn tell(&mut self, words: &str) -> Result<()> {
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
    async fn next(&mut self) -> Result<Said> {
        let line = self
            .words
            .next_line()
            .await
            .map_err(|it| Failure::system("an instance of the shop is not heard", &it))?;
        let said = line.and_then(|it| serde_json::from_str(&it).ok());
        said.ok_or_else(|| Failure::new(exit::SYSTEM, "an instance of the shop ended too early; see above"))
    }

    async fn end(mut self) {
        let _ = self.process.wait().await;
    }
}

/// A line on the terminal that follows the sale.
struct Progress {
    strategy: Strategy,
    buyers: u32,
    stock: u32,
    /// Of each instance: how many it sold, how many buyers it served.
    counts: Vec<(u64, u64)>,
    shown: bool,
}

impl Progress {
    fn new(strategy: Strategy, sale: &FlashSale) -> Self {
        let shown = std::io::stderr().is_terminal();
        let counts = vec![(0, 0); sale.instances as usize];
        Progress { strategy, buyers: sale.buyers, stock: sale.stock, counts, shown }
    }

    fn show(&mut self, index: usize, sold: u64, done: u64) {
        self.counts[index] = (sold, done);
        if !self.shown {
            return;
        }
        let (sold, done) = self.counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let filled = usize::try_from(done * 20 / u64::from(self.buyers)).unwrap_or(20).min(20);
        let (bar, rest) = ("█".repeat(filled), "░".repeat(20 - filled));
        let name = self.strategy.name();
        output::say_raw(&format!(
            "\r\x1b[K{name:<14} {bar}{rest} {done} of {} buyers, {sold} sold of {}",
            self.buyers, self.stock
        ));
    }

    fn clear(&self) {
        if self.shown {
            output::say_raw("\r\x1b[K");
        }
    }
}
