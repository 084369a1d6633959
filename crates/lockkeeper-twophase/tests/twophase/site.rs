//! A bank with accounts in PostgreSQL and in MariaDB, and what must be true of it whatever died.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Locker};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{
    Flavour, MariaDbOptions, MysqlServer, MysqlServerOptions, Postgres, PostgresOptions, flavour,
};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};
use lockkeeper_twophase::mysql_async::{Conn, Opts, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::{self, Client, NoTls, SimpleQueryMessage};
use lockkeeper_twophase::{Committed, Office, Participant, Result, Step, TwoPhase, Verdict};
use tempfile::TempDir;

use crate::audit;

pub(crate) const HANG: Duration = Duration::from_secs(120);
/// Short, because tests wait until the dead lose their seats.
pub(crate) const TTL: Duration = Duration::from_secs(2);

const TABLES: &str =
    "CREATE TABLE account (id int PRIMARY KEY, amount int); CREATE TABLE move (id varchar(64) PRIMARY KEY)";

/// Where a bank has its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// In an SQLite file.
    #[default]
    File,
    /// In a database of its own, on the server of the orders.
    BesideOrders,
    /// In a database of its own, on the server of the stock.
    BesideStock,
    /// In the database of the orders.
    WithOrders,
    /// In the database of the stock.
    WithStock,
}

/// Both servers, and a folder for logs.
pub(crate) struct Site<F: Flavour = flavour::MariaDb> {
    pub(crate) postgres: Postgres,
    pub(crate) mysql: MysqlServer<F>,
    pub(crate) folder: TempDir,
    accounts: AtomicU32,
}

impl Site {
    pub(crate) async fn start() -> Self {
        Site::of(MariaDbOptions::default()).await
    }
}

impl<F: Flavour> Site<F> {
    pub(crate) async fn of(options: MysqlServerOptions<F>) -> Self {
        Site::with(PostgresOptions::default().set("max_prepared_transactions", "200"), options).await
    }

    pub(crate) async fn with(postgres: PostgresOptions, options: MysqlServerOptions<F>) -> Self {
        let (postgres, mysql) = tokio::join!(Postgres::start(postgres), MysqlServer::start(options));
        let (postgres, mysql) = (postgres.unwrap(), mysql.unwrap());
        postgres.sql(TABLES).await.unwrap();
        mysql.sql(TABLES).await.unwrap();
        Site { postgres, mysql, folder: TempDir::new().unwrap(), accounts: AtomicU32::new(0) }
    }

    /// A pair of accounts with 100 in each, and a log of its own.
    pub(crate) async fn bank(&self) -> Bank {
        self.bank_with(Place::File).await
    }

    /// As [`Site::bank`], with the log there. Databases that hold a log are the bank's own.
    pub(crate) async fn bank_with(&self, place: Place) -> Bank {
        let account = self.accounts.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path().join(account.to_string());
        std::fs::create_dir(&folder).unwrap();
        let log = format!("sqlite:{}", folder.join("2pc.db").display());
        let (own, stock) = (format!("bank{account}"), format!("mysql://lockkeeper@{}", self.mysql.address()));
        let (postgres, mysql) = (self.postgres.url(), self.mysql.url());
        let mut bank = Bank { account, folder, postgres, mysql, log, locks: None };
        let there = format!("postgres://postgres@{}/{own}", self.postgres.address());
        match place {
            Place::File => {}
            Place::BesideOrders | Place::WithOrders => {
                self.postgres.sql(&format!("CREATE DATABASE {own}")).await.unwrap();
                bank.log = there;
            }
            Place::BesideStock | Place::WithStock => {
                self.mysql.sql(&format!("CREATE DATABASE {own}")).await.unwrap();
                bank.log = format!("{stock}/{own}");
            }
        }
        if place == Place::WithOrders {
            bank.postgres.clone_from(&bank.log);
            bank.here(TABLES).await;
        }
        if place == Place::WithStock {
            bank.mysql.clone_from(&bank.log);
            bank.there(TABLES).await;
        }
        let insert = format!("INSERT INTO account VALUES ({account}, 100)");
        bank.here(&insert).await;
        bank.there(&insert).await;
        // Opening the log makes its tables.
        drop(bank.setup().await);
        audit::watch(self, &bank).await;
        bank
    }

    /// What both servers say: the two amounts, and the moves that each has seen.
    pub(crate) async fn state(&self, bank: &Bank) -> (i64, i64, String, String) {
        let amount = format!("SELECT amount FROM account WHERE id = {}", bank.account);
        let moves = format!("SELECT id FROM move WHERE id LIKE '{}-%' ORDER BY id", bank.account);
        let here = bank.here(&amount).await.trim().parse().unwrap();
        let there = bank.there(&amount).await.trim().parse().unwrap();
        (here, there, bank.here(&moves).await, bank.there(&moves).await)
    }

    /// Everything that must hold when all is finished. Tells whether the money was moved.
    pub(crate) async fn check(&self, bank: &Bank, context: &str) -> bool {
        let (here, there, moves_here, moves_there) = self.state(bank).await;
        audit::check(self, bank, context).await;
        assert_eq!(here + there, 200, "{context}: money is conserved");
        assert_eq!(moves_here, moves_there, "{context}: a move is here if and only if it is there");
        assert_eq!(here == 100, moves_here.is_empty(), "{context}: amount and move agree");
        let prepared = audit::prepared(self, bank).await;
        assert!(prepared.is_empty(), "{context}: the servers have prepared {prepared:?}");
        let survey = bank.setup().await.survey().await.unwrap();
        assert_eq!(
            survey.transactions,
            [],
            "{context}: nothing is prepared, and the log has nothing to finish"
        );
        assert_eq!(survey.damages, [], "{context}: no damage");
        assert_eq!(survey.unreachable, [], "{context}");
        here != 100
    }
}

