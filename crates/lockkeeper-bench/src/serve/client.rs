//! The smallest HTTP client: what it costs is as little of the figures as can be. It knows how our server writes its answers.

use std::ops::Range;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::server::{Serving, TOKEN};
use crate::Answer;

/// Room for a few answers; pages are larger, and make room.
const ROOM: usize = 4096;

/// One connection.
pub(super) struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// What was read and not yet looked at.
    rest: Range<usize>,
}

impl Client {
    pub(super) async fn connect(serving: &Serving) -> Answer<Self> {
        let path = serving.shown().strip_prefix("unix:").ok_or("the server is not on a socket")?;
        let stream = UnixStream::connect(path).await?;
        Ok(Client { stream, buffer: vec![0; ROOM], rest: 0..0 })
    }

    /// A stream that is a lock, held.
    pub(super) async fn hold(serving: &Serving, name: &str) -> Answer<Self> {
        let mut client = Client::connect(serving).await?;
        client.send(&request("POST", &format!("/v1/locks/{name}"))).await?;
        client.head(200).await?;
        client.until(b"granted").await?;
        Ok(client)
    }

    /// A browser that listens, as far as the server can tell.
    pub(super) async fn listen(serving: &Serving) -> Answer<Self> {
        let mut client = Client::connect(serving).await?;
        client.send(&request("GET", "/events")).await?;
        client.head(200).await?;
        client.until(b"changed").await?;
        Ok(client)
    }

    /// Take a lock and give it back, over a connection that stays.
    pub(super) async fn by_token(&mut self, name: &str) -> Answer<()> {
        self.send(&take(name)).await?;
        let token = self.taken().await?;
        self.send(&give_back(&token)).await?;
        self.answer(204).await.map(drop)
    }

    /// The same so many times; each lock is given back and the next one asked for in one go.
    pub(super) async fn by_token_in_one_go(&mut self, name: &str, times: u64) -> Answer<()> {
        let take = take(name);
        self.send(&take).await?;
        for left in (0..times).rev() {
            let mut words = give_back(&self.taken().await?);
            if left > 0 {
                words.extend_from_slice(&take);
            }
            self.send(&words).await?;
            self.answer(204).await?;
        }
        Ok(())
    }

    /// A page, whole: its bytes.
    pub(super) async fn page(&mut self, path: &str) -> Answer<usize> {
        self.send(&request("GET", path)).await?;
        Ok(self.answer(200).await?.len())
    }

    async fn taken(&mut self) -> Answer<String> {
        let body = self.answer(201).await?;
        let body = std::str::from_utf8(&self.buffer[body])?;
        let token = body.split_once("\"token\":\"").and_then(|it| it.1.split('"').next());
        Ok(token.ok_or("no token")?.to_owned())
    }

    async fn send(&mut self, words: &[u8]) -> Answer<()> {
        Ok(self.stream.write_all(words).await?)
    }

    /// An answer with this status: where its body is.
    async fn answer(&mut self, wanted: u16) -> Answer<Range<usize>> {
        let length = self.head(wanted).await?;
        while self.rest.len() < length {
            self.read().await?;
        }
        let body = self.rest.start..self.rest.start + length;
        self.rest.start = body.end;
        Ok(body)
    }

    /// The head of an answer with this status: how long its body is.
    async fn head(&mut self, wanted: u16) -> Answer<usize> {
        let mut seen = 0;
        let end = loop {
            let rest = &self.buffer[self.rest.clone()];
            if let Some(at) = find(&rest[seen..], b"\r\n\r\n") {
                break seen + at;
            }
            seen = rest.len().saturating_sub(3);
            self.read().await?;
        };
        let head = std::str::from_utf8(&self.buffer[self.rest.start..self.rest.start + end])?;
        self.rest.start += end + 4;
        if head.get(9..12).and_then(|it| it.parse().ok()) != Some(wanted) {
            return Err(format!("the server answered {head}").into());
        }
        let length =
            head.split_once("content-length: ").map(|it| it.1.split('\r').next().unwrap_or_default());
        Ok(length.map_or(Ok(0), str::parse)?)
    }

    /// Read on until these bytes have come.
    async fn until(&mut self, word: &[u8]) -> Answer<()> {
        while find(&self.buffer[self.rest.clone()], word).is_none() {
            self.read().await?;
        }
        Ok(())
    }

    /// Some more bytes.
    async fn read(&mut self) -> Answer<()> {
        if self.rest.is_empty() {
            self.rest = 0..0;
        }
        if self.rest.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.rest.end..]).await? {
            0 => Err("the server closed the connection".into()),
            some => {
                self.rest.end += some;
                Ok(())
            }
        }
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|it| it == word)
}

fn request(method: &str, path: &str) -> Vec<u8> {
    let words = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n"
    );
    words.into_bytes()
}

fn take(name: &str) -> Vec<u8> {
    request("POST", &format!("/v1/tokens?name={name}"))
}

fn give_back(token: &str) -> Vec<u8> {
    request("DELETE", &format!("/v1/tokens/{token}"))
}
