//! Locks over HTTP beside the library, many streams, and the console with many locks. The server is another process of this
//! program with the observers of the command, but built as the benchmarks are (`opt-level = 3`, fat LTO). The command from a
//! clone is built for its size, and serves less.
//!
//! `scale=N` on the command line does an N-th of the guards that many clients want.

mod client;
mod killed;
mod server;

use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper_core::{Clock, Key};
use lockkeeper_servers::{Redis, RedisOptions};

use self::client::Client;
pub(crate) use self::killed::{HOLDER, hold};
use self::server::Serving;
pub(crate) use self::server::{SERVER, work};
use crate::measure::{beside_requests, median, per, rate};
use crate::redis::tally;
use crate::report::{Bound, Row, told};
use crate::rooms::scale;
use crate::{Answer, Outcome};

const CLIENTS: u64 = 64;
const STREAMS: u64 = 1000;
const LOCKS: u64 = 10_000;
const BROWSERS: usize = 32;
/// What the figures are of.
const BUILT: &str = "the server counts as `lockkeeper serve` does, but is built as the benchmarks are, with fat LTO and \
     for speed; the command from a clone is built for size and serves less";

pub(crate) fn run() -> Outcome {
    // One thread for all clients: their threads would only wake each other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let redis = Redis::start(RedisOptions::default()).await?;
        let mut rows = told(alone(&redis).await?);
        rows.extend(told(killed::rows(&redis).await?));
        rows.extend(told(many_clients(&redis).await?));
        rows.extend(told(vec![streams().await?]));
        rows.extend(told(console(&redis).await?));
        Ok(rows)
    })
}

/// One client and a free lock.
async fn alone(redis: &Redis) -> Outcome {
    let serving = Serving::start(&redis.url())?;
    let library = lockkeeper::connect(&redis.url()).await?;
    let ours = async || -> Answer<()> { Ok(library.lock("library").await?.release().await?) };
    let (seen, key) = (lockkeeper::open(&redis.url()).await?.inspect, Key::new("stream")?);
    // The lock is given back after the end of the connection: only whoever sees it free knows how long that takes.
    let until_free = async || -> Answer<()> {
        serving.hold_once("stream").await?;
        while seen.show(&key).await?.is_some() {}
        Ok(())
    };
    let (stream, beside) = beside_requests(until_free, ours).await?;
    let mut kept = Client::connect(&serving).await?;
    let (token, also_beside) = beside_requests(async || kept.by_token("token").await, ours).await?;
    Ok(vec![
        Row::of_times(
            "HTTP over a unix socket: connect, lock, close, until another sees it free, beside the library on Redis",
            (stream, beside),
            2.5,
        ),
        Row::of_times(
            "HTTP over a unix socket, kept open: take and give back by token, beside the library on Redis",
            (token, also_beside),
            2.5,
        ),
    ])
}

/// Many clients that want one lock: the server hands it on by itself.
async fn many_clients(redis: &Redis) -> Outcome {
    let each = scale(500);
    let serving = Serving::start(&redis.url())?;
    let (mut by_token, mut in_one_go, mut by_stream) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        by_token.push(
            crowd(&serving, each, move |mut it: Client| async move {
                for _ in 0..each {
                    it.by_token("wanted").await?;
                }
                Ok(())
            })
            .await?,
        );
        in_one_go.push(
            crowd(&serving, each, move |mut it: Client| async move {
                it.by_token_in_one_go("wanted", each).await
            })
            .await?,
        );
        let fewer = each.div_ceil(5);
        let begun = Clock::boot().now();
        try_join_all((0..CLIENTS).map(|_| {
            let serving = serving.clone();
            spawned(async move {
                for _ in 0..fewer {
                    serving.hold_once("wanted").await?;
                }
                Ok(())
            })
        }))
        .await?;
        by_stream.push(rate(CLIENTS * fewer, Clock::boot().now() - begun));
    }
    let row = |what, guards: f64| Row {
        what,
        ours: format!("{guards:.0}/s"),
        theirs: "20000/s".to_owned(),
        ratio: guards / 20_000.0,
        bound: Bound::AtLeast(1.0),
        note: format!("clients and server share the machine; {BUILT}"),
    };
    Ok(vec![
        row("64 HTTP clients on one key, by token: guards per second, beside 20,000", median(&mut by_token)),
        row(
            "the same, where a client gives back and asks again in one go (HTTP pipelining)",
            median(&mut in_one_go),
        ),
        row(
            "64 HTTP clients on one key, a stream and a connection for each guard: guards per second, beside 20,000",
            median(&mut by_stream),
        ),
    ])
}