/// Two accounts, a log and a lock store.
#[derive(Clone, Debug)]
pub(crate) struct Bank {
    pub(crate) account: u32,
    pub(crate) folder: PathBuf,
    pub(crate) postgres: String,
    pub(crate) mysql: String,
    pub(crate) log: String,
    /// The lock store, if it is not a file in the folder.
    pub(crate) locks: Option<String>,
}

pub(crate) async fn locker(folder: &Path) -> Locker {
    let backend = Sqlite::with(SqliteOptions::new(folder.join("locks.db"))).await.unwrap();
    Locker::builder(backend).ttl(TTL).build()
}

impl Bank {
    /// The same bank, through these proxies.
    pub(crate) fn behind<F: Flavour>(&self, site: &Site<F>, orders: &Proxy, stock: &Proxy) -> Self {
        let through = |url: &str| {
            let url = url.replace(&site.postgres.address(), &orders.address());
            url.replace(&site.mysql.address(), &stock.address())
        };
        Bank {
            postgres: through(&self.postgres),
            mysql: through(&self.mysql),
            log: through(&self.log),
            ..self.clone()
        }
    }

    /// Statements at PostgreSQL; the first column of all rows.
    pub(crate) async fn here(&self, sql: &str) -> String {
        let (client, connection) = tokio_postgres::connect(&self.postgres, NoTls).await.unwrap();
        tokio::spawn(connection);
        let answer = client.simple_query(sql).await.unwrap();
        let cell = |it: &SimpleQueryMessage| match it {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        answer.iter().filter_map(cell).collect::<Vec<_>>().join("\n")
    }

    /// Statements at MariaDB or MySQL; the first column of the rows of the first.
    pub(crate) async fn there(&self, sql: &str) -> String {
        let mut conn = Conn::new(Opts::from_url(&self.mysql).unwrap()).await.unwrap();
        let rows: Vec<String> = conn.query(sql).await.unwrap();
        conn.disconnect().await.unwrap();
        rows.join("\n")
    }

    /// An office with the log of this bank, not started.
    pub(crate) async fn setup(&self) -> TwoPhase {
        let locker = match &self.locks {
            Some(url) => {
                Locker::builder(lockkeeper_sql::Postgres::connect(url).await.unwrap()).ttl(TTL).build()
            }
            None => locker(&self.folder).await,
        };
        self.setup_with(&locker).await
    }

    /// The same with another lock store, which knows nothing of the seats: the log alone keeps others out.
    pub(crate) async fn setup_with(&self, locker: &Locker) -> TwoPhase {
        TwoPhase::open(&self.log, locker)
            .await
            .unwrap()
            .participant("orders", Participant::postgres(&self.postgres).unwrap())
            .participant("stock", Participant::mysql(&self.mysql).unwrap())
            .sweep_every(Duration::from_millis(100))
    }

    pub(crate) async fn office(&self) -> Office {
        self.setup().await.start().await.unwrap()
    }

    /// Move ten from PostgreSQL to MariaDB.
    pub(crate) async fn transfer(&self, office: &Office, tag: &str) -> Result<Committed> {
        let (take, give) = self.statements(tag);
        let work = office.transaction().note(format!("move {tag}")).within(HANG);
        let work = work.on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        });
        let work = work.on("stock", async move |db: &mut Conn| {
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        work.commit().await
    }

    /// Take ten from PostgreSQL, and give them to nobody.
    pub(crate) async fn take(&self, office: &Office, tag: &str) -> Result<Committed> {
        let (take, _) = self.statements(tag);
        let work = office.transaction().within(HANG).on("orders", async move |db: &Client| {
            db.batch_execute(&take).await?;
            Ok(())
        });
        work.commit().await
    }

    /// Give ten in MariaDB that nobody had.
    pub(crate) async fn give(&self, office: &Office, tag: &str) -> Result<Committed> {
        let (_, give) = self.statements(tag);
        let work = office.transaction().within(HANG).on("stock", async move |db: &mut Conn| {
            for it in give {
                db.query_drop(it).await?;
            }
            Ok(())
        });
        work.commit().await
    }

    pub(crate) fn statements(&self, tag: &str) -> (String, [String; 2]) {
        let account = self.account;
        let insert = format!("INSERT INTO move VALUES ('{account}-{tag}')");
        let take = format!("UPDATE account SET amount = amount - 10 WHERE id = {account}; {insert}");
        let give = format!("UPDATE account SET amount = amount + 10 WHERE id = {account}");
        (take, [give, insert])
    }

    /// Recover until nothing is left and no seat is held by the dead.
    pub(crate) async fn recover(&self) {
        self.recover_with(|_| {}).await;
    }

    pub(crate) async fn recover_with(&self, watch: impl Fn(&Step<'_>) + Clone + Send + Sync + 'static) {
        let recovered = async {
            loop {
                let (left, busy) = self.setup().await.observer(watch.clone()).recover().await.unwrap();
                if left.is_empty() && busy.is_empty() {
                    return;
                }
                Clock::boot().sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(HANG, recovered).await.expect("everything can be recovered");
    }

    /// What the log says of a transaction, asked without a seat.
    pub(crate) async fn verdict(&self, id: &str) -> Verdict {
        self.setup().await.verdict(&id.parse().unwrap()).await.unwrap()
    }
}

/// Wait until the office's own sweep has finished everything.
pub(crate) async fn until_nothing_is_left(office: &Office) {
    let waited = async {
        while !office.left().is_empty() {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, waited).await.expect("the sweep finishes everything");
}
