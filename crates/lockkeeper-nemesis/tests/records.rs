//! Records that somebody else wrote into the lines of SQLite, PostgreSQL, MariaDB, MySQL, etcd and ZooKeeper: absurd numbers, foreign bytes, ten megabytes.
//! Whoever asks is answered in words.

mod answers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use answers::{HANG, ask_everything, note_panics, unharmed};
use lockkeeper::Key;
use lockkeeper::spi::Clock;
use lockkeeper_servers::{
    Etcd, EtcdOptions, Flavour, MariaDb, MariaDbOptions, Mysql, MysqlOptions, MysqlServer, Postgres,
    PostgresOptions, ZooKeeper, ZooKeeperOptions,
};
use lockkeeper_torture::{Dice, Trouble};
use zookeeper_client::{Acls, Client, CreateMode};

const SEED: u64 = 20_261_118;
const ROUNDS: usize = 12;

/// Columns of a claim, and what a hostile hand writes there.
const NUMBERS: &[&str] = &["seq", "counter", "expires", "since", "weight", "capacity", "pid"];
const ODD_NUMBERS: &[&str] = &["-1", "0", "9223372036854775807", "-9223372036854775808"];
const ODD_TEXTS: &[(&str, &str)] = &[
    ("host", "repeat('x', 10000000)"),
    ("host", r"E'\x1b]0;x\x07'"),
    ("owner", "repeat('<', 1000000)"),
    ("id", r"'\x'::bytea"),
    ("id", "decode(repeat('ff', 1000000), 'hex')"),
    ("held", "NOT held"),
];
/// What a hostile hand writes to etcd, in base64: nothing, `x`, bytes that are no text, half of a record twice, a record of a later
/// version.
const ODD_VALUES: &[&str] = &[
    "",
    "eA==",
    "//79AAE=",
    "eyJ2IjotMSwieCI6",
    "bG9ja2tlZXBlcj0xCmtleT1zcG9pbA==",
    "bG9ja2tlZXBlcj0xCmtleT1zcG9pbGVkL3gKd2VpZ2h0PTEK",
    "bG9ja2tlZXBlcj0yCmtleT1zcG9pbGVkL3gKd2VpZ2h0PTEKY2FwYWNpdHk9MQpob3N0PWgKcGlkPTEKc2hhcmQ9Nwo=",
];

/// What is written into a file of SQLite, beside odd numbers: ten megabytes, bytes that are no text, orders for a terminal, no id and a
/// long one, a counter at its end or gone back, and a file of a later version.
const ODD_CHANGES: &[&str] = &[
    "lockkeeper_claim SET host = replace(hex(zeroblob(5000000)), '0', 'x')",
    "lockkeeper_claim SET host = CAST(x'fffe0001' AS TEXT)",
    "lockkeeper_claim SET owner = CAST(x'ff' AS TEXT), note = char(27) || ']0;x'",
    "lockkeeper_claim SET id = x''",
    "lockkeeper_claim SET id = zeroblob(10000000)",
    "lockkeeper_store SET counter = 9223372036854775807",
    "lockkeeper_store SET counter = -9223372036854775808",
    "lockkeeper_store SET boot = CAST(x'ff' AS TEXT)",
    "lockkeeper_store SET version = 2",
];

/// A store in which somebody can write whatever it likes.
trait Hostile {
    /// Change a record, unless a rule of the store forbids it; whether it is another now.
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble>;
    /// Leave nothing behind.
    async fn clear(&self) -> Result<(), Trouble>;
}

/// A file that everybody may write.
struct File(PathBuf);

impl File {
    fn execute(&self, sql: &str) -> Result<usize, rusqlite::Error> {
        let connection = rusqlite::Connection::open(&self.0)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute(sql, [])
    }
}

impl Hostile for File {
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble> {
        let (column, value) =
            (NUMBERS[dice.index(NUMBERS.len())], ODD_NUMBERS[dice.index(ODD_NUMBERS.len())]);
        let number = format!("lockkeeper_claim SET {column} = {value}");
        let change = ODD_CHANGES.get(dice.index(ODD_CHANGES.len() * 2)).copied().unwrap_or(&number);
        Ok(self.execute(&format!("UPDATE {change}")).is_ok_and(|it| 0 < it))
    }

