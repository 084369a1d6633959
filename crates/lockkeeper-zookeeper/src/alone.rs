//! A server that stands alone although several are named: it was taken out of its ensemble, perhaps with its data lost, and
//! would give locks of its own to whoever finds it first.

use lockkeeper_core::Clock;
use lockkeeper_core::kit::some_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use zookeeper_client::{Client, Error};

use crate::fault;
use crate::options::ZooKeeperOptions;

/// No honest answer to a four-letter word is longer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Why no session was opened.
#[derive(Debug)]
pub(crate) enum Unopened {
    /// What the client says.
    Client(Error),
    /// Who answers stands alone. These do, as far as is known.
    Alone(Vec<String>),
}

impl Unopened {
    /// Whether another try may find another server.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Unopened::Client(error) => fault::is_transient(error),
            Unopened::Alone(_) => true,
        }
    }
}

impl From<Error> for Unopened {
    fn from(error: Error) -> Self {
        Unopened::Client(error)
    }
}

/// What to do about servers that stand alone.
pub(crate) fn about(servers: &[String]) -> String {
    let who = if servers.is_empty() { "a server of the URL".to_owned() } else { some_of(servers) };
    format!(
        "{who} stands alone and is not of the ensemble whose servers the URL names: it keeps locks of its own; start it as a \
         member, or if it is meant, name it alone"
    )
}

/// Which of the named servers say that they stand alone. Nobody is waited for who keeps silent longer than the caller bears,
/// and one that does not tell is not accused.
pub(crate) async fn among(options: &ZooKeeperOptions, clock: &Clock) -> Vec<String> {
    let mut alone = Vec::new();
    if options.servers.len() < 2 || options.tls.is_some() {
        return alone;
    }
    let mut asked = JoinSet::new();
    for server in options.servers.clone() {
        asked.spawn(async move { word(&server, "srvr").await.filter(|it| is_alone(it)).map(|_| server) });
    }
    let all = async {
        while let Some(answered) = asked.join_next().await {
            alone.extend(answered.ok().flatten());
        }
    };
    tokio::select! {
        () = all => {}
        () = clock.sleep(options.timeout / 6) => {}
    }
    alone.sort();
    alone
}

/// Whether a server says so in its answer to `srvr`.
pub(crate) fn is_alone(srvr: &str) -> bool {
    srvr.lines().any(|it| it.trim() == "Mode: standalone")
}

/// Refuse a server that does not know of an ensemble. Everybody may read what an ensemble writes there.
pub(crate) async fn refuse(client: &Client) -> Result<(), Unopened> {
    match client.get_config().await {
        Ok((members, _)) if !has_members(&members) => Err(Unopened::Alone(Vec::new())),
        Err(error) if fault::is_session_over(&error) => Err(error.into()),
        // A server that does not tell is not accused.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An ensemble has at least two.
fn has_members(config: &[u8]) -> bool {
    let text = String::from_utf8_lossy(config);
    1 < text.lines().filter(|it| it.starts_with("server.")).count()
}

/// The answer to a four-letter word; `None` if the server does not answer, or does not allow the word.
pub(crate) async fn word(server: &str, word: &str) -> Option<String> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    stream.write_all(word.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await.ok()?;
    Some(answer).filter(|it| !it.contains("not in the whitelist"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_has_members_and_a_server_alone_has_none() {
        assert!(has_members(b"server.1=a:1:2:participant\nserver.2=b:1:2:participant\nversion=100000000"));
        for alone in [b"".as_slice(), b"version=0", b"server.1=a:1:2:participant\nversion=1", b"\xff"] {
            assert!(!has_members(alone));
        }
        assert!(is_alone("Zookeeper version: 3.8.0\nMode: standalone\nNode count: 5\n"));
        assert!(!is_alone("Mode: follower\n") && !is_alone(""));
    }
}
