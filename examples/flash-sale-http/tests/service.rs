//! Two instances as processes, a crowd of buyers, and the books afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lockkeeper_servers::{MariaDb, MariaDbOptions, Redis, RedisOptions};

const PROGRAM: &str = env!("CARGO_BIN_EXE_flash-sale-http");

/// Do something that must not take for ever.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(120)).expect("it hangs")
}

/// A running instance, killed with the value.
struct Instance(Child, String);

impl Instance {
    fn start(url: &str, db: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.env("LISTEN", "127.0.0.1:0").env("STOCK", "70");
        command.env("LOCKKEEPER_URL", url).env("LOCKKEEPER_DB", db).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let line = within(move || {
            let mut line = String::new();
            said.read_line(&mut line).map(|_| line).unwrap()
        });
        let address = line.trim().strip_prefix("listening on ").expect("it says where").to_owned();
        Instance(child, address)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(buyers: u32, instances: &[Instance]) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(["load", &buyers.to_string()]).args(instances.iter().map(|it| &it.1));
    let end = within(move || command.output().unwrap());
    assert!(end.status.success(), "{end:?}");
    String::from_utf8(end.stdout).unwrap()
}

fn two_instances_sell_what_there_is(url: &str, db: &str) {
    let instances = [Instance::start(url, db), Instance::start(url, db)];
    assert_eq!(
        load(500, &instances),
        "sold 70, sold out 430, failed 0\nbegun 70, left 0, orders 70: right\n"
    );
    // Those who come later meet the same books, also from an instance that was not there.
    let late = [Instance::start(url, db)];
    assert_eq!(load(5, &late), "sold 0, sold out 5, failed 0\nbegun 70, left 0, orders 70: right\n");
}

#[test]
fn without_any_server() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name| format!("sqlite:{}", folder.path().join(name).display());
    two_instances_sell_what_there_is(&url("locks.db"), &url("books.db"));
}

#[tokio::test]
async fn on_redis_and_mariadb() {
    let locks = Redis::start(RedisOptions::default()).await.unwrap();
    let books = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    let (url, db) = (locks.url(), books.url());
    tokio::task::spawn_blocking(move || two_instances_sell_what_there_is(&url, &db)).await.unwrap();
}
