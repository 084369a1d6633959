//! One question per protocol, asked without a client crate: does the server serve?

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::KitError;

async fn dial(port: u16) -> Result<TcpStream, KitError> {
    Ok(TcpStream::connect(("127.0.0.1", port)).await?)
}

/// Open a PostgreSQL session up to the point where the server lets us in or asks who we are.
pub(super) async fn postgres(port: u16, database: &str) -> Result<(), KitError> {
    const VERSION_3: u32 = 3 << 16;
    let words = format!("user\0postgres\0database\0{database}\0\0");
    let length = u32::try_from(words.len() + 8).unwrap_or_default();
    let mut stream = dial(port).await?;
    stream.write_u32(length).await?;
    stream.write_u32(VERSION_3).await?;
    stream.write_all(words.as_bytes()).await?;
    if stream.read_u8().await? == b'R' {
        return Ok(());
    }
    let length = stream.read_u32().await?.clamp(4, 4096);
    let mut text = vec![0; length as usize - 4];
    stream.read_exact(&mut text).await?;
    Err(KitError::new(String::from_utf8_lossy(&text).replace('\0', " ")))
}

/// Read the greeting of a MySQL or MariaDB server.
pub(super) async fn mysql(port: u16) -> Result<(), KitError> {
    let mut stream = dial(port).await?;
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).await?;
    // Length (3 bytes), number of the packet, version of the protocol.
    match greeting[4] {
        10 => Ok(()),
        other => Err(KitError::new(format!("it greets with {other}, not with protocol 10"))),
    }
}

/// Send a four-letter word to a ZooKeeper server.
pub(super) async fn zookeeper(port: u16, word: &str) -> Result<String, KitError> {
    let mut stream = dial(port).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Join a ZooKeeper session as its client does when it comes back, and close it.
///
/// The server makes the password of a session from its id alone, with a secret that is the same everywhere. Whether
/// the session is over is for the caller to see.
pub(super) async fn end_zookeeper_session(port: u16, id: i64) -> Result<(), KitError> {
    const CLOSE: i32 = -11;
    let mut stream = dial(port).await?;
    let mut hello = Vec::new();
    // Version of the protocol, the last change seen, the timeout asked for.
    hello.extend_from_slice(&[0; 12]);
    hello.extend_from_slice(&10_000_i32.to_be_bytes());
    hello.extend_from_slice(&id.to_be_bytes());
    hello.extend_from_slice(&16_i32.to_be_bytes());
    hello.extend_from_slice(&zookeeper_password(id));
    // Not content with a server that only reads.
    hello.push(0);
    let mut close = 1_i32.to_be_bytes().to_vec();
    close.extend_from_slice(&CLOSE.to_be_bytes());
    // In one go: the true client comes back, too, and would take its session from us before we could close it.
    let mut words = Vec::new();
    for message in [hello, close] {
        words.extend_from_slice(&u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
        words.extend_from_slice(&message);
    }
    stream.write_all(&words).await?;
    // The server hangs up when the session is closed, perhaps before it has answered; or we are refused.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    Ok(())
}

/// What Java's random generator yields for the id and the server's secret.
fn zookeeper_password(id: i64) -> Vec<u8> {
    const SECRET: i64 = 0xB341_5C00;
    const FACTOR: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((id ^ SECRET).cast_unsigned() ^ FACTOR) & MASK;
    let words = (0..4).flat_map(|_| {
        seed = (seed.wrapping_mul(FACTOR) + 0xB) & MASK;
        // The middle 32 of 48 bits, lowest byte first.
        seed.to_le_bytes()[2..6].to_vec()
    });
    words.collect()
}

/// Send an HTTP request and return the body of a good answer.
pub(super) async fn http(port: u16, method: &str, path: &str, body: &str) -> Result<String, KitError> {
    let mut stream = dial(port).await?;
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(KitError::new(format!("{path}: {} {body}", head.lines().next().unwrap_or("no answer"))))
    }
}
