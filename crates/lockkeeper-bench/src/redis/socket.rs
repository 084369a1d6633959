//! A free lock beside the limit: the same two trips on a raw socket that does nothing else.

use std::time::Duration;

use lockkeeper_core::{ClaimId, Clock};
use lockkeeper_servers::Redis;
use redis::{Cmd, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use super::rivals::{COMPARE_AND_DELETE, TTL};
use crate::Answer;
use crate::measure::{median, per};
use crate::report::{Bound, Row};
use crate::rival::{Ours, Rival as _};

const CYCLES: u32 = 2000;
const TURNS: usize = 21;

/// On one thread, and on several: the client's ways differ.
pub(crate) async fn rows(server: &Redis) -> Answer<Vec<Row>> {
    let one = Builder::new_current_thread().enable_all().build()?;
    let many = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(vec![
        row(
            "lock + unlock, one task, beside the same trips on a raw socket, `current_thread`",
            measured(one, server.url()).await?,
        ),
        row(
            "lock + unlock, one task, beside the same trips on a raw socket, `multi_thread`",
            measured(many, server.url()).await?,
        ),
    ])
}

fn row(what: &'static str, [ours, raw, ratio]: [f64; 3]) -> Row {
    Row {
        what,
        ours: format!("{ours:.1}µs"),
        theirs: format!("{raw:.1}µs"),
        ratio,
        bound: Bound::AtMost(1.15),
        note: "`SET NX PX` and compare-and-delete, no client library; ours with queue and durable fence; what remains: decision 74"
            .into(),
    }
}

/// Measure on a runtime of its own, on threads of its own.
async fn measured(runtime: Runtime, url: String) -> Answer<[f64; 3]> {
    let work = move || runtime.block_on(async { tokio::spawn(compare(url)).await });
    tokio::task::spawn_blocking(work).await??
}

/// Microseconds per cycle of ours and of the socket, and the ratio: medians of turns.
async fn compare(url: String) -> Answer<[f64; 3]> {
    let (mut ours, mut socket) = (Ours::connect(&url).await?, Socket::open(&url).await?);
    let (mut one, mut other, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let (a, b) = (lock(&mut ours).await?, socket.cycles().await?);
        one.push(a);
        other.push(b);
        ratios.push(a / b);
    }
    Ok([median(&mut one), median(&mut other), median(&mut ratios)])
}

async fn lock(ours: &mut Ours) -> Answer<f64> {
    let (clock, key) = (Clock::boot(), "bench:socket:ours");
    let began = clock.now();
    for _ in 0..CYCLES {
        let taken = ours.take(key).await?;
        ours.give_back(taken).await?;
    }
    Ok(micros(clock.now() - began))
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6 / per(u64::from(CYCLES), 1)
}

/// A connection without a client library.
struct Socket {
    stream: TcpStream,
    bytes: Vec<u8>,
    sha: String,
}

impl Socket {
    async fn open(url: &str) -> Answer<Self> {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut socket = Socket { stream, bytes: Vec::new(), sha: String::new() };
        let loaded = socket.trip(redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE)).await?;
        socket.sha = redis::from_redis_value(loaded)?;
        Ok(socket)
    }

    async fn trip(&mut self, command: &Cmd) -> Answer<Value> {
        self.bytes.clear();
        command.write_packed_command(&mut self.bytes);
        self.stream.write_all(&self.bytes).await?;
        self.bytes.clear();
        loop {
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err("the server has gone".into());
            }
            // Every answer here is a number, a status, or one text that ends with its line.
            if self.bytes.ends_with(b"\r\n") && (self.bytes[0] != b'$' || self.bytes.len() > 8) {
                return Ok(redis::parse_redis_value(&self.bytes)?.extract_error()?);
            }
        }
    }

    async fn cycles(&mut self) -> Answer<f64> {
        let (clock, key) = (Clock::boot(), "bench:socket:raw");
        let began = clock.now();
        for _ in 0..CYCLES {
            let id = ClaimId::random()?.to_hex();
            let ttl = TTL.as_millis();
            let taken = self.trip(redis::cmd("SET").arg(key).arg(&id).arg("NX").arg("PX").arg(ttl)).await?;
            if taken == Value::Nil {
                return Err("the lock was not free".into());
            }
            let sha = self.sha.clone();
            self.trip(redis::cmd("EVALSHA").arg(sha).arg(1).arg(key).arg(&id)).await?;
        }
        Ok(micros(clock.now() - began))
    }
}