/// Guards per second of clients that take so many each, over connections that are open before.
async fn crowd<W>(serving: &Serving, each: u64, work: impl Fn(Client) -> W) -> Answer<f64>
where
    W: Future<Output = Answer<()>> + Send + 'static,
{
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(serving).await?);
    }
    let clock = Clock::boot();
    let begun = clock.now();
    try_join_all(clients.into_iter().map(|it| spawned(work(it)))).await?;
    Ok(rate(CLIENTS * each, clock.now() - begun))
}

async fn spawned(work: impl Future<Output = Answer<()>> + Send + 'static) -> Answer<()> {
    tokio::spawn(work).await?
}

/// What a stream costs the server while it is held.
async fn streams() -> Answer<Row> {
    let serving = Serving::start("memory:")?;
    drop(Client::hold(&serving, "warm-up").await?);
    let before = serving.resident()?;
    let mut held = Vec::new();
    for at in 0..STREAMS {
        held.push(Client::hold(&serving, &format!("stream/{at}")).await?);
    }
    let kib = per(serving.resident()?.saturating_sub(before), STREAMS);
    Ok(Row {
        what: "1,000 streams held: memory of the server for each, beside 64 KiB",
        ours: format!("{kib:.1} KiB"),
        theirs: "64 KiB".to_owned(),
        ratio: kib / 64.0,
        bound: Bound::AtMost(1.0),
        note: "resident, with its lock, renewals and connection".to_owned(),
    })
}

/// The console with many locks, and with many browsers.
async fn console(redis: &Redis) -> Outcome {
    let serving = Serving::start(&redis.url())?;
    let library = lockkeeper::open(&redis.url()).await?.locker.ttl(Duration::from_mins(10)).build();
    let names = (0..LOCKS).map(|at| Key::new(&format!("many/{at}"))).collect::<Result<Vec<_>, _>>()?;
    let held = try_join_all(names.iter().map(|it| library.lock(it))).await?;
    let clock = Clock::boot();
    let mut times = Vec::new();
    for _ in 0..5 {
        // A view that is older than an interval is not shown again.
        clock.sleep(Duration::from_millis(1100)).await;
        let begun = clock.now();
        let bytes = Client::connect(&serving).await?.page("/locks").await?;
        times.push(clock.now() - begun);
        if bytes < 10_000 {
            return Err(format!("the page of locks has only {bytes} bytes").into());
        }
    }
    let first = median(&mut times);
    drop(held);
    library.shutdown(Duration::from_mins(1)).await?;
    let lone = library_free(redis).await?;
    let mut looks = Vec::new();
    for count in [1, BROWSERS] {
        let mut browsers = Vec::new();
        for _ in 0..count {
            browsers.push(Client::listen(&serving).await?);
        }
        tally::reset(redis).await?;
        let begun = clock.now();
        try_join_all((0..count).map(|_| shows(&serving, &clock))).await?;
        looks.push(rate(tally::sent(redis, "ours").await?, clock.now() - begun));
        drop(browsers);
    }
    drop(lone);
    Ok(vec![
        Row::of_times(
            "console, 10,000 locks on Redis: the first view of the list, beside 300 ms",
            (first, Duration::from_millis(300)),
            1.0,
        ),
        Row {
            what: "looks at the store per second with 32 browsers that show one lock, beside one browser",
            ours: format!("{:.1}/s", looks[1]),
            theirs: format!("{:.1}/s", looks[0]),
            ratio: looks[1] / looks[0],
            bound: Bound::AtMost(1.5),
            note: "scripts that the server counted; each browser listens and loads the page every second"
                .to_owned(),
        },
    ])
}

/// A browser that asks for the page of the lock each second, as one does whose page changes all the time.
async fn shows(serving: &Serving, clock: &Clock) -> Answer<()> {
    for _ in 0..5 {
        Client::connect(serving).await?.page("/locks/looked-at").await?;
        clock.sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// One lock that is not renewed while looks are counted.
async fn library_free(redis: &Redis) -> Answer<lockkeeper::Guard> {
    let locker = lockkeeper::open(&redis.url()).await?.locker.ttl(Duration::from_mins(10)).build();
    Ok(locker.lock("looked-at").await?)
}
