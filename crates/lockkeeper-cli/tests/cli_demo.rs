//! The flash sale, in small: real processes, real books.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::{Command, Output, Stdio};

use common::{Store, code, failed, finish, lockkeeper, output, send, text, until};
use lockkeeper_servers::{
    Etcd, EtcdOptions, MariaDb, MariaDbOptions, Postgres, PostgresOptions, Redis, RedisOptions, ZooKeeper,
    ZooKeeperOptions,
};
use rustix::process::Signal;
use serde_json::Value;

/// `lockkeeper demo flash-sale --json ARG…` in a folder of its own.
fn sale(store: &Store, args: &[&str]) -> Command {
    let mut command = lockkeeper(["demo", "flash-sale", "--json", "--plot"]);
    command.arg(store.path("plot.svg")).args(args);
    command.env_remove("LOCKKEEPER_DB").env("TMPDIR", store.folder.path());
    command
}

/// Run it while the servers of this test go on.
async fn end_of(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap()
}

fn reports(end: &Output) -> Vec<Value> {
    assert_eq!(code(end), 0, "{end:?}");
    serde_json::from_slice(&end.stdout).unwrap()
}

/// All strategies were tried, and those that promise it sold exactly this.
fn sold_exactly(reports: &[Value], stock: u64) {
    assert_eq!(reports.len(), 7);
    assert_eq!(reports[0]["strategy"], "no-lock");
    assert!(reports[0]["sold"].as_u64() >= Some(stock), "nobody is kept out: {}", reports[0]);
    for report in reports[1..].iter().filter(|it| it["left_out"].is_null()) {
        assert_eq!(
            (report["sold"].as_u64(), report["oversold"].as_u64()),
            (Some(stock), Some(0)),
            "{report}"
        );
        assert_eq!(report["unbooked"].as_u64(), Some(0), "{report}");
    }
}

#[test]
fn every_strategy_that_promises_it_sells_exactly_what_there_is() {
    let store = Store::new();
    let end = output(&mut sale(&store, &["--instances", "3", "--buyers", "100", "--stock", "20"]));
    let reports = reports(&end);
    sold_exactly(&reports, 20);
    let why = reports[4]["left_out"].as_str().unwrap();
    assert!(reports[4]["strategy"] == "plain-lock" && why.contains("Redis"), "{}", reports[4]);
    let drawn = std::fs::read_to_string(store.path("plot.svg")).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.matches("<rect").count() == 7, "{drawn}");
    assert!(
        drawn.contains("locks: SQLite; books: SQLite") && drawn.contains(" statements to the books"),
        "{drawn}"
    );
    let left: Vec<_> =
        std::fs::read_dir(store.folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["plot.svg"], "nothing stays behind");
}

#[test]
fn one_strategy_can_be_chosen_and_more_stock_than_buyers_is_no_error() {
    let store = Store::new();
    let plot = store.path("plot.svg");
    let args = ["demo", "flash-sale", "--strategy", "lockkeeper", "--buyers", "7", "--stock", "9", "--plot"];
    let end = output(lockkeeper(args).arg(&plot).env("TMPDIR", store.folder.path()));
    assert_eq!(code(&end), 0, "{end:?}");
    let table = text(&end.stdout);
    assert!(table.lines().count() == 2 && table.contains("lockkeeper  7 "), "{table}");
    let said = text(&end.stderr);
    assert!(
        said.contains("times for each order: the lock is handed on") && said.contains("flash-sale.md"),
        "{said}"
    );
    failed(&output(&mut lockkeeper(["demo", "flash-sale", "--buyers", "0"])), 64);
    failed(&output(&mut lockkeeper(["demo", "flash-sale", "--strategy", "hope"])), 64);
}

