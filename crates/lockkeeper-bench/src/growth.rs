//! Cost against work: what a hand-off, a renewal, a listing and a key cost as their number grows. `cargo xtask bench growth`
//! calls this, and writes docs/growth.md.
//!
//! ```text
//!   line: hand-offs of a long line ── held: renewals, listings, memory ── waiting: who only waits ── page, plot
//! ```

mod held;
mod line;
mod page;
mod plot;
mod waiting;

use std::path::PathBuf;

use lockkeeper::sql::mysql::Mysql;
use lockkeeper::sql::postgres::Postgres;

use crate::Answer;
use crate::report::say;
use crate::site::{Site, Store};
use page::{Page, Sheet};

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

/// `--page FILE --plot FILE [STORE…]`
pub(crate) fn run(words: &[String]) -> Answer<()> {
    let (mut page, mut plot, mut stores) = (PathBuf::new(), PathBuf::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().map(PathBuf::from).ok_or_else(|| format!("{word} what?"));
        match (word.as_str(), STORES.iter().find(|it| it.name() == word)) {
            ("--page", _) => page = value()?,
            ("--plot", _) => plot = value()?,
            (_, Some(store)) => stores.push(*store),
            (other, None) => return Err(format!("`{other}` is neither a store nor an option").into()),
        }
    }
    let stores = if stores.is_empty() { STORES.to_vec() } else { stores };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (mut done, mut failed) = (Page { sheets: Vec::new() }, Vec::new());
    for store in stores {
        match runtime.block_on(of_store(store)) {
            Ok(sheet) => done.sheets.push(sheet),
            Err(error) => {
                say(&format!("{}: {error}", store.name()));
                failed.push(store.name());
            }
        }
        // After each, so that what is known stays known.
        done.write(&page, &plot)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("without an answer: {}", failed.join(", ")).into()) }
}

async fn of_store(store: Store) -> Answer<Sheet> {
    say(&format!("{}: a long line", store.name()));
    let site = Site::start(store).await?;
    let lines = lines(store, &site.url()).await?;
    // Another server: what a long line left behind is no part of what follows.
    let site = Site::start(store).await?;
    say(&format!("{}: many locks held", store.name()));
    let held = held::grow(&site).await?;
    say(&format!("{}: many who wait", store.name()));
    let waiting = waiting::watch(&site).await?;
    Ok(Sheet { store, lines, held, waiting })
}

/// A line of claims, at the store itself: one process stands for many.
async fn lines(store: Store, url: &str) -> Answer<line::Curve> {
    match store {
        Store::Sqlite => line::grow(&lockkeeper::sqlite::Sqlite::connect(url).await?).await,
        Store::Redis => line::grow(&lockkeeper_redis::Redis::connect(url).await?).await,
        Store::Postgres => line::grow(&Postgres::connect(url).await?).await,
        Store::MariaDb | Store::Mysql => line::grow(&Mysql::connect(url).await?).await,
        Store::Etcd => line::grow(&lockkeeper::etcd::Etcd::connect(url).await?).await,
        Store::ZooKeeper => line::grow(&lockkeeper::zookeeper::ZooKeeper::connect(url).await?).await,
    }
}