    async fn clear(&self) -> Result<(), Trouble> {
        self.execute("DELETE FROM lockkeeper_claim")?;
        let counter = "CAST(10000 * unixepoch('subsec') AS INTEGER)";
        self.execute(&format!("UPDATE lockkeeper_store SET version = 1, boot = '', counter = {counter}"))?;
        Ok(())
    }
}

impl Hostile for Postgres {
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble> {
        let (column, value) = match dice.below(2) {
            0 => (NUMBERS[dice.index(NUMBERS.len())], ODD_NUMBERS[dice.index(ODD_NUMBERS.len())]),
            _ => ODD_TEXTS[dice.index(ODD_TEXTS.len())],
        };
        let claims = format!("{}.lockkeeper_claim", schema(self).await?);
        let change = format!("WITH changed AS (UPDATE {claims} SET {column} = {value} RETURNING 1)");
        // A rule of the table may forbid it; so much the better.
        let changed = self.sql(&format!("{change} SELECT count(*) FROM changed")).await;
        Ok(changed.is_ok_and(|it| it.trim() != "0"))
    }

    async fn clear(&self) -> Result<(), Trouble> {
        let schema = schema(self).await?;
        self.sql(&format!("DELETE FROM {schema}.lockkeeper_claim; DELETE FROM {schema}.lockkeeper_lock"))
            .await?;
        Ok(())
    }
}

async fn schema(server: &Postgres) -> Result<String, Trouble> {
    let asked = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'lockkeeper_claim'";
    Ok(server.sql(asked).await?.trim().to_owned())
}

/// Both servers that speak MySQL's language.
impl<F: Flavour> Hostile for MysqlServer<F> {
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble> {
        let (column, value) =
            (NUMBERS[dice.index(NUMBERS.len())], ODD_NUMBERS[dice.index(ODD_NUMBERS.len())]);
        let odd = ["host = '\x1b]0;x'", "id = ''", "held = 2", "ttl = -9223372036854775808"];
        let change = match odd.get(dice.index(odd.len() * 3)) {
            Some(odd) => (*odd).to_owned(),
            None => format!("{column} = {value}"),
        };
        let changed = self.sql(&format!("UPDATE lockkeeper_claim SET {change}; SELECT ROW_COUNT()")).await;
        Ok(changed.is_ok_and(|it| it.trim() != "0"))
    }

    async fn clear(&self) -> Result<(), Trouble> {
        self.sql("DELETE FROM lockkeeper_claim; DELETE FROM lockkeeper_lock").await?;
        Ok(())
    }
}

