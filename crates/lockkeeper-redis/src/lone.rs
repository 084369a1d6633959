//! The short way of a caller that is alone: it writes to a socket and reads the answer by itself.
//!
//! On the shared connection each trip crosses to the task that drives it and back, which costs a lone caller more than our
//! scripts do. So a connection that is used for single calls has a second socket beside it. Whoever finds the shared one idle
//! takes that socket for one trip; nobody else needs it meanwhile, so it does not matter if its caller is not polled.
//! If the caller goes away in the middle, the socket is closed. Messages still come on the shared connection.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::locked;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::connection::within;
use crate::dial::SharedDialer;
use crate::options::Host;
use crate::pulse::{Pulse, no_answer};

/// The socket is opened for whoever was alone so often: a program that takes one lock and ends needs none.
const OPEN_AFTER: u32 = 4;

/// Our scripts answer with far less.
const ANSWER_MAX: usize = 1 << 20;

/// Arrays within arrays: our scripts answer with one at most.
const DEPTH_MAX: u32 = 8;

/// The socket beside a shared connection, and how to open it.
pub(crate) struct Lone {
    dialer: SharedDialer,
    host: Host,
    home: Handle,
    spare: Arc<Mutex<Spare>>,
}

/// Where the socket is.
enum Spare {
    /// There is none; so often it would have been of use.
    Absent(u32),
    Opening,
    Free(Socket),
    /// On a trip with its caller.
    Away,
    /// It could not be opened. The shared connection is enough.
    Refused,
}

impl fmt::Debug for Lone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lone").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Lone {
    /// `None` where it would have to speak TLS, which the client library does for us.
    pub(crate) fn new(dialer: &SharedDialer, host: Host, home: Handle) -> Option<Self> {
        let plain = dialer.options.tls.is_none();
        plain.then(|| Lone {
            dialer: dialer.clone(),
            host,
            home,
            spare: Arc::new(Mutex::new(Spare::Absent(0))),
        })
    }

    /// The socket, for one trip.
    pub(crate) fn take(&self) -> Option<Trip<'_>> {
        let mut spare = locked(&self.spare);
        match &mut *spare {
            Spare::Free(_) => {
                let Spare::Free(socket) = std::mem::replace(&mut *spare, Spare::Away) else { return None };
                Some(Trip { lone: self, socket: Some(socket) })
            }
            Spare::Absent(often) => {
                *often += 1;
                if OPEN_AFTER <= *often {
                    *spare = Spare::Opening;
                    self.begin_to_open();
                }
                None
            }
            Spare::Opening | Spare::Away | Spare::Refused => None,
        }
    }

    /// Open it where its connection lives. Nobody waits for it.
    fn begin_to_open(&self) {
        let (dialer, host, slot) = (self.dialer.clone(), self.host.clone(), self.spare.clone());
        self.home.spawn(async move {
            let opened = Socket::open(&dialer, &host).await;
            *locked(&slot) = opened.map_or(Spare::Refused, Spare::Free);
        });
    }
}

/// The socket on its way with a caller. It is closed if the caller goes away before the answer.
pub(crate) struct Trip<'a> {
    lone: &'a Lone,
    socket: Option<Socket>,
}

impl Trip<'_> {
    /// Send a command and wait for its answer, but not longer than `patience`.
    pub(crate) async fn ask(&mut self, command: &Cmd, patience: Duration) -> RedisResult<Value> {
        let Some(mut socket) = self.socket.take() else { return Err(no_answer()) };
        let pulse = socket.pulse.clone();
        let answer = pulse.bear(patience, socket.ask(command)).await?;
        self.socket = Some(socket);
        answer.extract_error()
    }
}

impl Drop for Trip<'_> {
    fn drop(&mut self) {
        let next = self.socket.take().map_or(Spare::Absent(0), Spare::Free);
        *locked(&self.lone.spare) = next;
    }
}

/// An open socket, between two answers.
struct Socket {
    stream: TcpStream,
    bytes: Vec<u8>,
    pulse: Arc<Pulse>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.pulse.end();
    }
}

impl Socket {
    async fn open(dialer: &SharedDialer, host: &Host) -> RedisResult<Self> {
        let (options, clock) = (&dialer.options, Clock::boot());
        let dialled = TcpStream::connect((host.name.as_str(), host.port));
        let stream = within(&clock, options.connect_timeout, dialled).await.unwrap_or_else(late)?;
        stream.set_nodelay(true)?;
        dialer.keep_alive(&stream)?;
        let pulse = Pulse::new(options.timeout + options.replicas_timeout);
        let mut socket = Socket { stream, bytes: Vec::with_capacity(512), pulse };
        within(&clock, options.timeout, socket.introduce(dialer))
            .await
            .unwrap_or_else(|| Err(no_answer()))?;
        Ok(socket)
    }

