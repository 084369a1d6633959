//! The other end of a connection: where it comes from, and whether its host takes one more line.
//!
//! A host that vanished without a word acknowledges nothing any more, and TCP gives up after a while that we set. But a client
//! that lives and never reads looks just the same as soon as its host has no room left. So nothing that can be left out is sent
//! before the host has taken all that came before it and has room for more. Then what is not acknowledged tells of a dead host.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::GetSockOpt as _;
use nix::sys::socket::sockopt::GetStruct;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// After how long a host that acknowledges nothing is taken for dead.
pub(crate) const DEAD_AFTER_MS: u32 = 20_000;
/// After how long without a word a host is asked whether it is there, and before it is asked again.
const IDLE: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_secs(5);
const ASK_TIMES: u32 = 2;
/// Room of a host that is plenty for one more line.
const ROOM: u32 = 2048;

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<Connection>);

impl Peer {
    /// A program on some host, and the way to it.
    pub(crate) fn on_tcp(stream: TcpStream, address: SocketAddr) -> (Self, ToPeer) {
        Peer::with(Connection::tcp(stream, address))
    }

    /// A program on this machine, and the way to it. However full that is, its end is noticed.
    pub(crate) fn on_socket(stream: UnixStream) -> (Self, ToPeer) {
        Peer::with(Connection { stream: Stream::Unix(stream), enough: None })
    }

    fn with(connection: Connection) -> (Self, ToPeer) {
        let connection = Arc::new(connection);
        (Peer(connection.clone()), ToPeer(connection))
    }

    /// Who that is in words: an address, or a user of this machine.
    pub(crate) fn shown(&self) -> String {
        match &self.0.stream {
            Stream::Tcp(_, address) => address.to_string(),
            Stream::Unix(stream) => user(stream),
        }
    }

    /// Whether its host has taken all that was sent, and has room for a line that can also be left out.
    pub(crate) fn has_room(&self) -> bool {
        self.0.has_room()
    }

    /// Resolves when it has closed its end, also behind words that nobody has read. Whoever reads on would have to keep them,
    /// however many they are.
    pub(crate) async fn ended(&self) {
        self.0.stream.ended().await;
    }
}

/// Resolves when whoever is at the other end has closed it, if that is known.
pub(crate) async fn ended(peer: Option<&Peer>) {
    match peer {
        Some(it) => it.ended().await,
        None => std::future::pending().await,
    }
}

/// Whose process is at the other end of a socket.
fn user(stream: &UnixStream) -> String {
    let Ok(peer) = stream.peer_cred() else { return "this machine".into() };
    let process = peer.pid().map(|it| format!(", process {it}")).unwrap_or_default();
    format!("user {}{process}", peer.uid())
}

/// A connection of either kind.
#[derive(Debug)]
enum Stream {
    /// Where it comes from is not known any more once it has ended.
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// The same said to a stream of either kind.
macro_rules! either {
    ($stream:expr, $it:ident => $said:expr) => {
        match $stream {
            Stream::Tcp($it, _) => $said,
            Stream::Unix($it) => $said,
        }
    };
}

impl Stream {
    /// Resolves when nothing more will come.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    async fn ended(&self) {
        // We are told of nothing urgent, so what is left of this interest is the end. `READABLE` is also what lies unread.
        while let Ok(ready) = either!(self, it => it.ready(Interest::PRIORITY).await) {
            if ready.is_read_closed() {
                return;
            }
        }
    }

    /// Resolves when nothing more will come. Here only what is written tells of an end behind unread words.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    async fn ended(&self) {
        std::future::pending().await
    }

    /// What has come, as far as there is room. Less than that is all there is: whoever asks again is called then.
    fn read(&self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let (room, mut read) = (buf.remaining(), 0);
        let all = || {
            read = either!(self, it => it.try_read_buf(buf))?;
            if 0 < read && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        let done = either!(self, it => it.try_io(Interest::READABLE, all));
        if 0 < read { Ok(()) } else { done }
    }
}

/// A connection, and, where its other end may be on another host, whether that is known to be alive or noticed to be dead.
#[derive(Debug)]
struct Connection {
    stream: Stream,
    /// The least room that is enough; `None` where the system does not tell how much there is.
    enough: Option<u32>,
}

impl Connection {
    /// Small lines are sent at once, and a host that vanished without a word is noticed.
    fn tcp(stream: TcpStream, address: SocketAddr) -> Self {
        // Half of what there is at the beginning, for a host that has hardly any.
        let enough = Flow::of(&stream).filter(|it| 0 < it.room).map(|it| ROOM.min(it.room / 2));
        // Where the system refuses, the lock is still freed when the connection ends.
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, IDLE);
        let _ = sockopt::set_tcp_keepintvl(&stream, ASK_AGAIN);
        let _ = sockopt::set_tcp_keepcnt(&stream, ASK_TIMES);
        // It counts a host without room as dead, so only where we can see that there is none. Elsewhere the system's own tries
        // tell a dead host from a full one, after a quarter of an hour.
        if enough.is_some() {
            let _ = sockopt::set_tcp_user_timeout(&stream, DEAD_AFTER_MS);
        }
        Connection { stream: Stream::Tcp(stream, address), enough }
    }

    fn has_room(&self) -> bool {
        let (Some(enough), Stream::Tcp(stream, _)) = (self.enough, &self.stream) else { return true };
        Flow::of(stream).is_none_or(|it| it.under_way == 0 && enough <= it.room)
    }
}

