//! A real server whose answers are spoiled on the way, after everybody was let in and has taken a lock: what is read past the
//! handshake. Whoever asks is answered in words, within a bound of time and memory, and nothing panics. Not MySQL and MariaDB, whose
//! driver panics in a task of its own at some lengths and words of a server's.

mod answers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use answers::{HANG, ask_everything, in_words, note_panics, unharmed};
use lockkeeper::spi::Clock;
use lockkeeper_servers::{
    Etcd, EtcdOptions, Postgres, PostgresOptions, Redis, RedisOptions, ZooKeeper, ZooKeeperOptions,
};
use lockkeeper_torture::{Dice, Trouble};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const SEED: u64 = 20_261_119;
/// How often all of it is tried on a store, each time with other lies.
const ROUNDS: u64 = 4;

/// What lies between a client and a server.
struct Liar {
    address: SocketAddr,
    /// While it is set answers are spoiled. Not ordered with anything: a few more or less are no matter.
    lies: Arc<AtomicBool>,
    /// How many answers were.
    told: Arc<AtomicU64>,
}

impl Liar {
    /// Before this port. Lives as long as the runtime.
    async fn before(port: u16, seed: u64) -> std::io::Result<Liar> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (lies, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut dice = Dice::seeded(seed);
        let (its_lies, its_told) = (Arc::clone(&lies), Arc::clone(&told));
        tokio::spawn(async move {
            let mut pairs = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (lies, told) = (Arc::clone(&its_lies), Arc::clone(&its_told));
                pairs.spawn(between(client, server, dice.fork(), lies, told));
            }
        });
        Ok(Liar { address, lies, told })
    }
}

/// Requests pass; answers pass as long as nobody lies.
async fn between(
    client: TcpStream,
    server: TcpStream,
    mut dice: Dice,
    lies: Arc<AtomicBool>,
    told: Arc<AtomicU64>,
) -> std::io::Result<()> {
    let ((mut ask, mut hear), (mut answers, mut asked)) = (client.into_split(), server.into_split());
    let forth = tokio::spawn(async move { tokio::io::copy(&mut ask, &mut asked).await });
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = answers.read(&mut bytes).await?;
        if read == 0 {
            forth.abort();
            return Ok(());
        }
        let mut answer = bytes[..read].to_vec();
        if lies.load(Ordering::Relaxed) && dice.below(3) != 0 {
            spoil(&mut answer, &mut dice);
            told.fetch_add(1, Ordering::Relaxed);
        }
        hear.write_all(&answer).await?;
    }
}

/// Numbers become absurd, lengths wrong, words cut short, said twice, or nonsense.
fn spoil(answer: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.index(3) {
        let at = dice.index(answer.len().max(1));
        match dice.below(6) {
            0 => answer.truncate(at),
            1 => answer.extend_from_within(..),
            2 => {
                let end = (at + 8).min(answer.len());
                answer[at.min(end)..end].fill(if dice.below(2) == 0 { 0xff } else { 0 });
            }
            3 => drop(answer.splice(at.min(answer.len())..at.min(answer.len()), *b"\x7f\xff\xff\xff")),
            _ if at < answer.len() => answer[at] = dice.draw().to_le_bytes()[0],
            _ => {}
        }
    }
}

/// Take a lock while nobody lies, and ask everything while everything is a lie. Answers how many lies were told.
async fn believe(liars: &[Liar], url: &str, round: u64) -> Result<u64, String> {
    let of = |error: lockkeeper::Error| format!("round {round}, before any lie: {error}");
    let store = lockkeeper::open(url).await.map_err(of)?;
    let locker = store.locker.build();
    let name = format!("spoiled/{round}");
    let guard = locker.lock("spoiled/held").await.map_err(of)?;
    let lie = |lies: bool| {
        for it in liars {
            it.lies.store(lies, Ordering::Relaxed);
        }
    };
    lie(true);
    // Whether a lock is hidden cannot be asked of whoever lies: that is for records, whose store is honest.
    ask_everything(&locker, &*store.inspect, &name).await.or_else(words_only)?;
    let wait = Duration::from_millis(200);
    drop(in_words(locker.lock(&name).ttl(Duration::from_secs(5)).wait_at_most(wait).await)?);
    drop(in_words(locker.lock("spoiled/held").wait_at_most(wait).await)?);
    in_words(guard.release().await)?;
    lie(false);
    in_words(locker.shutdown(Duration::from_secs(2)).await)?;
    Ok(liars.iter().map(|it| it.told.load(Ordering::Relaxed)).sum())
}

fn words_only(error: String) -> Result<(), String> {
    if error.ends_with("and shown as free") { Ok(()) } else { Err(error) }
}

/// `url` takes the addresses of those before the ports.
async fn survive(ports: &[u16], url: impl Fn(&str) -> String) -> Result<(), Trouble> {
    note_panics();
    let clock = Clock::boot();
    let mut lies = 0;
    for round in 0..ROUNDS {
        let mut liars = Vec::new();
        for port in ports {
            liars.push(Liar::before(*port, SEED + round * 100 + u64::from(*port % 7)).await?);
        }
        let hosts: Vec<String> = liars.iter().map(|it| it.address.to_string()).collect();
        let url = url(&hosts.join(","));
        let told = clock.within(clock.now().after(HANG), Box::pin(believe(&liars, &url, round))).await;
        lies += told.ok_or_else(|| format!("nobody answered in round {round}"))??;
    }
    if lies < ROUNDS * 3 {
        return Err(format!("only {lies} answers were lies: nothing was tried").into());
    }
    Ok(unharmed()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_back_from_redis_everybody_is_answered() -> Result<(), Trouble> {
    let server = Redis::start(RedisOptions::default()).await?;
    survive(&[server.port()], |at| format!("redis://{at}?timeout=300ms")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_back_from_the_nodes_of_redlock_everybody_is_answered() -> Result<(), Trouble> {
    let servers = Redis::masters(3).await?;
    let ports: Vec<u16> = servers.iter().map(|it| it.port()).collect();
    survive(&ports, |at| format!("redlock://{at}?timeout=300ms&restart_guard=off")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_back_from_postgresql_everybody_is_answered() -> Result<(), Trouble> {
    let server = Postgres::start(PostgresOptions::default()).await?;
    let all = server.url();
    survive(&[server.port()], |at| format!("{}?timeout=500ms", all.replace(&server.address(), at))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_back_from_etcd_everybody_is_answered() -> Result<(), Trouble> {
    let server = Etcd::start(EtcdOptions::default()).await?;
    survive(&[server.port()], |at| format!("etcd://{at}?timeout=500ms")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_back_from_zookeeper_everybody_is_answered() -> Result<(), Trouble> {
    let server = ZooKeeper::start(ZooKeeperOptions::default()).await?;
    survive(&[server.port()], |at| format!("zookeeper://{at}/spoiled?timeout=500ms&session=5s")).await
}
