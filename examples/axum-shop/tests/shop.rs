//! Two instances sell what there is, once, a writer whose lock is gone is refused by the books, and who bought is told so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_servers::{Postgres, PostgresOptions, Redis, RedisOptions};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const STOCK: usize = 25;
const BUYERS: usize = 80;
const AT_A_TIME: usize = 20;
/// Nothing here takes nearly as long.
const HANG: Duration = Duration::from_mins(1);

/// An instance of the shop, ended with the value.
struct Instance {
    child: Child,
    address: String,
}

impl Instance {
    fn start(redis: &str, postgres: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_axum-shop"))
            .env("LOCKKEEPER_URL", redis)
            .env("DATABASE_URL", postgres)
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Instance { address: listening(&mut child), child }
    }
}

fn listening(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim().strip_prefix("listening on ").unwrap().to_owned()
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request: the status, and the body.
async fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim().to_owned())
}

/// The same as often as it takes: who waited too long is told so, and has bought nothing.
async fn served(address: &str, path: &str) -> (u16, String) {
    loop {
        let answer = ask(address, "POST", path).await;
        if answer.0 != 503 {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_sell_each_piece_once_and_a_late_writer_is_refused() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    // Both at once: neither may fail because the other makes the tables.
    let (first, second) = tokio::join!(
        tokio::task::spawn_blocking({
            let (redis, postgres) = (redis.url(), postgres.url());
            move || Instance::start(&redis, &postgres)
        }),
        tokio::task::spawn_blocking({
            let (redis, postgres) = (redis.url(), postgres.url());
            move || Instance::start(&redis, &postgres)
        }),
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    let books = PgPool::connect(&postgres.url()).await.unwrap();
    let stock = i64::try_from(STOCK).unwrap();
    for (id, amount, fence) in [(1, stock, 0), (2, 7, i64::MAX)] {
        let insert = sqlx::query("INSERT INTO stock (id, amount, fence) VALUES ($1, $2, $3)");
        insert.bind(id).bind(amount).bind(fence).execute(&books).await.unwrap();
    }

    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|buyer| {
            let (places, shop) = (places.clone(), if buyer % 2 == 0 { &first } else { &second });
            let address = shop.address.clone();
            tokio::spawn(async move {
                let _place = places.acquire().await.unwrap();
                served(&address, "/buy/1").await.0
            })
        })
        .collect();
    let mut answers = Vec::new();
    for buyer in buyers {
        answers.push(buyer.await.unwrap());
    }
    let count = |code| answers.iter().filter(|it| **it == code).count();
    assert_eq!((count(200), count(410)), (STOCK, BUYERS - STOCK), "{answers:?}");
    assert_eq!(ask(&first.address, "GET", "/stock/1").await, (200, format!("0 left, {STOCK} sold")));

    // Somebody with a newer lock was at the second product: what comes with an older fence changes nothing.
    let (code, words) = ask(&second.address, "POST", "/buy/2").await;
    assert_eq!((code, words.contains("nothing was changed")), (409, true), "{words}");
    assert_eq!(ask(&first.address, "GET", "/stock/2").await, (200, "7 left, 0 sold".to_owned()));
    assert_eq!(ask(&first.address, "POST", "/buy/3").await.0, 404);

    // Under the middleware's lock, which is the same lock: at a time one instance puts pieces there.
    let (one, other) =
        tokio::join!(served(&first.address, "/restock/1"), served(&second.address, "/restock/1"));
    let mut left = [one, other];
    left.sort();
    assert_eq!(left, [(200, "10 left".to_owned()), (200, "20 left".to_owned())]);
    assert_eq!(ask(&first.address, "POST", "/restock/2").await.0, 409, "its fence is older");
    assert_eq!(ask(&first.address, "POST", "/restock/no-number").await.0, 400);
    let locks = lockkeeper::open(&redis.url()).await.unwrap().inspect;
    let nothing = async { while !locks.list("").await.unwrap().is_empty() {} };
    tokio::time::timeout(HANG, nothing).await.expect("nothing is held when nobody is served");
}

/// Every change of the third product waits at its commit, until nobody holds this advisory lock any more.
const GATE: &str = "
    CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.id = 3) EXECUTE FUNCTION gate();
    INSERT INTO stock (id, amount) VALUES (3, 7)";

/// Until somebody waits in the database for the advisory lock, or for somebody else's transaction.
async fn waits(books: &PgPool, what_for: &str) {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = $1";
    let seen = async {
        while sqlx::query_scalar::<_, i64>(query).bind(what_for).fetch_one(books).await.unwrap() == 0 {}
    };
    tokio::time::timeout(HANG, seen).await.unwrap();
}

/// Ask in a task of its own.
fn asking(address: &str, path: &'static str) -> JoinHandle<(u16, String)> {
    let address = address.to_owned();
    tokio::spawn(async move { served(&address, path).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_bought_is_told_so_whatever_became_of_the_lock_meanwhile() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    let (shop, books) =
        (Instance::start(&redis.url(), &postgres.url()), PgPool::connect(&postgres.url()).await.unwrap());
    sqlx::raw_sql(GATE).execute(&books).await.unwrap();
    let mut gate = PgConnection::connect(&postgres.url()).await.unwrap();
    let locks = lockkeeper::open(&redis.url()).await.unwrap().inspect;

    for (path, answers) in [("/buy/3", ["6 left", "5 left"]), ("/restock/3", ["15 left", "25 left"])] {
        sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut gate).await.unwrap();
        let first = asking(&shop.address, path);
        waits(&books, "advisory").await;
        // The lock is taken away in the middle of the commit. Who comes next has it, and waits for the row: the first knows.
        let second = asking(&shop.address, path);
        assert_eq!(locks.break_lock(&"product/3".parse().unwrap()).await.unwrap().len(), 1);
        waits(&books, "transactionid").await;
        sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut gate).await.unwrap();
        let told = [first.await.unwrap(), second.await.unwrap()];
        assert_eq!(told, answers.map(|it| (200, it.to_owned())), "what was written is told");
    }

    sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut gate).await.unwrap();
    let last = tokio::spawn({
        let address = shop.address.clone();
        async move { ask(&address, "POST", "/buy/3").await }
    });
    waits(&books, "advisory").await;
    // What holds the locks is gone when the commit is through: nobody confirms that the lock was given back.
    redis.kill().unwrap();
    sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut gate).await.unwrap();
    assert_eq!(last.await.unwrap(), (200, "24 left".to_owned()), "the piece is sold");
}
