//! What clients said, kept so that it can be said once more: a network, or somebody in it, that sends twice.
//!
//! A tape begins where its connection begins, so that no protocol needs to be known: what opened the connection opens its
//! repetition, too. Only protocols whose opening depends on something random that the server says cannot be repeated.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Shared;

/// Connections that are kept; those that come later are not.
const TAPES_MAX: usize = 256;
/// A server that has said nothing for so long has nothing to say to what it was told last.
const SILENCE: Duration = Duration::from_millis(10);
/// A server that stands still does not hold up whoever repeats.
const REPEAT_MAX: Duration = Duration::from_secs(3);

/// The tapes of a proxy.
#[derive(Default)]
pub(super) struct Tapes {
    /// How many bytes of each new connection are kept.
    max: Option<usize>,
    all: Vec<Arc<Tape>>,
}

/// What was said on one connection, in the pieces in which it came.
pub(super) struct Tape {
    max: usize,
    pieces: Mutex<Vec<Vec<u8>>>,
}

impl Tapes {
    pub(super) fn record(&mut self, max: Option<usize>) {
        *self = Tapes { max, all: Vec::new() };
    }

    /// A tape for a new connection, if it is to be kept.
    pub(super) fn begin(&mut self) -> Option<Arc<Tape>> {
        let max = self.max.filter(|_| self.all.len() < TAPES_MAX)?;
        let tape = Arc::new(Tape { max, pieces: Mutex::default() });
        self.all.push(Arc::clone(&tape));
        Some(tape)
    }

    pub(super) fn all(&self) -> Vec<Arc<Tape>> {
        self.all.clone()
    }
}

impl Tape {
    /// Add what was said. A tape that is full ends there: what comes after a hole would mean something else.
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut pieces = locked(&self.pieces);
        let room = self.max.saturating_sub(pieces.iter().map(Vec::len).sum());
        let bytes = &bytes[..bytes.len().min(room)];
        if !bytes.is_empty() {
            pieces.push(bytes.to_vec());
        }
    }

    /// Say it once more on a connection of its own. How many bytes the server took.
    pub(super) async fn repeat(&self, shared: &Shared) -> usize {
        let pieces = locked(&self.pieces).clone();
        let mut said = 0;
        if pieces.is_empty() {
            return said;
        }
        tokio::select! {
            () = say(shared, &pieces, &mut said) => {}
            () = shared.clock.sleep(REPEAT_MAX) => {}
        }
        shared.count(|it| it.repeated += said);
        said
    }
}

/// Piece by piece, each after the answer to the one before, or after silence; then hang up.
async fn say(shared: &Shared, pieces: &[Vec<u8>], said: &mut usize) {
    let upstream = SocketAddr::from(([127, 0, 0, 1], *locked(&shared.upstream)));
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    drop(server.set_nodelay(true));
    let mut answer = vec![0; 16 * 1024];
    for piece in pieces {
        if server.write_all(piece).await.is_err() {
            return;
        }
        *said += piece.len();
        tokio::select! {
            // Nobody wants to know it.
            heard = server.read(&mut answer) => if !matches!(heard, Ok(1..)) { return },
            () = shared.clock.sleep(SILENCE) => {}
        }
    }
    drop(server.shutdown().await);
    // The server ends what it began, and hangs up in its turn.
    while matches!(server.read(&mut answer).await, Ok(1..)) {}
}