impl Hostile for Etcd {
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble> {
        let keys = self.keys("l").await?;
        let key = keys.get(dice.index(keys.len())).ok_or("there is no key to spoil")?;
        let long = "QUFB".repeat(250_000);
        let value = ODD_VALUES.get(dice.index(ODD_VALUES.len() + 1)).copied().unwrap_or(&long);
        self.post("/v3/kv/put", &format!(r#"{{"key": "{key}", "value": "{value}"}}"#)).await?;
        Ok(true)
    }

    async fn clear(&self) -> Result<(), Trouble> {
        self.post("/v3/kv/deleterange", r#"{"key": "AA==", "range_end": "AA=="}"#).await?;
        Ok(())
    }
}

/// What a hostile hand writes into nodes of ZooKeeper, beside 900 kB: nothing, bytes that are no text, half of a record, a record
/// without its end, one of a later version.
const ODD_DATA: &[&[u8]] = &[
    b"",
    b"x",
    &[0xff, 0xfe, 0, 1],
    b"lockkeeper=1\nkey=spoil",
    b"lockkeeper=1\nkey=spoiled/x\nweight=1\n",
    b"lockkeeper=2\nkey=spoiled/x\nweight=1\ncapacity=1\nhost=h\npid=1\nshard=7\n",
    b"session=-1\nsession=99999999999999999999\n",
];
/// Names of nodes in a line that nobody of us would give.
const ODD_NAMES: &[&str] = &[
    "x",
    "-",
    "---",
    "a-b-c-d",
    "\u{1f512}",
    "00000000000000000000000000000000-1-1-0000000000",
    "ffffffffffffffffffffffffffffffff-0-0--2147483648",
    "ffffffffffffffffffffffffffffffff-4294967295-4294967295-2147483647",
    "ffffffffffffffffffffffffffffffff-99999999999-1-0000000001",
    "00000000000000000000000000000000-1-1-0000000000.reader",
];
/// Where our lines are.
const LINES: &str = "/lockkeeper";

impl Hostile for ZooKeeper {
    async fn spoil(&self, dice: &mut Dice) -> Result<bool, Trouble> {
        let client = Client::connect(&self.address()).await?;
        let long = vec![b'A'; 900_000];
        let data = ODD_DATA.get(dice.index(ODD_DATA.len() + 1)).copied().unwrap_or(&long);
        let mut below = client.list_children(LINES).await?;
        below.sort();
        // What fences count from lies beside the lines.
        let folder = format!("{LINES}/{}", below[dice.index(below.len())]);
        // A line of the round before may go meanwhile.
        let Ok(mut nodes) = client.list_children(&folder).await else { return Ok(false) };
        nodes.sort();
        let spoiled = match dice.below(2) {
            0 if !folder.contains("/.") => {
                let name = format!("{folder}/{}", ODD_NAMES[dice.index(ODD_NAMES.len())]);
                let made = client.create(&name, data, &CreateMode::Persistent.with_acls(Acls::anyone_all()));
                made.await.map(drop)
            }
            _ => {
                let node = nodes.get(dice.index(nodes.len().max(1)));
                let path = node.map_or_else(|| folder.clone(), |it| format!("{folder}/{it}"));
                client.set_data(&path, data, None).await.map(drop)
            }
        };
        match spoiled {
            Err(zookeeper_client::Error::NoNode) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    async fn clear(&self) -> Result<(), Trouble> {
        let client = Client::connect(&self.address()).await?;
        for folder in client.list_children(LINES).await? {
            // Whoever is leaving may be quicker.
            for node in client.list_children(&format!("{LINES}/{folder}")).await.unwrap_or_default() {
                drop(client.delete(&format!("{LINES}/{folder}/{node}"), None).await);
            }
            drop(client.delete(&format!("{LINES}/{folder}"), None).await);
        }
        Ok(())
    }
}

/// A lock is held, shared and waited for; then its records are not what they were.
async fn survive(server: &impl Hostile, url: &str) -> Result<(), Trouble> {
    note_panics();
    let (clock, mut dice, mut changed) = (Clock::boot(), Dice::seeded(SEED), 0);
    for round in 0..ROUNDS {
        let name = format!("spoiled/{round}");
        let (one, two) = (lockkeeper::connect(url).await?, lockkeeper::open(url).await?);
        let guard = one.read(&name).await?;
        let (waiter, waits) = (one.clone(), name.clone());
        let waiting = tokio::spawn(async move {
            waiter.lock(&waits).wait_at_most(Duration::from_millis(300)).await.is_ok()
        });
        let other = two.locker.build();
        drop(other.lock(&name).wait_at_most(Duration::from_millis(20)).await);
        changed += usize::from(server.spoil(&mut dice).await?);
        let asked = Box::pin(ask_everything(&other, &*two.inspect, &name));
        match clock.within(clock.now().after(HANG), asked).await {
            None => return Err(format!("nobody answered in round {round}").into()),
            Some(answer) => answer?,
        }
        drop(guard.release().await);
        // Whether it got the lock is not promised any more; that it ends without a panic is.
        waiting.await?;
        server.clear().await?;
    }
    if changed < ROUNDS / 2 {
        return Err(format!("only {changed} of {ROUNDS} records are not what they were").into());
    }
    Ok(unharmed()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_rows_of_sqlite_everybody_is_answered() -> Result<(), Trouble> {
    let folder = tempfile::tempdir()?;
    let file = File(folder.path().join("locks.db"));
    survive(&file, &url_of(&file.0)).await
}

fn url_of(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

/// Not by rows: the bytes of the file are not what they were, or it ends early, while a lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_becomes_of_the_bytes_of_an_sqlite_file_everybody_is_answered() -> Result<(), Trouble> {
    note_panics();
    let (clock, mut dice) = (Clock::boot(), Dice::seeded(SEED));
    for round in 0..ROUNDS {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("locks.db");
        let (one, two) =
            (lockkeeper::connect(&url_of(&file)).await?, lockkeeper::open(&url_of(&file)).await?);
        let guard = one.lock("spoiled").await?;
        let spoiled = if dice.below(2) == 0 { file.clone() } else { folder.path().join("locks.db-wal") };
        let mut bytes = std::fs::read(&spoiled)?;
        let (at, length) = (dice.index(bytes.len()), bytes.len());
        match dice.below(3) {
            0 => bytes.truncate(at),
            1 => bytes[at..length.min(at + 5000)].fill(0xff),
            _ => bytes.extend(vec![b'A'; 10_000_000]),
        }
        std::fs::write(&spoiled, bytes)?;
        let other = two.locker.build();
        let asked = Box::pin(ask_everything(&other, &*two.inspect, "spoiled"));
        match clock.within(clock.now().after(HANG), asked).await {
            None => return Err(format!("nobody answered in round {round}").into()),
            Some(answer) => answer?,
        }
        drop(guard.release().await);
    }
    Ok(unharmed()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_rows_of_postgresql_everybody_is_answered() -> Result<(), Trouble> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    survive(&server, &server.url()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_rows_of_mariadb_everybody_is_answered() -> Result<(), Trouble> {
    let server = MariaDb::start(MariaDbOptions::default()).await?;
    survive(&server, &server.url()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_rows_of_mysql_everybody_is_answered() -> Result<(), Trouble> {
    let server = Mysql::start(MysqlOptions::default()).await?;
    survive(&server, &server.url()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_nodes_of_zookeeper_everybody_is_answered() -> Result<(), Trouble> {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await?;
    survive(&server, &format!("{}?session=5s", server.url())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_keys_of_etcd_everybody_is_answered() -> Result<(), Trouble> {
    let server = Etcd::start(EtcdOptions::default()).await?;
    survive(&server, &format!("etcd://{}", server.address())).await
}

/// A lock is held and its name is not what it was: it is neither free nor nameless. `holders` of it are known all the same.
async fn nameless(
    url: &str,
    holders: usize,
    spoil: impl AsyncFn(&str) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let (one, two) = (lockkeeper::connect(url).await?, lockkeeper::open(url).await?);
    let other = two.locker.build();
    let guard = one.lock("spoiled/name").await?;
    let asked = Key::new("spoiled/name")?;
    for name in ["", "an\u{1b}[31mother"] {
        spoil(name).await?;
        if other.try_lock("spoiled/name").await?.is_some() {
            return Err("a lock that is held was given".into());
        }
        let info = two.inspect.show(&asked).await?.ok_or("a lock that is held was shown as free")?;
        if info.holders.len() != holders || info.foreign.len() != 1 {
            return Err(format!("a name that is not ours was not told: {info:?}").into());
        }
        let all = two.inspect.list("").await?;
        if all.len() != 1 || all[0].holders.len() != holders || all[0].foreign.len() != 1 {
            return Err(format!("a lock with a foreign name was left out of the list: {all:?}").into());
        }
    }
    guard.release().await?;
    drop(one.lock("spoiled/name").await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_postgresql_with_a_foreign_name_is_not_shown_as_free() -> Result<(), Trouble> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    nameless(&server.url(), 1, async |name| {
        let schema = schema(&server).await?;
        server.sql(&format!("UPDATE {schema}.lockkeeper_lock SET name = '{name}'")).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_mariadb_with_a_foreign_name_is_not_shown_as_free() -> Result<(), Trouble> {
    let server = MariaDb::start(MariaDbOptions::default()).await?;
    nameless(&server.url(), 1, async |name| {
        server.sql(&format!("UPDATE lockkeeper_lock SET name = '{name}'")).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_mysql_with_a_foreign_name_is_not_shown_as_free() -> Result<(), Trouble> {
    let server = Mysql::start(MysqlOptions::default()).await?;
    nameless(&server.url(), 1, async |name| {
        server.sql(&format!("UPDATE lockkeeper_lock SET name = '{name}'")).await?;
        Ok(())
    })
    .await
}

/// There the name is the folder's, which nobody can change; but who holds is said by the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_zookeeper_with_a_foreign_record_is_not_shown_as_free() -> Result<(), Trouble> {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await?;
    nameless(&format!("{}?session=5s", server.url()), 0, async |name| {
        let client = Client::connect(&server.address()).await?;
        let folder = client.list_children(LINES).await?.into_iter().find(|it| !it.starts_with('.'));
        let folder = format!("{LINES}/{}", folder.ok_or("there is no line")?);
        for node in client.list_children(&folder).await? {
            client.set_data(&format!("{folder}/{node}"), name.as_bytes(), None).await?;
        }
        Ok(())
    })
    .await
}
