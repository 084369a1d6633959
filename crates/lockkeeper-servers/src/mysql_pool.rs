//! A proxy before a MySQL or MariaDB server that shares its connections, as ProxySQL and MaxScale do: a client speaks to one
//! server, and each of its commands may be done by another session.
//!
//! It speaks the protocol as far as sharing needs it. A client is greeted with a number of the proxy's own and logs in at
//! the server by itself; then the proxy logs in as often as its pool is large, by the client's own words, which is possible
//! for users without a password. Every command goes to the next session, unless a transaction is open or a statement is
//! prepared, which stay where they are; what begins with `SET` goes to all of them. What MySQL's own clients can do beyond that (encryption, compression) is not offered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::KitError;

/// How many sessions of the server each client's commands are spread over.
const SESSIONS: usize = 3;

/// Capabilities that the proxy does not offer: encryption, compression, and results without a mark at their end.
const COMPRESS: u32 = 0x20;
const SSL: u32 = 0x800;
const DEPRECATE_EOF: u32 = 0x0100_0000;
const ZSTD: u32 = 0x0400_0000;

const QUIT: u8 = 0x01;
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
/// These two are not answered.
const LONG_DATA: u8 = 0x18;
const CLOSE: u8 = 0x19;

const OK: u8 = 0x00;
const EOF: u8 = 0xfe;
const ERR: u8 = 0xff;
const IN_TRANSACTION: u16 = 0x01;
const MORE_RESULTS: u16 = 0x08;

/// A proxy that shares connections. Dropping it closes its port.
#[derive(Debug)]
pub struct MysqlPool {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Drop for MysqlPool {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl MysqlPool {
    /// Start one in front of the server on this loopback port.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(upstream: u16) -> Result<MysqlPool, KitError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let numbers = Arc::new(AtomicU32::new(1_000_000));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                // A client that goes away, or says what is not understood, is left.
                tokio::spawn(async move { drop(serve(client, upstream, number).await) });
            }
        });
        Ok(MysqlPool { port, accepting })
    }

    /// Address and port for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

async fn serve(client: TcpStream, upstream: u16, number: u32) -> io::Result<()> {
    let mut client = Packets(client);
    let mut first = Packets::dial(upstream).await?;
    let (seq, greeting) = first.read().await?;
    client.write(seq, &greeted(greeting, number)?).await?;
    let (seq, login) = client.read().await?;
    first.write(seq, &login).await?;
    // Its password, if it has one, is between the client and the server.
    loop {
        let (seq, said) = first.read().await?;
        client.write(seq, &said).await?;
        match said.first() {
            Some(&OK) => break,
            Some(&ERR) => return Ok(()),
            _ => {}
        }
        let (seq, said) = client.read().await?;
        first.write(seq, &said).await?;
    }
    let mut sessions = vec![first];
    while sessions.len() < SESSIONS {
        sessions.push(another(upstream, &login).await?);
    }
    let (mut at, mut stays, mut pinned) = (0, false, false);
    loop {
        let (seq, command) = client.read().await?;
        let kind = command.first().copied().unwrap_or(QUIT);
        if kind == QUIT {
            return Ok(());
        }
        pinned |= kind == PREPARE;
        if !stays && !pinned {
            at = (at + 1) % SESSIONS;
        }
        if kind == QUERY && command.get(1..5).is_some_and(|it| it.eq_ignore_ascii_case(b"SET ")) {
            for (_, other) in sessions.iter_mut().enumerate().filter(|it| it.0 != at) {
                other.write(seq, &command).await?;
                answered(other, None).await?;
            }
        }
        let session = &mut sessions[at];
        session.write(seq, &command).await?;
        if kind == PREPARE {
            prepared(session, &mut client).await?;
        } else if kind != CLOSE && kind != LONG_DATA {
            stays = answered(session, Some(&mut client)).await? & IN_TRANSACTION != 0;
        }
    }
}