/// The words of the system's `struct tcp_info`, up to the last that we read.
type Words = [u32; 58];

#[derive(Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, Words, GetStruct<Words>);

/// Whether the system tells so many words: Linux 5.4 was the first to do so.
static TELLS_ROOM: LazyLock<bool> = LazyLock::new(|| {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().unwrap_or_default().split(|it: char| !it.is_ascii_digit());
    let mut next = || numbers.next().and_then(|it| it.parse::<u32>().ok()).unwrap_or_default();
    (5, 4) <= (next(), next())
});

/// What is on its way to a host, and how much more it takes.
#[derive(Debug)]
struct Flow {
    /// Packets that are not acknowledged, or bytes that are not even sent; zero if there is nothing.
    under_way: u32,
    /// How many bytes its host said it takes.
    room: u32,
}

impl Flow {
    fn of(stream: &TcpStream) -> Option<Self> {
        let told = TELLS_ROOM.then(|| TcpInfo.get(stream).ok())?;
        told.map(|it| Flow { under_way: it[6].saturating_add(it[36]), room: it[57] })
    }
}

/// The way to whoever is at the other end.
#[derive(Debug)]
pub(crate) struct ToPeer(Arc<Connection>);

impl AsyncRead for ToPeer {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = &self.0.stream;
        loop {
            ready!(either!(stream, it => it.poll_read_ready(cx)))?;
            if let Some(done) = unless_blocked(stream.read(buf)) {
                return Poll::Ready(done);
            }
        }
    }
}

impl AsyncWrite for ToPeer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = &self.0.stream;
        loop {
            ready!(either!(stream, it => it.poll_write_ready(cx)))?;
            if let Some(done) = unless_blocked(either!(stream, it => it.try_write_vectored(parts))) {
                return Poll::Ready(done);
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = either!(&self.0.stream, it => shutdown(it, Shutdown::Write));
        Poll::Ready(done.map_err(io::Error::from))
    }
}

/// `None` if there was nothing to do just now after all.
fn unless_blocked<T>(done: io::Result<T>) -> Option<io::Result<T>> {
    match done {
        Err(it) if it.kind() == io::ErrorKind::WouldBlock => None,
        done => Some(done),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use lockkeeper_core::Clock;
    use rustix::net::{AddressFamily, SocketType};
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const LINE: &[u8] = b"{\"event\":\"renewed\",\"valid_for_ms\":10000}\n";

    /// A client whose host has hardly any room, and what the server sees of it.
    async fn client() -> (std::net::TcpStream, Peer, ToPeer) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap();
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let (accepted, address) = listener.accept().await.unwrap();
        let (peer, to) = Peer::on_tcp(accepted, address);
        (socket.into(), peer, to)
    }

    fn tcp(to: &ToPeer) -> &TcpStream {
        let Stream::Tcp(stream, _) = &to.0.stream else { panic!("it is on TCP") };
        stream
    }

    /// Lines as long as there is room for them, and a moment for each to arrive.
    async fn fill(peer: &Peer, to: &mut ToPeer) -> usize {
        let mut sent = 0;
        for _ in 0..200 {
            Clock::boot().sleep(Duration::from_millis(1)).await;
            if peer.has_room() {
                to.write_all(LINE).await.unwrap();
                sent += 1;
            }
        }
        sent
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_sent_no_more_than_its_host_takes() {
        let (mut client, peer, mut to) = client().await;
        let sent = fill(&peer, &mut to).await;
        assert!(0 < sent && sent < 100, "{sent} lines to a host with room for about 20");
        let under_way = || Flow::of(tcp(&to)).unwrap().under_way;
        for _ in 0..1000 {
            // The last of it may not be acknowledged yet.
            if under_way() == 0 {
                break;
            }
            Clock::boot().sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(under_way(), 0, "all of it has arrived");
        // Whoever reads again hears again.
        let mut heard = vec![0; sent * LINE.len()];
        client.read_exact(&mut heard).unwrap();
        assert!(0 < fill(&peer, &mut to).await);
    }

    #[tokio::test]
    async fn a_host_that_vanishes_is_noticed() {
        let (_client, _, to) = client().await;
        let stream = tcp(&to);
        assert_eq!(sockopt::tcp_user_timeout(stream).unwrap(), DEAD_AFTER_MS);
        assert!(sockopt::socket_keepalive(stream).unwrap());
        let asked =
            sockopt::tcp_keepidle(stream).unwrap() + ASK_AGAIN * sockopt::tcp_keepcnt(stream).unwrap();
        assert_eq!(asked, Duration::from_secs(20));
    }
}
