//! Where a server listens, its connections, and its graceful end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use lockkeeper_core::{Clock, Error, Result};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::front::Front;
use crate::gate::spellings;
use crate::options::{Serve, routes};
use crate::peer::{Peer, ToPeer};
use crate::state::State;

/// The head of a request: the longest name is far shorter, even if every byte of it is escaped.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long the store may take at the end to confirm what is given back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// Before the next try where no connection could be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Threads for a runtime that does nothing but serve: half of the cores, for the server shares its host with its clients, and
/// threads that wake each other cost more than they bring. At least one; a lock that passes from client to client needs no
/// more.
///
/// ```
/// let runtime = tokio::runtime::Builder::new_multi_thread()
///     .worker_threads(lockkeeper_serve::worker_threads())
///     .enable_all()
///     .build();
/// assert!(runtime.is_ok());
/// ```
pub fn worker_threads() -> usize {
    (std::thread::available_parallelism().map_or(1, std::num::NonZero::get) / 2).max(1)
}

/// Where to listen: `127.0.0.1:7765` or `unix:PATH`.
///
/// ```
/// use lockkeeper_serve::Listen;
///
/// assert!(Listen::parse("127.0.0.1:7765").is_ok_and(|it| it.is_local()));
/// assert!(Listen::parse("unix:/run/lockkeeper.sock").is_ok_and(|it| it.is_local()));
/// assert!(Listen::parse("0.0.0.0:7765").is_ok_and(|it| !it.is_local()));
/// assert!(Listen::parse("7765").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(At);

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Address(SocketAddr),
    Socket(PathBuf),
}

impl Listen {
    /// Read an address.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is neither an IP address with a port nor `unix:` with a path.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:").filter(|it| !it.is_empty()) {
            return Ok(Listen(At::Socket(path.into())));
        }
        let text = text.replace("localhost:", "127.0.0.1:");
        text.parse().map(|it| Listen(At::Address(it))).map_err(|_| {
            Error::invalid(
                "where to listen is written `127.0.0.1:7765`, `[::1]:7765` or `unix:/run/lockkeeper.sock`",
            )
        })
    }

    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match &self.0 {
            At::Address(it) => it.ip().is_loopback(),
            At::Socket(_) => true,
        }
    }

    /// Begin to listen. A socket that a dead server left behind is replaced; only this user can reach the new one.
    ///
    /// # Cancel safety
    /// Safe to drop; nothing listens then.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the address is taken, or the path is that of something else.
    pub async fn bind(&self) -> Result<Listener> {
        let unusable = |it: io::Error| Error::unavailable(format!("the address `{self}`"), it);
        match &self.0 {
            At::Address(address) => {
                let listener = TcpListener::bind(address).await.map_err(unusable)?;
                let address = listener.local_addr().map_err(unusable)?;
                Ok(Listener(Bound::Tcp(listener, address)))
            }
            At::Socket(path) => bind_socket(path).await.map(Listener).map_err(unusable),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            At::Address(it) => it.fmt(f),
            At::Socket(it) => write!(f, "unix:{}", it.display()),
        }
    }
}

async fn bind_socket(path: &Path) -> io::Result<Bound> {
    if std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
        is_left_behind(path).await?;
    }
    // Reachable only when it has its mode: made under another name, then moved.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    let which = identity(&fresh);
    std::fs::rename(&fresh, path)?;
    Ok(Bound::Unix(listener, SocketFile { path: path.to_owned(), which }))
}

/// Whether nobody listens on a socket any more. Only the system's word that nobody does is one: a server that has no room for
/// one more connection just now, or that another user runs, does not answer either.
async fn is_left_behind(path: &Path) -> io::Result<()> {
    let words = match UnixStream::connect(path).await {
        Err(it) if matches!(it.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            return Ok(());
        }
        Ok(_) => "another server listens there; end it, or listen elsewhere".to_owned(),
        Err(it) => {
            format!(
                "another server may listen there, which did not answer ({it}); end it, or remove the socket if nobody does"
            )
        }
    };
    Err(io::Error::new(io::ErrorKind::AddrInUse, words))
}

