//! Hostile bytes: whatever others can write is read without a panic and without a hang, and is answered in words.
//!
//! Good inputs are kept here and spoiled by a seed. An input that once did harm is added to the good ones.

mod answers;

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use answers::{HANG, ask_everything, note_panics, unharmed};
use lockkeeper::spi::Clock;
use lockkeeper::{Config, Error, Key};
use lockkeeper_servers::{Redis, RedisOptions};
use lockkeeper_torture::{Dice, Trouble};

const SEED: u64 = 20_261_116;
/// How often each good input is spoiled.
const TIMES: usize = 600;
/// The password in all that is spoiled: it stands in no error, whatever is wrong beside it.
const SECRET: &str = "canary7";

const URLS: &[&str] = &[
    "redis://user:canary7@host:6379/3?prefix=x&timeout=500ms&replicas=majority&restart_guard=1m",
    "redis+sentinel://:canary7@a:26379,b,[::1]:26380/service/2?sentinel_user=u&sentinel_password=canary7",
    "rediss+cluster://a,b:7000,c?ca=/x/ca.pem&tls=on",
    "redlock://a,b,c?restart_guard=10s&timeout=1s",
    "postgres://user:canary7@host:5432,other:5433/data?table=t&timeout=2s&application_name=x",
    "mysql://user:canary7@host/data?timeout=1s&table=locks",
    "etcd://user:canary7@a:2379,b/prefix?timeout=3s",
    "zookeeper://a:2181,b:2182/path/to?timeout=1s&user=u&password=canary7",
    "sqlite:/var/lib/x%20y/locks.db?durability=normal&timeout=5s",
];

const SETTINGS: &str = "\
system = \"shop\"
url = \"redis://user:canary7@host\"
ttl = \"10s\"
wait = \"1m 30s\"
max_hold = \"2h\"

[locks.\"orders/{id}\"]
ttl = \"5s\"
permits = \"2/5\"
";

/// Parts that parsers stumble over.
const ODD: &[&str] = &[
    "%",
    "%0",
    "%00",
    "%ff",
    "://",
    "@",
    "@@",
    ":",
    "::",
    "/",
    "//",
    "?",
    "??",
    "&",
    "&&",
    "=",
    "==",
    ",",
    ",,",
    "[",
    "]",
    "[::1",
    "\0",
    "\r\n",
    "\t",
    "\u{202e}",
    "\u{1f512}",
    "é",
    "{",
    "}",
    "{}",
    "{{",
    "\"",
    "'",
    "\\",
    "#",
    "..",
    "-",
    "-1",
    "0",
    "65536",
    "99999999999999999999",
    "1e999",
    "NaN",
    "18446744073709551615s",
    "584542046090years",
];

/// The same with some damage: parts cut out, doubled, changed, or put in.
fn spoiled(good: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=dice.index(4) {
        let at = dice.index(bytes.len() + 1);
        let end = (at + dice.index(8)).min(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            3 if at < bytes.len() => bytes[at] = dice.draw().to_le_bytes()[0],
            4 => {
                let long = vec![b'9'; dice.index(3000)];
                bytes.splice(at..at, long);
            }
            _ => {
                let odd = ODD[dice.index(ODD.len())].bytes();
                bytes.splice(at..at, odd);
            }
        }
    }
    bytes
}

/// Try every good input as it is and spoiled; a panic is told with the input that made it.
fn fuzz(good: &[&str], mut read: impl FnMut(&str)) {
    let mut dice = Dice::seeded(SEED);
    let mut bad = String::new();
    for input in good {
        for round in 0..TIMES {
            let bytes =
                if round == 0 { input.as_bytes().to_vec() } else { spoiled(input.as_bytes(), &mut dice) };
            let text = String::from_utf8_lossy(&bytes);
            if catch_unwind(AssertUnwindSafe(|| read(&text))).is_err() {
                let _ = writeln!(bad, "{:.300}", format!("{text:?}"));
            }
        }
    }
    assert!(bad.is_empty(), "these did harm:\n{bad}");
}

/// What an error says must be fit for a log: in words, of a bounded length, without a password.
fn in_words<T>(answer: Result<T, Error>) {
    if let Err(error) = &answer {
        let words = format!("{error} {error:?}");
        assert!(!words.contains(SECRET), "it tells the password: {:.300}", format!("{words:?}"));
    }
    if let Err(bad) = answers::in_words(answer) {
        panic!("{bad}");
    }
}

#[test]
fn no_url_harms_the_one_who_reads_it() {
    fuzz(URLS, |url| {
        in_words(lockkeeper::redis::RedisOptions::parse(url));
        in_words(lockkeeper::redlock::RedlockOptions::<lockkeeper::redis::Redis>::parse(url));
        in_words(lockkeeper::sql::PostgresOptions::parse(url));
        in_words(lockkeeper::sql::MysqlOptions::parse(url));
        in_words(lockkeeper::etcd::EtcdOptions::parse(url));
        in_words(lockkeeper::zookeeper::ZooKeeperOptions::parse(url));
        in_words(lockkeeper::sqlite::SqliteOptions::parse(url));
    });
}

#[test]
fn no_settings_file_harms_the_one_who_reads_it() {
    fuzz(&[SETTINGS, "[locks]\n", ""], |text| match Config::from_toml(text, "lockkeeper.toml") {
        Err(error) => in_words::<()>(Err(error)),
        Ok(config) => {
            drop(config.url());
            let _ = (config.ttl(), config.wait(), config.max_hold(), config.share("orders/7"));
        }
    });
}

#[test]
fn no_name_harms_the_one_who_locks_it() {
    fuzz(&["orders/42", "a", "é\u{1f512}", "{x}", "../../etc"], |name| {
        in_words(Key::new(name));
        in_words(Key::from_bytes(name.as_bytes()));
    });
    let mut dice = Dice::seeded(SEED);
    for _ in 0..TIMES {
        in_words(Key::from_bytes(&spoiled(&[0xff, 0, 0x80, b'x'], &mut dice)));
    }
}

/// What somebody does to a key of ours.
fn damage(key: &str, value: &str, dice: &mut Dice) -> Vec<Vec<String>> {
    let set =
        |it: String| vec![vec!["SET".to_owned(), key.to_owned(), it, "PX".to_owned(), "60000".to_owned()]];
    let other = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
        vec![vec!["DEL".to_owned(), key.to_owned()], words]
    };
    match dice.below(7) {
        0 => set(value.chars().take(dice.index(value.len() + 1)).collect()),
        1 => set(format!("{value}{value}")),
        2 => set(String::from_utf8_lossy(&spoiled(value.as_bytes(), dice)).into_owned()),
        3 => set("x".repeat(100_000)),
        4 => other(&["LPUSH", key, "x", "", "y"]),
        5 => other(&["HSET", key, "x", "y", "", "H0"]),
        _ => other(&["ZADD", key, "1", "x", "9e99", "y"]),
    }
}

