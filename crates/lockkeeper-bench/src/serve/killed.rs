//! A program that holds a lock over HTTP and is killed: how long its lock is not free yet.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_core::{Clock, Key};
use lockkeeper_servers::Redis;

use super::server::{Serving, TOKEN};
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

/// The word that makes this program one that holds a lock.
pub(crate) const HOLDER: &str = "holder";
const NAME: &str = "killed";
const TIMES: usize = 50;

/// `WHERE`: holds a lock of the server there until it is killed. It says when it holds.
pub(crate) fn hold(words: &[String]) -> Answer<()> {
    let [shown] = words else { return Err("usage: WHERE".into()) };
    let mut stream: Box<dyn Both> = match shown.strip_prefix("unix:") {
        Some(path) => Box::new(UnixStream::connect(path)?),
        None => Box::new(TcpStream::connect(shown.trim_start_matches("http://"))?),
    };
    let host = shown.strip_prefix("http://").unwrap_or("x");
    // It says more than it was asked for, as hasty clients do: that must not hide its end.
    write!(
        stream,
        "POST /v1/locks/{NAME}?ttl=10m HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: \
         0\r\n\r\nmore"
    )?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("granted") {
        line.clear();
        if answer.read_line(&mut line)? == 0 {
            return Err("the server closed the connection".into());
        }
    }
    writeln!(std::io::stdout(), "holds")?;
    std::io::copy(&mut answer, &mut std::io::sink())?;
    Ok(())
}

trait Both: Read + Write {}

impl<T: Read + Write> Both for T {}

/// The longest of many times, on a socket and on TCP.
pub(super) async fn rows(redis: &Redis) -> Outcome {
    let over = [
        (
            "a client killed (SIGKILL) that held a lock over a unix socket: until its lock is free, the longest of 50, beside 1 s",
            Serving::start(&redis.url())?,
        ),
        ("the same over TCP on this machine, beside 1 s", Serving::on_tcp(&redis.url())?),
    ];
    let mut rows = Vec::new();
    for (what, serving) in over {
        let longest = longest(redis, &serving).await?;
        rows.push(Row {
            what,
            ours: format!("{longest:.1?}"),
            theirs: "1 s".to_owned(),
            ratio: longest.as_secs_f64(),
            bound: Bound::AtMost(1.0),
            note: "from before the signal until another process sees it free on Redis; ttl 10 min".to_owned(),
        });
    }
    Ok(rows)
}

async fn longest(redis: &Redis, serving: &Serving) -> Answer<Duration> {
    let (seen, key, clock) = (lockkeeper::open(&redis.url()).await?.inspect, Key::new(NAME)?, Clock::boot());
    let mut longest = Duration::ZERO;
    for _ in 0..TIMES {
        let mut holder = holder(serving)?;
        if seen.show(&key).await?.is_none() {
            return Err("the client says that it holds, and the store does not".into());
        }
        let begun = clock.now();
        holder.kill()?;
        while seen.show(&key).await?.is_some() {}
        longest = longest.max(clock.now() - begun);
        holder.wait()?;
    }
    Ok(longest)
}

/// A process that holds the lock.
fn holder(serving: &Serving) -> Answer<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg(HOLDER).arg(serving.shown()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut said)?;
    if said.trim() == "holds" { Ok(child) } else { Err("the client does not hold the lock".into()) }
}