/// Something that listens. Made by [`Listen::bind`].
#[derive(Debug)]
pub struct Listener(Bound);

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

/// Removed with its listener.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Which file it is, on which device.
    which: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else may have removed it, and the next server may have made its own.
        if self.which.is_some() && identity(&self.path) == self.which {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

impl Listener {
    /// Where it listens, for people: a URL, or the path of a socket.
    pub fn shown(&self) -> String {
        match &self.0 {
            Bound::Tcp(_, address) => format!("http://{address}"),
            Bound::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }

    /// The names by which clients call it.
    fn hosts(&self) -> Vec<String> {
        let Bound::Tcp(_, address) = &self.0 else { return Vec::new() };
        let port = address.port();
        let mut hosts = vec![address.to_string()];
        if address.ip().is_loopback() || address.ip().is_unspecified() {
            hosts.extend([format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]);
        }
        hosts
    }
}

impl Serve {
    /// Serve until `end` resolves. Then those who hold are told that they lose it and have the [patience] of the limits to
    /// let go; what is held is given back, and the connections are closed.
    ///
    /// [patience]: crate::Limits::patience
    ///
    /// # Cancel safety
    /// Dropping it stops listening; connections that are open go on until their clients end them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if something was not given back in time at the end. It is freed by its ttl.
    pub async fn run(self, listener: Listener, end: impl Future<Output = ()>) -> Result<()> {
        let mut state = self.state();
        state.hosts.extend(listener.hosts().iter().flat_map(|it| spellings(it)));
        state.on_a_socket = matches!(listener.0, Bound::Unix(..));
        if let Bound::Tcp(_, address) = &listener.0 {
            // Cookies do not tell ports apart, and a machine may have several servers.
            state.cookie = format!("lockkeeper-{}", address.port());
        }
        let state = Arc::new(state);
        let connections = Connections::new(&state);
        let closing = state.closing();
        // A task of the runtime, not this future: whoever blocks on this one has a thread of its own, which would be woken for
        // every connection only to wake the others. Dropped with this one.
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let graceful = GracefulShutdown::new();
            tokio::select! {
                () = connections.accept(&listener, &graceful) => {}
                () = closing => {}
            }
            graceful
        });
        end.await;
        state.close();
        let patience = state.limits.patience;
        let until = state.clock.now().after(patience * 2);
        if let Some(Ok(graceful)) = accepting.join_next().await {
            state.clock.within(until, pin!(graceful.shutdown())).await;
        }
        state.clock.within(until, pin!(state.emptied())).await;
        state.locker.shutdown(GIVE_BACK_MAX).await
    }
}

/// The connections of a server.
struct Connections {
    clock: Clock,
    room: Arc<Semaphore>,
    head: Duration,
    front: Front,
}

impl Connections {
    fn new(state: &Arc<State>) -> Self {
        let room = Arc::new(Semaphore::new(state.limits.connections));
        let (clock, head) = (Clock::boot(), state.limits.head);
        Connections { clock, room, head, front: Front::new(state.clone(), routes(state)) }
    }

    async fn accept(&self, listener: &Listener, graceful: &GracefulShutdown) {
        loop {
            let Ok(room) = self.room.clone().acquire_owned().await else { return };
            let accepted = match &listener.0 {
                Bound::Tcp(it, _) => it.accept().await.map(|(stream, address)| {
                    let (peer, stream) = Peer::on_tcp(stream, address);
                    self.serve(stream, peer, graceful, room);
                }),
                Bound::Unix(it, _) => it.accept().await.map(|(stream, _)| {
                    let (peer, stream) = Peer::on_socket(stream);
                    self.serve(stream, peer, graceful, room);
                }),
            };
            if accepted.is_err() {
                // Too many files are open, or the client is gone already.
                self.clock.sleep(ACCEPT_AGAIN).await;
            }
        }
    }

    fn serve(&self, stream: ToPeer, peer: Peer, graceful: &GracefulShutdown, room: OwnedSemaphorePermit) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), self.front.of(peer));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A client that goes away is no news: what it held is given back.
            let _ = connection.await;
            drop(room);
        });
    }
}

#[cfg(test)]
mod tests;
