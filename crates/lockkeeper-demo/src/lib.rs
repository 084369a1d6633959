//! `lockkeeper demo flash-sale`: many buyers, little stock, several processes; one strategy after the other.
//!
//! A part of the command of [`lockkeeper-cli`](https://docs.rs/lockkeeper-cli), built with its feature `demo`, and kept apart
//! so that the command itself needs no database driver. It is no library for others.
//!
//! ```text
//!   lockkeeper demo flash-sale ──┬── instance 0 ──┐
//!     │ starts, says go          ├── instance 1 ──┼──▶ --db    product, orders    what is sold
//!     │ reads the books          ├── …            │
//!     ▼ one table, one plot      └── instance n ──┴──▶ --url   the locks          who may sell
//! ```

mod books;
mod console;
mod counting;
mod explain;
mod failure;
mod help;
mod instance;
mod locks;
mod plain;
mod plot;
mod report;
mod staff;
mod strategy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lockkeeper::spi::Clock;

pub use console::{COLUMNS, Console};
pub use failure::Failure;

use books::{Books, Tables, Trouble};
use failure::Result;
use instance::{Account, INSTANCE, Said, Task};
use plot::Caption;
use report::Report;
use staff::{Instance, Progress};
use strategy::Strategy;

/// How often the line on the terminal moves, at least.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// What there is to see: a subcommand of the program that shows it.
#[derive(Debug, clap::Subcommand)]
#[non_exhaustive]
pub enum Demo {
    /// Sell little stock to many buyers from several processes, with and without locks
    #[command(after_help = help::FLASH_SALE)]
    FlashSale(FlashSale),
}

/// The options of the sale.
#[derive(Debug, Args)]
pub struct FlashSale {
    /// Where the stock and the orders live: `sqlite:PATH`, `mysql://…` or `postgres://…` [default: a temporary
    /// SQLite file]
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_DB", hide_env_values = true)]
    db: Option<String>,

    /// How many processes sell
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: u32,

    /// How many buyers come
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,

    /// How many buyers a process serves at a time [default: all that come to it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    at_once: Option<u32>,

    /// How many pieces there are
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    stock: u32,

    /// Only this strategy; may be said several times [default: all]
    #[arg(long, value_name = "NAME", value_enum)]
    strategy: Vec<Strategy>,

    /// Where to write the plot
    #[arg(long, value_name = "FILE", default_value = "flash-sale.svg")]
    plot: PathBuf,

    /// Print JSON, one object for each strategy
    #[arg(long, long_help = help::JSON)]
    json: bool,
}

/// If the arguments (without the program's name) call for an instance of the shop: be it, and tell the exit code.
pub fn helper(mut args: impl Iterator<Item = OsString>, console: &dyn Console) -> Option<u8> {
    (args.next()? == INSTANCE).then(|| instance::sell(console))
}

/// Show it, with the locks in the store behind `url` or in a temporary file; the answer is the exit code.
///
/// The program is started again for every instance of the shop, so it must call [`helper`] first.
///
/// # Cancel safety
/// Dropped half-way, the instances are killed, and the two tables stay in a database that was named.
///
/// # Errors
/// A [`Failure`] with an exit code of its own, if the sale cannot be shown.
pub async fn demo(demo: &Demo, url: Option<&str>, console: &dyn Console) -> Result<u8> {
    let Demo::FlashSale(sale) = demo;
    let folder = Folder::make()?;
    let place = Place::choose(&folder, url, sale.db.as_deref(), console)?;
    place.check().await?;
    let strategies = if sale.strategy.is_empty() { Strategy::ALL.to_vec() } else { sale.strategy.clone() };
    let mut reports = Vec::new();
    for strategy in strategies {
        let report = match locks::plain_redis(&place.url) {
            Err(why) if strategy == Strategy::PlainLock => Report::left_out(strategy, sale.stock, why),
            _ => one_sale(sale, strategy, &place).await?,
        };
        if !sale.json {
            console.say(&report.in_a_line());
        }
        reports.push(report);
    }
    if sale.json {
        let written = serde_json::to_string_pretty(&reports);
        let written = written.map_err(|it| Failure::system("the answer cannot be written as JSON", &it))?;
        console.data(&format!("{written}\n"))?;
    } else {
        console.data(&report::table(&reports, console))?;
        for line in explain::lines(&reports) {
            console.say(&line);
        }
    }
    draw(sale, &reports, &place)?;
    let broken = reports.iter().find(|it| it.strategy.promises() && !it.is_right());
    Ok(if broken.is_some() { failure::NO } else { 0 })
}

fn draw(sale: &FlashSale, reports: &[Report], place: &Place<'_>) -> Result<()> {
    let size = format!("{} buyers, {} pieces, {} processes", sale.buyers, sale.stock, sale.instances);
    let drawn = plot::draw(reports, &Caption { size: &size, locks: &place.url, books: &place.db });
    std::fs::write(&sale.plot, drawn).map_err(|it| {
        Failure::new(failure::OUTPUT, format!("the plot `{}` cannot be written: {it}", sale.plot.display()))
    })?;
    place.console.say(&format!("the plot is {}", place.console.plain(&sale.plot.display().to_string())));
    Ok(())
}

/// Where the locks and the books are.
struct Place<'a> {
    url: String,
    db: String,
    console: &'a dyn Console,
}

