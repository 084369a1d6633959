//! A ring on Redis: each process waits for its own list by `BLPOP`, and the one before it pushes. A step wakes one process and
//! costs two commands, as a hand-off of ours does. There is no client library, only a socket that blocks.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use super::Member;
use crate::Answer;
use crate::rival::Rival;

/// One process.
#[derive(Clone)]
pub(crate) struct RedisRing {
    stream: Arc<TcpStream>,
    has_token: bool,
    wait: Words,
    pass: Words,
}

/// A command, and the one answer that it has.
#[derive(Clone)]
struct Words {
    sent: Arc<[u8]>,
    answer: Arc<[u8]>,
}

impl Words {
    fn new(command: &[&str], answer: &str) -> Self {
        let mut packed = redis::Cmd::new();
        for word in command {
            packed.arg(word);
        }
        Words { sent: packed.get_packed_command().into(), answer: answer.as_bytes().into() }
    }

    fn trip(&self, mut stream: &TcpStream) -> Answer<()> {
        stream.write_all(&self.sent)?;
        let mut answer = vec![0; self.answer.len()];
        stream.read_exact(&mut answer)?;
        if answer == *self.answer { Ok(()) } else { Err("the ring was told something else".into()) }
    }
}

impl RedisRing {
    pub(crate) fn open(url: &str, key: &str, member: Member) -> Answer<Self> {
        let stream = TcpStream::connect(url.trim_start_matches("redis://").trim_end_matches('/'))?;
        stream.set_nodelay(true)?;
        let list = |at: u32| format!("{key}:{at}");
        let (mine, next) = (list(member.at), list(member.next()));
        let popped = format!("*2\r\n${}\r\n{mine}\r\n$1\r\n1\r\n", mine.len());
        Ok(RedisRing {
            stream: Arc::new(stream),
            has_token: member.begins(),
            wait: Words::new(&["BLPOP", &mine, "0"], &popped),
            pass: Words::new(&["RPUSH", &next, "1"], ":1\r\n"),
        })
    }
}

impl Rival for RedisRing {
    type Taken = ();

    async fn take(&mut self, _key: &str) -> Answer<()> {
        if std::mem::take(&mut self.has_token) {
            return Ok(());
        }
        self.wait.trip(&self.stream)
    }

    async fn give_back(&mut self, _token: ()) -> Answer<()> {
        self.pass.trip(&self.stream)
    }
}
