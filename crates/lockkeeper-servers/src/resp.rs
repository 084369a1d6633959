//! The smallest Redis client that tests of Redis clients need: one connection, one command at a time.

use std::fmt;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::process::KitError;

/// What a server says. The kinds of both protocol versions.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A whole number.
    Int(i64),
    /// A fraction.
    Double(f64),
    /// Yes or no.
    Bool(bool),
    /// Bytes, as a status line, a bulk string or a verbatim string.
    Text(Vec<u8>),
    /// An error inside an array. At the top it is an `Err`.
    Error(String),
    /// An array, a set or a push.
    Array(Vec<Value>),
    /// Pairs.
    Map(Vec<(Value, Value)>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Nil => f.write_str("nil"),
            Value::Int(it) => write!(f, "{it}"),
            Value::Double(it) => write!(f, "{it}"),
            Value::Bool(it) => write!(f, "{it}"),
            Value::Text(it) => write!(f, "{:?}", String::from_utf8_lossy(it)),
            Value::Error(it) => write!(f, "error {it:?}"),
            Value::Array(it) => f.debug_list().entries(it).finish(),
            Value::Map(it) => f.debug_map().entries(it.iter().map(|(key, value)| (key, value))).finish(),
        }
    }
}

impl Value {
    /// The text, or an empty one if this is something else.
    pub fn text(&self) -> String {
        match self {
            Value::Text(it) => String::from_utf8_lossy(it).into_owned(),
            _ => String::new(),
        }
    }

    /// The number, also if it is written as text.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(it) => Some(*it),
            other => other.text().parse().ok(),
        }
    }

    /// The parts of an array, or none if this is something else.
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(it) => it,
            _ => &[],
        }
    }

    /// In a text such as that of `INFO`, what follows `name:` on its line.
    pub fn field(&self, name: &str) -> Option<String> {
        let text = self.text();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.map(|it| it.trim_end().to_owned())
    }
}

/// A connection to a Redis server or sentinel, on loopback and without encryption.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    /// Connect to the server on this loopback port.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If nobody listens.
    pub async fn connect(port: u16) -> Result<Self, KitError> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(RespClient { stream: BufReader::new(stream) })
    }

    /// Send a command and read the answer.
    ///
    /// # Cancel safety
    /// Not safe: after dropping the future the connection must not be used again.
    ///
    /// # Errors
    /// What the server answered, if that is an error, or what broke the connection.
    pub async fn command(&mut self, words: &[&str]) -> Result<Value, KitError> {
        self.send(words).await?;
        match self.receive().await? {
            // Only the name: the other words may hold a password.
            Value::Error(text) => Err(KitError::new(format!("{}: {text}", words.first().unwrap_or(&"")))),
            value => Ok(value),
        }
    }

    /// Send a command without reading an answer, for commands that answer many times or never.
    ///
    /// # Cancel safety
    /// Not safe: after dropping the future the connection must not be used again.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn send(&mut self, words: &[&str]) -> Result<(), KitError> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        Ok(self.stream.get_mut().write_all(&bytes).await?)
    }

    /// Read one answer or push.
    ///
    /// # Cancel safety
    /// Not safe: after dropping the future the connection must not be used again.
    ///
    /// # Errors
    /// If the connection is broken or what arrives is not the protocol.
    pub async fn receive(&mut self) -> Result<Value, KitError> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).await?;
        let line = String::from_utf8_lossy(&line);
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(KitError::new("the server closed the connection"));
        };
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        let odd = || KitError::new(format!("not the Redis protocol: {line:?}"));
        let number = || rest.parse::<i64>().map_err(|_| odd());
        Ok(match kind {
            "+" | "(" => Value::Text(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Int(number()?),
            "," => Value::Double(rest.parse().map_err(|_| odd())?),
            "#" => Value::Bool(rest == "t"),
            "_" => Value::Nil,
            "$" | "=" | "!" => match self.bytes(number()?).await? {
                None => Value::Nil,
                Some(text) if kind == "!" => Value::Error(String::from_utf8_lossy(&text).into_owned()),
                // A verbatim string begins with its format and a colon.
                Some(text) if kind == "=" => Value::Text(text.get(4..).unwrap_or_default().into()),
                Some(text) => Value::Text(text),
            },
            "*" | "~" | ">" => match number()? {
                ..0 => Value::Nil,
                count => Value::Array(self.values(count).await?),
            },
            "%" => {
                let mut parts = self.values(number()?.saturating_mul(2)).await?.into_iter();
                let mut pairs = Vec::new();
                while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
                    pairs.push((key, value));
                }
                Value::Map(pairs)
            }
            _ => return Err(odd()),
        })
    }

    async fn values(&mut self, count: i64) -> Result<Vec<Value>, KitError> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(Box::pin(self.receive()).await?);
        }
        Ok(values)
    }

    async fn bytes(&mut self, length: i64) -> Result<Option<Vec<u8>>, KitError> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(None);
        };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        Ok(Some(bytes))
    }
}
