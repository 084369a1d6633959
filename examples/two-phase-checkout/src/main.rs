//! A checkout over two databases: an order in PostgreSQL and stock in MariaDB, both or neither, whenever the shop is killed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Office, Participant, TwoPhase};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The shop is killed after so many sales.
const SALES: usize = 5;
/// How long the seat of a dead shop stays taken.
const TTL: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["shop", folder, orders, stock] => shop(Path::new(folder), orders, stock).await,
        [deaths] => town(Some(deaths.parse()?)).await,
        _ => town(None).await,
    }
}

/// The office: a log and locks in two files, and both databases.
async fn office(folder: &Path, orders: &str, stock: &str) -> Result<TwoPhase> {
    let locker = lockkeeper::connect(&format!("sqlite:{}", folder.join("locks.db").display())).await?;
    Ok(TwoPhase::open(&format!("sqlite:{}", folder.join("2pc.db").display()), &locker)
        .await?
        .participant("orders", Participant::postgres(orders)?)
        .participant("stock", Participant::mysql(stock)?)
        .ttl(TTL))
}

/// One sale, in both databases or in neither.
async fn sell(office: &Office) -> Result<()> {
    let sale = office
        .transaction()
        .note("a sale")
        .on("orders", async |db: &Client| Ok(db.batch_execute("INSERT INTO orders DEFAULT VALUES").await?))
        .on("stock", async |db: &mut Conn| Ok(db.query_drop("UPDATE stock SET amount = amount - 1").await?));
    sale.commit().await?;
    Ok(())
}

/// The process that is killed.
async fn shop(folder: &Path, orders: &str, stock: &str) -> Result<()> {
    let office = office(folder, orders, stock).await?.start().await?;
    for sale in 1.. {
        sell(&office).await?;
        say(&format!("sold {sale}"))?;
    }
    Ok(())
}

/// Servers, and one shop after the other. Without an end if nobody says how many.
async fn town(deaths: Option<usize>) -> Result<()> {
    let settings = PostgresOptions::default().set("max_prepared_transactions", "10");
    let (orders, stock) = tokio::join!(Postgres::start(settings), MariaDb::start(MariaDbOptions::default()));
    let (orders, stock, folder) = (orders?, stock?, tempfile::tempdir()?);
    orders.sql("CREATE TABLE orders (id serial PRIMARY KEY)").await?;
    stock.sql("CREATE TABLE stock (amount int); INSERT INTO stock VALUES (1000000)").await?;
    let program = std::env::current_exe()?;
    for _ in 0..deaths.unwrap_or(usize::MAX) {
        let shop = open(&program, folder.path(), &orders.url(), &stock.url())?;
        watch(shop, deaths.map(|_| SALES)).await?;
        // The next one would finish what this one left; here it is done before, so that both can be compared.
        recover(folder.path(), &orders.url(), &stock.url()).await?;
        compare(&orders, &stock).await?;
    }
    Ok(())
}

/// Wait until the seat of the dead is free, and finish what it left.
async fn recover(folder: &Path, orders: &str, stock: &str) -> Result<()> {
    loop {
        let (left, busy) = office(folder, orders, stock).await?.recover().await?;
        if left.is_empty() && busy.is_empty() {
            return Ok(());
        }
        lockkeeper::spi::Clock::boot().sleep(Duration::from_millis(100)).await;
    }
}

async fn compare(orders: &Postgres, stock: &MariaDb) -> Result<()> {
    let ordered = orders.sql("SELECT count(*) FROM orders").await?;
    let sold = stock.sql("SELECT 1000000 - amount FROM stock").await?;
    let (ordered, sold) = (ordered.trim(), sold.trim());
    let verdict = if ordered == sold { "they agree" } else { "THEY DIFFER" };
    say(&format!("{ordered} ordered, {sold} sold: {verdict}"))
}

fn open(program: &PathBuf, folder: &Path, orders: &str, stock: &str) -> Result<Child> {
    let mut shop = Command::new(program);
    shop.arg("shop").arg(folder).args([orders, stock]).stdout(Stdio::piped()).kill_on_drop(true);
    Ok(shop.spawn()?)
}

/// Repeat what the shop says until it is dead; kill it after so many sales.
async fn watch(mut shop: Child, sales: Option<usize>) -> Result<()> {
    if let (Some(id), None) = (shop.id(), sales) {
        say(&format!("the shop is process {id}; kill -9 {id} whenever you like, end with Ctrl-C"))?;
    }
    let Some(stdout) = shop.stdout.take() else { return Ok(()) };
    let (mut lines, mut count) = (BufReader::new(stdout).lines(), 0);
    while let Some(line) = lines.next_line().await? {
        say(&line)?;
        count += 1;
        if sales == Some(count) {
            shop.start_kill()?;
        }
    }
    shop.wait().await?;
    Ok(())
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
