//! Cost against work: what a hand-off, a renewal, a listing and a key cost as their number grows. `cargo xtask bench growth`
//! calls this, and writes docs/growth.md.
//!
//! ```text
//!   a process for each store and stage ─▶ line: hand-offs of a long line │ held: renewals, listings, memory │ waiting: who only waits
//!                     ◀─ its figures ─── sheet ─▶ page, plot: written after each store
//! ```
//!
//! Memory is what the process has, so each stage has one of its own: what an earlier stage gave back would hide what a later one
//! takes. A stage that hangs or fails costs its own cells and no others, and one that takes too long leaves what it knew by then.

mod held;
mod line;
mod page;
mod plot;
mod sheet;
mod waiting;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::sql::mysql::Mysql;
use lockkeeper::sql::postgres::Postgres;

use crate::Answer;
use crate::report::say;
use crate::site::{Site, Store};
use page::Page;
use sheet::{Figures, Sheet};

/// The word that asks for all this.
pub(crate) const GROWTH: &str = "growth";

const STORES: [Store; 7] = [
    Store::Sqlite,
    Store::Redis,
    Store::Postgres,
    Store::MariaDb,
    Store::Mysql,
    Store::Etcd,
    Store::ZooKeeper,
];

/// What a process of its own is started for.
const STAGE: &str = "--stage";
const STAGES: [(&str, &str); 3] =
    [("line", "a long line"), ("held", "many locks held"), ("waiting", "many who wait")];
/// No stage takes longer. Its server ends with it. Up to [`BRIEF`] all stages of all stores take twelve minutes at the most.
const fn stage_max(most: usize) -> Duration {
    if most <= BRIEF { Duration::from_secs(34) } else { Duration::from_mins(6) }
}

/// Nothing grows beyond this where less is not asked for.
const MOST: usize = 1_000_000;

/// Up to this nothing takes long, and all seven stores are measured in a few minutes.
const BRIEF: usize = 10_000;

/// The ttl of locks, and for how long they are watched: a third of it, in which each is renewed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spans {
    ttl: Duration,
    watch: Duration,
}

impl Spans {
    const fn of(ttl: u64) -> Self {
        Spans { ttl: Duration::from_secs(ttl), watch: Duration::from_secs(ttl / 3) }
    }

    /// Of what is held. A million must have the time to be renewed.
    const fn held(most: usize) -> Self {
        Spans::of(if most <= BRIEF { 9 } else { 15 })
    }

    /// Of those who only wait, who ask as seldom as holders renew.
    const fn waiting(most: usize) -> Self {
        Spans::of(if most <= BRIEF { 15 } else { 30 })
    }
}

/// What is asked for on the command line.
struct Wish {
    page: PathBuf,
    plot: PathBuf,
    most: usize,
    stores: Vec<Store>,
}

impl Wish {
    fn read(words: &[String]) -> Answer<Self> {
        let mut wish = Wish { page: PathBuf::new(), plot: PathBuf::new(), most: MOST, stores: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} what?"));
            match (word.as_str(), STORES.iter().find(|it| it.name() == word)) {
                ("--page", _) => wish.page = value()?.into(),
                ("--plot", _) => wish.plot = value()?.into(),
                ("--most", _) => wish.most = most(value()?)?,
                (_, Some(store)) => wish.stores.push(*store),
                (other, None) => return Err(format!("`{other}` is neither a store nor an option").into()),
            }
        }
        if wish.stores.is_empty() {
            wish.stores = STORES.to_vec();
        }
        Ok(wish)
    }
}

fn most(word: &str) -> Answer<usize> {
    let most = word.parse().map_err(|_| format!("--most: `{word}` is no number"))?;
    if most < 100 { Err("--most: fewer than 100 show nothing".into()) } else { Ok(most) }
}

/// `--page FILE --plot FILE [--most N] [STORE…]`
pub(crate) fn run(words: &[String]) -> Answer<()> {
    if let [word, stage, store, size] = words
        && word == STAGE
    {
        return stand_alone(stage, store, most(size)?);
    }
    let wish = Wish::read(words)?;
    let (mut done, mut failed) = (Page { sheets: Vec::new(), most: wish.most }, Vec::new());
    for store in wish.stores {
        let mut sheet = Sheet::of(store);
        for (stage, what) in STAGES {
            say(&format!("{}: {what}", store.name()));
            if let Err(error) = in_a_process(stage, wish.most, &mut sheet) {
                say(&format!("{}: {what}: {error}", store.name()));
                failed.push(format!("{} ({what})", store.name()));
            }
        }
        done.sheets.push(sheet);
        // After each, so that what is known stays known.
        done.write(&wish.page, &wish.plot)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("without an answer: {}", failed.join(", ")).into()) }
}

/// One stage of one store, by this program started once more.
fn in_a_process(stage: &str, most: usize, sheet: &mut Sheet) -> Answer<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([GROWTH, STAGE, stage, sheet.store.name(), &most.to_string()]);
    let out = command.stderr(Stdio::inherit()).output()?;
    // What it could tell counts, however it ended.
    String::from_utf8(out.stdout)?.lines().try_for_each(|it| sheet.read(it))?;
    if out.status.success() { Ok(()) } else { Err("it has not come to its end".into()) }
}

/// This process is one stage, and tells its figures. One that takes too long says so: what it told by then counts.
fn stand_alone(stage: &str, store: &str, most: usize) -> Answer<()> {
    let store = STORES.iter().find(|it| it.name() == store).copied().ok_or("there is no such store")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let longest = stage_max(most);
        if let Ok(done) = tokio::time::timeout(longest, of_store(stage, store, most)).await {
            return done;
        }
        say(&format!("ended after {longest:?}: what is known by now stays"));
        tell(&Figures::CutShort(stage.to_owned()))
    })
}

/// A figure is known.
fn tell(figures: &Figures) -> Answer<()> {
    Ok(writeln!(std::io::stdout(), "{}", figures.line())?)
}

async fn of_store(stage: &str, store: Store, most: usize) -> Answer<()> {
    let site = Site::start(store).await?;
    match stage {
        "line" => lines(store, &site.url(), most).await,
        "held" => held::grow(&site, most).await,
        "waiting" => waiting::watch(&site, most).await,
        other => Err(format!("there is no stage {other}").into()),
    }
}

/// A line of claims, at the store itself: one process stands for many.
async fn lines(store: Store, url: &str, most: usize) -> Answer<()> {
    match store {
        Store::Sqlite => line::grow(&lockkeeper::sqlite::Sqlite::connect(url).await?, most).await,
        Store::Redis => line::grow(&lockkeeper_redis::Redis::connect(url).await?, most).await,
        Store::Postgres => line::grow(&Postgres::connect(url).await?, most).await,
        Store::MariaDb | Store::Mysql => line::grow(&Mysql::connect(url).await?, most).await,
        Store::Etcd => line::grow(&lockkeeper::etcd::Etcd::connect(url).await?, most).await,
        Store::ZooKeeper => line::grow(&lockkeeper::zookeeper::ZooKeeper::connect(url).await?, most).await,
    }
}
