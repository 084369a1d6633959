//! A bank over two servers, and what must be true of it whatever died.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper::twophase::{Participant, TwoPhase};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use lockkeeper_torture::Trouble;

/// Accounts at each server, and what each has at first.
pub(super) const ACCOUNTS: u64 = 16;
const EACH: i64 = 1000;
/// How long the seat of a dead coordinator stays taken, and how often the living look.
pub(super) const TTL: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_millis(300);
/// A hang guard.
pub(super) const HANG: Duration = Duration::from_secs(300);

/// Both servers.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) orders: Postgres,
    pub(super) stock: MariaDb,
}

impl Servers {
    pub(super) async fn start() -> Result<Self, Trouble> {
        let settings = PostgresOptions::default().set("max_prepared_transactions", "500");
        let settings = settings.set("max_connections", "300");
        let (orders, stock) = tokio::join!(
            Postgres::start(settings),
            MariaDb::start(MariaDbOptions::default().set("max-connections", "500"))
        );
        let servers = Servers { orders: orders?, stock: stock? };
        let values: Vec<String> = (0..ACCOUNTS).map(|it| format!("({it}, {EACH})")).collect();
        let sql = format!(
            "CREATE TABLE account (id int PRIMARY KEY, amount int); CREATE TABLE move (id varchar(64) PRIMARY KEY); \
             INSERT INTO account VALUES {}",
            values.join(", ")
        );
        servers.orders.sql(&sql).await?;
        servers.stock.sql(&sql).await?;
        Ok(servers)
    }

    pub(super) fn bank(&self, folder: &Path) -> Bank {
        Bank { folder: folder.to_owned(), orders: self.orders.url(), stock: self.stock.url() }
    }

    /// What was moved, as each server has it.
    pub(super) async fn moves(&self) -> Result<(BTreeSet<String>, BTreeSet<String>), Trouble> {
        let sql = "SELECT id FROM move ORDER BY id";
        let all = |text: String| text.lines().map(|it| it.trim().to_owned()).collect();
        Ok((all(self.orders.sql(sql).await?), all(self.stock.sql(sql).await?)))
    }

    /// What the servers themselves list. Nobody else prepares there.
    async fn prepared(&self) -> Result<Vec<String>, Trouble> {
        let here = self.orders.sql("SELECT gid FROM pg_prepared_xacts").await?;
        let there = self.stock.sql("XA RECOVER").await?;
        let lines = here.lines().chain(there.lines()).map(str::trim);
        Ok(lines.filter(|it| !it.is_empty()).map(str::to_owned).collect())
    }

    async fn money(&self) -> Result<i64, Trouble> {
        let sql = "SELECT sum(amount) FROM account";
        let (here, there) = (self.orders.sql(sql).await?, self.stock.sql(sql).await?);
        Ok(here.trim().parse::<i64>()? + there.trim().parse::<i64>()?)
    }
}

/// Where the log, the locks and the participants are.
#[derive(Clone, Debug)]
pub(super) struct Bank {
    pub(super) folder: PathBuf,
    pub(super) orders: String,
    pub(super) stock: String,
}

impl Bank {
    pub(super) fn words(&self) -> [String; 3] {
        [self.folder.display().to_string(), self.orders.clone(), self.stock.clone()]
    }

    pub(super) fn read(words: &[String]) -> Option<Self> {
        let [folder, orders, stock] = words else { return None };
        Some(Bank { folder: folder.into(), orders: orders.clone(), stock: stock.clone() })
    }

    fn file(&self, name: &str) -> String {
        format!("sqlite:{}", self.folder.join(name).display())
    }

    /// An office, not started.
    pub(super) async fn setup(&self) -> Result<TwoPhase, Trouble> {
        let locker = lockkeeper::connect(&self.file("locks.db")).await?;
        let setup = TwoPhase::open(&self.file("2pc.db"), &locker).await?.ttl(TTL).sweep_every(SWEEP);
        let setup = setup.participant("orders", Participant::postgres(&self.orders)?);
        Ok(setup.participant("stock", Participant::mysql(&self.stock)?))
    }

    /// Lose the log.
    pub(super) fn lose_the_log(&self) -> Result<(), Trouble> {
        for name in ["2pc.db", "2pc.db-wal", "2pc.db-shm"] {
            match std::fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Recover until nothing is left and no seat is held by the dead.
    pub(super) async fn recover(&self) -> Result<(), Trouble> {
        let clock = Clock::boot();
        let until = clock.now().after(HANG);
        loop {
            let (left, busy) = self.setup().await?.recover().await?;
            if left.is_empty() && busy.is_empty() {
                return Ok(());
            }
            if until <= clock.now() {
                return Err(format!("not everything can be recovered: {left:?}, seats {busy:?}").into());
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

/// What somebody was told of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) tag: String,
    pub(super) word: String,
}

/// Everything that must hold when all is finished. What does not, in words.
pub(super) async fn check(servers: &Servers, bank: &Bank, told: &[Told]) -> Result<Vec<String>, Trouble> {
    let mut wrong = Vec::new();
    let (here, there) = servers.moves().await?;
    for it in here.symmetric_difference(&there) {
        wrong.push(format!("split: the move {it} is at one server only"));
    }
    let whole = 2 * EACH * i64::try_from(ACCOUNTS)?;
    let money = servers.money().await?;
    if money != whole {
        wrong.push(format!("money: there is {money} of {whole}"));
    }
    for Told { tag, word } in told {
        let moved = here.contains(tag);
        if (word == "committed") != moved && ["committed", "aborted"].contains(&word.as_str()) {
            wrong.push(format!("told: {tag} was {word}, and moved is {moved}"));
        }
        if word == "damaged" {
            wrong.push(format!("told: {tag} was damaged"));
        }
    }
    for it in servers.prepared().await? {
        wrong.push(format!("prepared: a server lists {it}"));
    }
    let survey = bank.setup().await?.survey().await?;
    wrong.extend(survey.transactions.iter().map(|it| format!("left: {} is in doubt", it.id)));
    wrong.extend(survey.damages.iter().map(|it| format!("damage: {it:?}")));
    wrong.extend(survey.unreachable.iter().map(|it| format!("silent: {it}")));
    Ok(wrong)
}
