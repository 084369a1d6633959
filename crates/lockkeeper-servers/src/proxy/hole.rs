//! Ports behind which nobody is: what is sent there is lost, without a word.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::Port;
use crate::process::KitError;

/// A port of a host that does not answer. Nothing runs here, so no runtime has to live for it.
#[derive(Debug)]
pub struct BlackHole {
    port: Port,
    _kind: Hole,
}

#[derive(Debug)]
enum Hole {
    Silent { _listener: std::net::TcpListener },
    Unreachable { _deaf: Deaf },
}

impl BlackHole {
    /// A port that takes every connection, and then never says anything.
    ///
    /// # Errors
    /// If no port is free, or a stranger took it at this moment.
    pub fn silent() -> Result<BlackHole, KitError> {
        let port = Port::claim()?;
        // The kernel shakes hands for a program that does not look.
        let listener = std::net::TcpListener::bind(("127.0.0.1", port.number()))?;
        Ok(BlackHole { port, _kind: Hole::Silent { _listener: listener } })
    }

    /// A port that neither takes nor refuses connections: whoever dials waits until he gives up.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If no port is free, or a stranger took it at this moment.
    pub async fn unreachable() -> Result<BlackHole, KitError> {
        let port = Port::claim()?;
        let deaf = Deaf::at(port.number()).await?;
        Ok(BlackHole { port, _kind: Hole::Unreachable { _deaf: deaf } })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Address and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }
}

/// A listener whose queue is full: the kernel drops the first packet of everyone else who dials.
#[derive(Debug)]
pub(super) struct Deaf {
    _listener: TcpListener,
    _first: TcpStream,
}

impl Deaf {
    pub(super) async fn at(port: u16) -> Result<Self, KitError> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let socket = TcpSocket::new_v4()?;
        // A server that ran here until now leaves connections behind that nobody needs.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // The kernel keeps one more than it is told.
        let listener = socket.listen(0)?;
        let first = TcpStream::connect(address).await?;
        Ok(Deaf { _listener: listener, _first: first })
    }
}