    /// Say who we are, and which database is meant.
    async fn introduce(&mut self, dialer: &SharedDialer) -> RedisResult<()> {
        let options = &dialer.options;
        if let Some(password) = &options.password {
            let mut login = redis::cmd("AUTH");
            options.user.iter().for_each(|it| {
                login.arg(it);
            });
            self.ask(login.arg(password.reveal())).await?.extract_error()?;
        }
        if options.db != 0 {
            self.ask(redis::cmd("SELECT").arg(options.db)).await?.extract_error()?;
        }
        Ok(())
    }

    async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.bytes.clear();
        command.write_packed_command(&mut self.bytes);
        self.stream.write_all(&self.bytes).await?;
        self.bytes.clear();
        loop {
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            match whole(&self.bytes, DEPTH_MAX) {
                Read::Whole(length) if length == self.bytes.len() => {
                    return redis::parse_redis_value(&self.bytes);
                }
                Read::Part if self.bytes.len() < ANSWER_MAX => {}
                // More than we asked for, or something else than an answer.
                _ => {
                    return Err(RedisError::from((
                        ErrorKind::Parse,
                        "the answer is not in the protocol of Redis",
                    )));
                }
            }
        }
    }
}

fn late() -> io::Result<TcpStream> {
    Err(io::ErrorKind::TimedOut.into())
}

/// How much of an answer has come.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Part,
    /// It has so many bytes.
    Whole(usize),
    Strange,
}

/// Whether these bytes begin with a whole answer, in the second version of the protocol.
fn whole(bytes: &[u8], depth: u32) -> Read {
    let Some(end) = bytes.windows(2).position(|it| it == b"\r\n") else { return Read::Part };
    let line = end + 2;
    let number = || std::str::from_utf8(&bytes[1..end]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'+' | b'-' | b':' => Read::Whole(line),
        b'$' => match number().map(usize::try_from) {
            Some(Ok(length)) if ANSWER_MAX < length => Read::Strange,
            Some(Ok(length)) if bytes.len() < line + length + 2 => Read::Part,
            Some(Ok(length)) => Read::Whole(line + length + 2),
            // Nothing.
            Some(Err(_)) => Read::Whole(line),
            None => Read::Strange,
        },
        b'*' if depth != 0 => match number() {
            Some(count) => whole_items(bytes, line, count, depth - 1),
            None => Read::Strange,
        },
        _ => Read::Strange,
    }
}

/// The items of an array, which begin at `at`.
fn whole_items(bytes: &[u8], mut at: usize, count: i64, depth: u32) -> Read {
    for _ in 0..count {
        match whole(&bytes[at..], depth) {
            Read::Whole(length) => at += length,
            other => return other,
        }
    }
    Read::Whole(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Read {
        whole(text.as_bytes(), DEPTH_MAX)
    }

    #[test]
    fn an_answer_is_whole_with_its_last_byte_and_not_before() {
        for text in [
            ":12345\r\n",
            "+OK\r\n",
            "-ERR no\r\n",
            "$5\r\na\r\nbc\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:0\r\n:1000\r\n:2\r\n",
            "*2\r\n*1\r\n$1\r\nx\r\n:7\r\n",
        ] {
            assert_eq!(of(text), Read::Whole(text.len()), "{text:?}");
            let parsed = redis::parse_redis_value(text.as_bytes());
            assert!(parsed.is_ok(), "{text:?}: {parsed:?}");
            for cut in 0..text.len() {
                assert_eq!(of(&text[..cut]), Read::Part, "{:?}", &text[..cut]);
            }
        }
        assert_eq!(of(":1\r\n:2\r\n"), Read::Whole(4), "and what follows is not part of it");
    }

    #[test]
    fn what_is_no_answer_is_strange_and_costs_no_memory() {
        for text in ["HTTP/1.1 400\r\n", "$x\r\n", "*y\r\n", "$99999999999\r\n", "%1\r\n", "\r\n"] {
            assert_eq!(of(text), Read::Strange, "{text:?}");
        }
        let deep = "*1\r\n".repeat(1000);
        assert_eq!(of(&deep), Read::Strange);
        assert_eq!(of("*9000000000\r\n"), Read::Part, "nothing is reserved for what has not come");
    }
}