/// The server's greeting with another number, and without what the proxy cannot do.
fn greeted(mut greeting: Vec<u8>, number: u32) -> io::Result<Vec<u8>> {
    let version = greeting.iter().skip(1).position(|it| *it == 0).ok_or_else(odd)? + 2;
    // The number, eight bytes of salt and a zero; then the lower half of the capabilities, three bytes, and the upper half.
    let (low, high) = (version + 13, version + 18);
    let half = |at: usize| Some(u16::from_le_bytes([*greeting.get(at)?, *greeting.get(at + 1)?]));
    let (Some(lower), Some(upper)) = (half(low), half(high)) else { return Err(odd()) };
    let offered = (u32::from(upper) << 16 | u32::from(lower)) & !(COMPRESS | SSL | DEPRECATE_EOF | ZSTD);
    let bytes = offered.to_le_bytes();
    greeting[version..version + 4].copy_from_slice(&number.to_le_bytes());
    greeting[low..low + 2].copy_from_slice(&bytes[..2]);
    greeting[high..high + 2].copy_from_slice(&bytes[2..]);
    Ok(greeting)
}

/// One more session of the same user, by the same words.
async fn another(upstream: u16, login: &[u8]) -> io::Result<Packets> {
    let mut session = Packets::dial(upstream).await?;
    let (seq, _) = session.read().await?;
    session.write(seq.wrapping_add(1), login).await?;
    loop {
        let (seq, said) = session.read().await?;
        match said.first() {
            Some(&OK) => return Ok(session),
            // Another way to say a password, which is none.
            Some(&EOF) => session.write(seq.wrapping_add(1), &[]).await?,
            _ => return Err(io::Error::other("the pool needs a user without a password")),
        }
    }
}

/// Pass on one whole answer, if anybody wants it. The state that the server told at its end.
async fn answered(session: &mut Packets, mut client: Option<&mut Packets>) -> io::Result<u16> {
    loop {
        let first = pass(session, client.as_deref_mut()).await?;
        let state = match first.first() {
            Some(&ERR) => return Ok(0),
            Some(&OK) => state_of_ok(&first).ok_or_else(odd)?,
            Some(&columns) if columns < 0xfb => {
                until_eof(session, client.as_deref_mut()).await?;
                until_eof(session, client.as_deref_mut()).await?
            }
            _ => return Err(odd()),
        };
        if state & MORE_RESULTS == 0 {
            return Ok(state);
        }
    }
}

/// Pass on one packet.
async fn pass(session: &mut Packets, client: Option<&mut Packets>) -> io::Result<Vec<u8>> {
    let (seq, said) = session.read().await?;
    if let Some(client) = client {
        client.write(seq, &said).await?;
    }
    Ok(said)
}

/// Columns or rows, up to the mark at their end.
async fn until_eof(session: &mut Packets, mut client: Option<&mut Packets>) -> io::Result<u16> {
    loop {
        let said = pass(session, client.as_deref_mut()).await?;
        match said.as_slice() {
            [EOF, _, _, low, high] => return Ok(u16::from_le_bytes([*low, *high])),
            [ERR, ..] => return Ok(0),
            _ => {}
        }
    }
}

/// The answer to `prepare`: how many parameters and columns, and what they are.
async fn prepared(session: &mut Packets, client: &mut Packets) -> io::Result<()> {
    let first = pass(session, Some(&mut *client)).await?;
    let [OK, _, _, _, _, columns, more_columns, params, more_params, ..] = first.as_slice() else {
        return Ok(());
    };
    for there in [params | more_params, columns | more_columns] {
        if there != 0 {
            until_eof(session, Some(&mut *client)).await?;
        }
    }
    Ok(())
}

fn state_of_ok(packet: &[u8]) -> Option<u16> {
    let mut at = 1;
    // How many rows, and the last number given: each as long as its first byte says.
    for _ in 0..2 {
        at += match packet.get(at)? {
            0xfc => 3,
            0xfd => 4,
            0xfe => 9,
            _ => 1,
        };
    }
    Some(u16::from_le_bytes([*packet.get(at)?, *packet.get(at + 1)?]))
}

fn odd() -> io::Error {
    io::Error::other("this is not what MySQL says")
}

/// A connection, packet by packet.
struct Packets(TcpStream);

impl Packets {
    async fn dial(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Packets(stream))
    }

    async fn read(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).await?;
        let [a, b, c, seq] = head;
        let mut body = vec![0; usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16];
        self.0.read_exact(&mut body).await?;
        Ok((seq, body))
    }

    async fn write(&mut self, seq: u8, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).map_err(|_| odd())?.to_le_bytes();
        let mut packet = vec![length[0], length[1], length[2], seq];
        packet.extend_from_slice(body);
        self.0.write_all(&packet).await
    }
}