/// Every key that belongs to a lock which is held, shared and waited for is spoiled in turn. Whoever asks is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_into_keys_on_redis_everybody_is_answered() -> Result<(), Trouble> {
    note_panics();
    let redis = Redis::start(RedisOptions::default()).await?;
    let clock = Clock::boot();
    let mut dice = Dice::seeded(SEED);
    for round in 0..16 {
        let name = format!("spoiled/{round}");
        let (one, two) = (lockkeeper::connect(&redis.url()).await?, lockkeeper::open(&redis.url()).await?);
        let guard = one.read(&name).await?;
        let waiter = one.clone();
        let waits = name.clone();
        let waiting = tokio::spawn(async move {
            waiter.lock(&waits).wait_at_most(Duration::from_millis(300)).await.is_ok()
        });
        let other = two.locker.build();
        drop(other.lock(&name).wait_at_most(Duration::from_millis(20)).await);
        spoil_one(&redis, &mut dice).await?;
        let asked = Box::pin(ask_everything(&other, &*two.inspect, &name));
        match clock.within(clock.now().after(HANG), asked).await {
            None => return Err(format!("nobody answered in round {round}").into()),
            Some(answer) => answer.map_err(|it| format!("round {round}: {it}"))?,
        }
        drop(guard.release().await);
        // Whether it got the lock is not promised any more; that it ends without a panic is.
        waiting.await?;
        redis.command(&["FLUSHALL"]).await?;
    }
    Ok(unharmed()?)
}

/// Ten megabytes where a lock is, and in the record of one of its holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_in_the_place_of_a_record_on_redis_harm_nobody() -> Result<(), Trouble> {
    note_panics();
    let redis = Redis::start(RedisOptions::default()).await?;
    let (one, two) = (lockkeeper::connect(&redis.url()).await?, lockkeeper::open(&redis.url()).await?);
    let other = two.locker.build();
    for (name, script) in [
        ("huge/main", "redis.call('SET', KEYS[1], string.rep('x', 10000000))"),
        ("huge/like-ours", "redis.call('APPEND', KEYS[1], string.rep('x', 10000000))"),
        ("huge/record", "redis.call('SETRANGE', KEYS[1], 74, string.rep('\\255', 10000000))"),
    ] {
        let guard = one.lock(name).await?;
        let keys = redis.command(&["KEYS", "lk:{*"]).await?;
        let keys: Vec<String> = keys.items().iter().map(lockkeeper_servers::Value::text).collect();
        let [key] = &keys[..] else { return Err(format!("{keys:?}").into()) };
        redis.command(&["EVAL", script, "1", key]).await?;
        ask_everything(&other, &*two.inspect, name).await?;
        drop(guard.release().await);
        redis.command(&["FLUSHALL"]).await?;
    }
    Ok(unharmed()?)
}

async fn spoil_one(redis: &Redis, dice: &mut Dice) -> Result<(), Trouble> {
    let keys = redis.command(&["KEYS", "lk:{*"]).await?;
    let keys: Vec<String> = keys.items().iter().map(lockkeeper_servers::Value::text).collect();
    let Some(key) = keys.get(dice.index(keys.len())) else { return Err("there is no key to spoil".into()) };
    // Of another kind than a string: there is nothing to take over.
    let value = redis.command(&["GET", key]).await.map(|it| it.text()).unwrap_or_default();
    for words in damage(key, &value, dice) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        redis.command(&words).await?;
    }
    Ok(())
}
