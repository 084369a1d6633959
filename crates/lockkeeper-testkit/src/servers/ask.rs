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
