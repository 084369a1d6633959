//! Two instances sell what there is, once, and a writer whose lock is gone is refused by the books.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use lockkeeper_servers::{Postgres, PostgresOptions, Redis, RedisOptions};
use sqlx::postgres::PgPool;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

const STOCK: usize = 25;
const BUYERS: usize = 80;
const AT_A_TIME: usize = 20;

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
                ask(&address, "POST", "/buy/1").await.0
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
        tokio::join!(ask(&first.address, "POST", "/restock/1"), ask(&second.address, "POST", "/restock/1"));
    let mut left = [one, other];
    left.sort();
    assert_eq!(left, [(200, "10 left".to_owned()), (200, "20 left".to_owned())]);
    assert_eq!(ask(&first.address, "POST", "/restock/2").await.0, 409, "its fence is older");
    assert_eq!(ask(&first.address, "POST", "/restock/no-number").await.0, 400);
    let locks = lockkeeper::open(&redis.url()).await.unwrap().inspect;
    assert!(locks.list("").await.unwrap().is_empty(), "nothing is held when nobody is served");
}