#[test]
fn stores_and_databases_that_cannot_be_used_are_refused_with_a_reason() {
    let store = Store::new();
    for (url, code, reason) in [
        ("memory:", 64, "one process"),
        ("ftp://h", 64, "scheme"),
        ("locks.db", 64, "scheme"),
        ("redis://me:hunter2@127.0.0.1:1", 69, "127.0.0.1:1"),
    ] {
        let end = output(sale(&store, &["--buyers", "2"]).env("LOCKKEEPER_URL", url));
        let said = failed(&end, code);
        assert!(said.contains(reason) && said.contains("hint: ") && !said.contains("hunter2"), "{said}");
    }
    for (db, code) in [
        ("redis://127.0.0.1", 64),
        ("mysql://me:hunter2@127.0.0.1:1", 64),
        ("mysql://me:hunter2@127.0.0.1:1/shop", 69),
        ("postgres://me:hunter2@127.0.0.1:1/shop", 69),
        ("sqlite:/no/such/folder/stock.db", 69),
        ("stock.db", 64),
    ] {
        let end = output(sale(&store, &["--buyers", "2"]).env("LOCKKEEPER_DB", db));
        let said = failed(&end, code);
        assert!(said.contains("--db") && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_named_file_keeps_the_books_and_is_left_as_it_was() {
    let store = Store::new();
    let file = store.path("shop.db");
    let shop = rusqlite::Connection::open(&file).unwrap();
    shop.execute_batch("CREATE TABLE product (mine TEXT)").unwrap();
    let db = format!("sqlite:{}", file.display());
    let args = ["--db", &db, "--buyers", "40", "--stock", "10", "--strategy", "optimistic"];
    let end = output(sale(&store, &args).env("LOCKKEEPER_URL", store.url()));
    assert_eq!(reports(&end)[0]["sold"], 10);
    assert_eq!(tables(&shop), ["product"]);
}

fn tables(file: &rusqlite::Connection) -> Vec<String> {
    let mut read = file.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").unwrap();
    read.query_map([], |it| it.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn nobody_stands_in_line_after_the_sale() {
    let store = Store::new();
    let args = ["--buyers", "300", "--stock", "20", "--strategy", "two-tier", "--strategy", "lockkeeper"];
    let end = output(sale(&store, &args).env("LOCKKEEPER_URL", store.url()));
    assert_eq!(reports(&end).len(), 2);
    let listed = store.output(["ls", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["locks"].as_array().map(Vec::len), Some(0), "{listed}");
}

#[test]
fn a_sale_that_is_called_off_leaves_nothing_behind() {
    let store = Store::new();
    let file = store.path("shop.db");
    let shop = rusqlite::Connection::open(&file).unwrap();
    shop.busy_timeout(common::HANG).unwrap();
    let db = format!("sqlite:{}", file.display());
    // Far more than could be sold before the signal comes.
    let args = ["--db", &db, "--buyers", "200000", "--stock", "200000", "--strategy", "two-tier"];
    let mut command = sale(&store, &args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the books are made", || tables(&shop).len() == 2);
    send(child.id(), Signal::INT);
    let end = finish(child);
    assert_eq!(code(&end), 130, "{end:?}");
    assert!(text(&end.stderr).contains("called off"), "{end:?}");
    assert_eq!(tables(&shop), Vec::<String>::new());
}

#[tokio::test]
async fn on_redis_and_mariadb_only_the_careless_sale_goes_wrong() {
    let locks = Redis::start(RedisOptions::default().password("hunter2")).await.unwrap();
    let books = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    let store = Store::new();
    let mut command = sale(&store, &["--buyers", "400", "--stock", "60"]);
    command.env("LOCKKEEPER_URL", locks.url()).env("LOCKKEEPER_DB", books.url());
    let end = end_of(command).await;
    let reports = reports(&end);
    sold_exactly(&reports, 60);
    assert!(reports.iter().all(|it| it["left_out"].is_null()), "{reports:?}");
    assert!(text(&end.stderr).contains("the locks are on redis://***@"), "{end:?}");
    assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
    // Forty connections read and then write: that all of them take turns by chance would be a wonder.
    assert!(reports[0]["oversold"].as_u64() > Some(0), "{}", reports[0]);
    let left = books.sql("SHOW TABLES LIKE 'lockkeeper_demo%'").await.unwrap();
    assert_eq!(left, "", "the books are removed");
}

#[tokio::test]
async fn the_books_can_be_in_postgres_and_the_locks_beside_them() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let store = Store::new();
    let mut command = sale(&store, &["--buyers", "200", "--stock", "40"]);
    command.env("LOCKKEEPER_URL", server.url()).env("LOCKKEEPER_DB", server.url());
    let reports = reports(&end_of(command).await);
    sold_exactly(&reports, 40);
    assert!(reports[0]["oversold"].as_u64() > Some(0), "{}", reports[0]);
    assert!(reports[4]["left_out"].is_string(), "{}", reports[4]);
}

/// The strategies that lock in a store, on this one.
async fn locks_are_kept_in(url: &str) {
    let store = Store::new();
    let mut command = sale(&store, &["--buyers", "60", "--stock", "20", "--instances", "2"]);
    command.args(["--strategy", "plain-lock", "--strategy", "two-tier", "--strategy", "lockkeeper"]);
    command.env("LOCKKEEPER_URL", url);
    let reports = reports(&end_of(command).await);
    assert!(reports[0]["left_out"].is_string(), "{}", reports[0]);
    for report in &reports[1..] {
        assert_eq!((&report["sold"], &report["unbooked"]), (&20.into(), &0.into()), "{url}: {report}");
        assert!(report["lock_commands_per_order"].as_f64() > Some(0.0), "{url}: {report}");
    }
}

#[tokio::test]
async fn the_locks_can_be_in_etcd() {
    let server = Etcd::start(EtcdOptions::default()).await.unwrap();
    locks_are_kept_in(&format!("etcd://{}", server.address())).await;
}

#[tokio::test]
async fn the_locks_can_be_in_zookeeper() {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await.unwrap();
    locks_are_kept_in(&format!("zookeeper://{}", server.address())).await;
}

#[tokio::test]
async fn the_locks_can_be_on_a_majority_of_redis_servers() {
    let servers = Redis::masters(3).await.unwrap();
    let hosts: Vec<_> = servers.iter().map(|it| it.address()).collect();
    locks_are_kept_in(&format!("redlock://{}?restart_guard=off", hosts.join(","))).await;
}

#[test]
fn on_a_terminal_it_moves_and_says_what_it_means() {
    let store = Store::new();
    let mut command = common::unhardened("script");
    let shown = "\"$LK\" demo flash-sale --instances 2 --buyers 20 --stock 4 --plot \"$PLOT\"";
    command.args(["-qec", shown, "/dev/null"]).env("LK", env!("CARGO_BIN_EXE_lockkeeper"));
    command.env("PLOT", store.path("plot.svg")).env("TMPDIR", store.folder.path()).stdin(Stdio::null());
    command.env_remove("LOCKKEEPER_URL").env_remove("LOCKKEEPER_DB");
    let end = output(&mut command);
    assert_eq!(code(&end), 0, "{end:?}");
    let screen = text(&end.stdout);
    assert!(screen.contains("optimistic     starting 2 processes"), "{screen}");
    let full = "█".repeat(20);
    let drawn = screen.split('\r').any(|it| {
        it.contains(&format!("optimistic     {full} ")) && it.contains("20 of 20 buyers, 4 sold of 4")
    });
    assert!(drawn, "{screen}");
    assert!(screen.contains("every strategy with a lock or a check sold no piece twice"), "{screen}");
}