impl<'a> Place<'a> {
    /// What is not named is a file in our own folder.
    fn choose(
        folder: &Folder,
        url: Option<&str>,
        db: Option<&str>,
        console: &'a dyn Console,
    ) -> Result<Self> {
        // An empty variable is how a shell script unsets one.
        let url = match url.filter(|it| !it.is_empty()) {
            Some(url) => url.to_owned(),
            None => sqlite_url(&folder.0.join("locks.db"))?,
        };
        let db = match db.filter(|it| !it.is_empty() && *it != "sqlite:") {
            Some(db) => db.to_owned(),
            None => format!("sqlite:{}", folder.0.join("stock.db").display()),
        };
        Ok(Place { url, db, console })
    }

    /// Refuse what cannot be used before anything is started, and say what is used.
    async fn check(&self) -> Result<()> {
        let asked = locks::locker(&self.url, Arc::default()).await.map_err(|error| {
            let mut failure = Failure::from(error);
            failure.text = failure.text.replace(&self.url, &self.console.url(&self.url));
            failure.hint(format!("the locks were to be on `{}`; see --url", self.console.url(&self.url)))
        })?;
        drop(asked);
        let (books, _) = self.books()?;
        books.warm_up().await.map_err(|it| self.failure("opened", &it))?;
        self.console.say(&format!("the locks are on {}", self.console.url(&self.url)));
        self.console.say(&format!("the books are in {}", self.console.url(&self.db)));
        Ok(())
    }

    /// Books with new names, not made yet.
    fn books(&self) -> Result<(Books, Tables)> {
        let open = || {
            let tables = Tables::new()?;
            Ok((Books::open(&self.db, tables.clone())?, tables))
        };
        open()
            .map_err(|it: Trouble| Failure::new(failure::USAGE, it.to_string()).hint("see --db in the help"))
    }

    /// The database did not do what it should.
    fn failure(&self, doing: &str, error: &Trouble) -> Failure {
        let db = self.console.url(&self.db);
        let error = error.to_string().replace(&self.db, &db);
        Failure::unreachable(format!("the shop's books cannot be {doing}: {error}"))
            .hint(format!("the database is `{db}`; name another one with --db or LOCKKEEPER_DB"))
    }
}

/// One strategy: fresh books, a fresh lock, all instances at once. Nothing stays behind.
async fn one_sale(sale: &FlashSale, strategy: Strategy, place: &Place<'_>) -> Result<Report> {
    let (books, tables) = place.books()?;
    let sold = async {
        books.make(sale.stock).await.map_err(|it| place.failure("made", &it))?;
        let mut report = sell(sale, strategy, place, &tables).await?;
        let balance = books.balance().await.map_err(|it| place.failure("read", &it))?;
        report.check(&balance);
        Ok(report)
    };
    let ended = tokio::select! {
        sold = sold => sold,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(failure::INTERRUPTED, "the sale was called off")),
    };
    let removed = books.remove().await;
    let report = ended?;
    removed.map_err(|it| place.failure("removed", &it))?;
    Ok(report)
}

async fn sell(sale: &FlashSale, strategy: Strategy, place: &Place<'_>, tables: &Tables) -> Result<Report> {
    let mut progress = Progress::new(strategy, sale);
    progress.show();
    let mut instances = Vec::new();
    for index in 0..sale.instances {
        let share = |it: u32| sale.buyers / sale.instances * it + it.min(sale.buyers % sale.instances);
        let task = Task {
            strategy,
            lock: format!("lockkeeper-demo:{}:{}", std::process::id(), strategy.name()),
            url: place.url.clone(),
            db: place.db.clone(),
            tables: tables.clone(),
            at_once: sale.at_once.unwrap_or(u32::MAX) as usize,
            first: share(index),
            end: share(index + 1),
        };
        instances.push(Instance::start(&task).await?);
    }
    let started = Clock::boot().now();
    for instance in &mut instances {
        instance.tell("go").await?;
    }
    progress.begins(started);
    let mut report = Report::new(strategy, sale.stock);
    for account in follow(instances, &mut progress).await? {
        report.add(account, started);
    }
    progress.clear();
    Ok(report)
}

/// Show how they get on until all have told how it went.
async fn follow(instances: Vec<Instance>, progress: &mut Progress) -> Result<Vec<Account>> {
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    // Whoever stops listening, for a failure or for an interrupt, ends them with this set.
    let mut listeners = tokio::task::JoinSet::new();
    for (index, mut instance) in instances.into_iter().enumerate() {
        let sender = sender.clone();
        listeners.spawn(async move {
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
    let (clock, mut accounts) = (Clock::boot(), Vec::new());
    loop {
        let next = std::pin::pin!(heard.recv());
        match clock.within(clock.now().after(SHOW_EVERY), next).await {
            // Nobody was served meanwhile. The time that passes shows that it goes on.
            None => progress.show(),
            Some(None) => return Ok(accounts),
            Some(Some((index, said))) => match said? {
                Said::Progress { sold, done } => progress.count(index, sold, done),
                Said::Done(account) => accounts.push(account),
                Said::Ready => {}
            },
        }
    }
}

/// The URL of an `SQLite` file; what has a meaning in a URL is escaped.
fn sqlite_url(path: &Path) -> Result<String> {
    let path = path.to_str().ok_or_else(|| {
        Failure::new(failure::USAGE, "the path of the temporary folder is not UTF-8").hint("see TMPDIR")
    })?;
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
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
