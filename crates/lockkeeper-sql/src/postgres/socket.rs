//! A socket of our own, by which the driver speaks to a server. One event loop hears it at a time, and it can move.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::kit::locked;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Handle, Id};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::joint;

/// A server that has gone is told as an error and not by a signal.
#[cfg(not(target_vendor = "apple"))]
const QUIETLY: SendFlags = SendFlags::NOSIGNAL;
/// There it was said to the socket when it was made.
#[cfg(target_vendor = "apple")]
const QUIETLY: SendFlags = SendFlags::empty();

/// Where one server listens.
#[derive(Debug)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// All addresses of the first host of a configuration.
pub(super) async fn addresses(config: &Config) -> io::Result<Vec<Address>> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let name = match (config.get_hostaddrs().first(), config.get_hosts().first()) {
        (Some(address), _) => return Ok(vec![Address::Tcp((*address, port).into())]),
        (None, Some(Host::Tcp(name))) => name,
        (None, Some(Host::Unix(folder))) => {
            return Ok(vec![Address::Unix(folder.join(format!(".s.PGSQL.{port}")))]);
        }
        (None, None) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the URL names no host")),
    };
    let found: Vec<_> = tokio::net::lookup_host((name.as_str(), port)).await?.map(Address::Tcp).collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{name:?} has no address")));
    }
    Ok(found)
}

/// What the driver would set.
fn keep_alive(stream: &impl AsFd, config: &Config) -> io::Result<()> {
    if config.get_keepalives() {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, config.get_keepalives_idle())?;
        if let Some(interval) = config.get_keepalives_interval() {
            sockopt::set_tcp_keepintvl(stream, interval)?;
        }
        if let Some(times) = config.get_keepalives_retries() {
            sockopt::set_tcp_keepcnt(stream, times)?;
        }
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(span) = config.get_tcp_user_timeout() {
        let millis = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, millis)?;
    }
    Ok(())
}

/// The socket, as whoever moves it knows it.
pub(super) struct Socket {
    home: Handle,
    heard: Mutex<Heard>,
}

/// By whose event loop it is heard, and written to.
struct Heard {
    by: Ear,
    lent_to: Option<Id>,
}

/// A socket as one event loop knows it.
enum Ear {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Ear {
    /// On the present runtime.
    async fn connect(config: &Config, address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream, config)?;
                Ok(Ear::Tcp(stream))
            }
            Address::Unix(path) => UnixStream::connect(path).await.map(Ear::Unix),
        }
    }

    /// The same socket for the event loop of another runtime.
    fn twin(&self, there: &Handle) -> io::Result<Self> {
        let fd = self.as_fd().try_clone_to_owned()?;
        let _there = there.enter();
        match self {
            Ear::Tcp(_) => TcpStream::from_std(fd.into()).map(Ear::Tcp),
            Ear::Unix(_) => UnixStream::from_std(fd.into()).map(Ear::Unix),
        }
    }
}

impl AsFd for Ear {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Ear::Tcp(it) => it.as_fd(),
            Ear::Unix(it) => it.as_fd(),
        }
    }
}

impl Socket {
    /// Connect, on the present runtime, which is its home.
    pub(super) async fn connect(config: &Config, address: &Address) -> io::Result<Arc<Self>> {
        let patience = config.get_connect_timeout().copied().unwrap_or(Duration::MAX);
        let clock = Clock::boot();
        let connecting = std::pin::pin!(Ear::connect(config, address));
        let connected = clock.within(clock.now().after(patience), connecting).await;
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        let heard = Heard { by: connected.unwrap_or_else(late)?, lent_to: None };
        Ok(Arc::new(Socket { home: Handle::current(), heard: Mutex::new(heard) }))
    }

    /// The same socket for the driver.
    pub(super) fn stream(self: &Arc<Self>) -> Stream {
        Stream(self.clone())
    }

    /// Ask the system. What fails while a caller's event loop hears it may be the end of that: so it is asked at home, too.
    fn poll<T>(&self, mut ask: impl FnMut(&mut Ear) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut heard = locked(&self.heard);
        let answer = ask(&mut heard.by);
        if heard.lent_to.is_none() || !matches!(answer, Poll::Ready(Err(_))) {
            return answer;
        }
        heard.go(&self.home, None);
        ask(&mut heard.by)
    }
}

impl Heard {
    /// `false` if that cannot be: then nothing has changed.
    fn go(&mut self, there: &Handle, lent_to: Option<Id>) -> bool {
        let Ok(by) = self.by.twin(there) else { return false };
        *self = Heard { by, lent_to };
        true
    }
}

impl joint::Socket for Socket {
    fn lent_to(&self) -> Option<Id> {
        locked(&self.heard).lent_to
    }

    fn lend(&self, to: &Handle) -> bool {
        // Tokio panics where a runtime was built without input and output. Its own words are on standard error then.
        let go = || locked(&self.heard).go(to, Some(to.id()));
        to.id() != self.home.id() && catch_unwind(AssertUnwindSafe(go)).unwrap_or(false)
    }

    fn take_home(&self) {
        // If our own runtime has ended, so has the connection.
        locked(&self.heard).go(&self.home, None);
    }

    fn has_news(&self) -> bool {
        let heard = locked(&self.heard);
        let looked = recv(&heard.by, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // Its end is news, too.
        !matches!(looked, Err(Errno::AGAIN | Errno::INTR))
    }
}

/// What the driver reads and writes.
pub(super) struct Stream(Arc<Socket>);

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|by| match by {
            Ear::Tcp(it) => Pin::new(it).poll_read(cx, buf),
            Ear::Unix(it) => Pin::new(it).poll_read(cx, buf),
        })
    }
}

impl AsyncWrite for Stream {
    /// Most often there is room, and no event loop need say so: one that has just got the socket does not know yet.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll(|by| match (send(&*by, buf, QUIETLY), by) {
            (Err(Errno::AGAIN | Errno::INTR), Ear::Tcp(it)) => Pin::new(it).poll_write(cx, buf),
            (Err(Errno::AGAIN | Errno::INTR), Ear::Unix(it)) => Pin::new(it).poll_write(cx, buf),
            (sent, _) => Poll::Ready(sent.map_err(io::Error::from)),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|by| match by {
            Ear::Tcp(it) => Pin::new(it).poll_shutdown(cx),
            Ear::Unix(it) => Pin::new(it).poll_shutdown(cx),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use joint::Socket as _;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Relaxed: on one thread.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Let its event loop look.
    fn turn(runtime: &Runtime) {
        runtime.block_on(async {
            // Longer than tokio goes on without looking.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        });
    }

    fn read(stream: &mut Stream, woken: &Arc<Woken>) -> Poll<io::Result<Vec<u8>>> {
        let mut bytes = [0; 8];
        let mut buf = ReadBuf::new(&mut bytes);
        let waker = Waker::from(woken.clone());
        let polled = Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut buf);
        polled.map_ok(|()| buf.filled().to_vec())
    }

    fn is(read: Poll<io::Result<Vec<u8>>>, bytes: &[u8]) -> bool {
        matches!(read, Poll::Ready(Ok(it)) if it == bytes)
    }

    fn connected(home: &Runtime) -> (Arc<Socket>, std::net::TcpStream) {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(server.local_addr().unwrap());
        let socket = home.block_on(Socket::connect(&Config::new(), &address)).unwrap();
        (socket, server.accept().unwrap().0)
    }

    #[test]
    fn the_event_loop_that_has_it_hears_it_and_no_other() {
        let (home, caller, woken) = (runtime(), runtime(), Arc::<Woken>::default());
        let (socket, mut server) = connected(&home);
        let mut stream = socket.stream();
        assert!(read(&mut stream, &woken).is_pending());
        server.write_all(b"one").unwrap();
        turn(&home);
        assert_eq!(woken.times(), 1);
        assert!(is(read(&mut stream, &woken), b"one"));

        assert!(socket.lend(caller.handle()));
        assert_eq!(socket.lent_to(), Some(caller.handle().id()));
        assert!(read(&mut stream, &woken).is_pending());
        assert!(!socket.has_news());
        server.write_all(b"two").unwrap();
        turn(&home);
        assert_eq!(woken.times(), 0, "it is the caller's to hear");
        assert!(socket.has_news());
        turn(&caller);
        assert_eq!(woken.times(), 1);
        assert!(is(read(&mut stream, &woken), b"two"));

        // What has come before it moves is heard where it goes.
        server.write_all(b"three").unwrap();
        socket.take_home();
        assert_eq!(socket.lent_to(), None);
        turn(&home);
        assert!(is(read(&mut stream, &woken), b"three"));

        // What is written does not wait for an event loop.
        assert!(socket.lend(caller.handle()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut stream).poll_write(&mut cx, b"four"), Poll::Ready(Ok(4))));
    }

    #[test]
    fn it_comes_home_when_the_runtime_that_has_it_ends() {
        let (home, caller, woken) = (runtime(), runtime(), Arc::<Woken>::default());
        let (socket, mut server) = connected(&home);
        let mut stream = socket.stream();
        assert!(socket.lend(caller.handle()));
        assert!(read(&mut stream, &woken).is_pending());
        drop(caller);
        assert_eq!(woken.times(), 1, "whoever polls the work hears of it");
        assert!(read(&mut stream, &woken).is_pending());
        assert_eq!(socket.lent_to(), None);
        server.write_all(b"one").unwrap();
        turn(&home);
        assert!(is(read(&mut stream, &woken), b"one"));
    }

    #[test]
    fn a_runtime_without_input_and_output_does_not_get_it() {
        let (home, bare, woken) = (runtime(), Builder::new_current_thread().build().unwrap(), Arc::default());
        let (socket, mut server) = connected(&home);
        assert!(!socket.lend(bare.handle()));
        assert!(!socket.lend(home.handle()), "it is there");
        let mut stream = socket.stream();
        server.write_all(b"one").unwrap();
        turn(&home);
        assert!(is(read(&mut stream, &woken), b"one"), "and is heard as before");
    }

    #[test]
    fn an_address_is_a_name_a_number_or_a_folder() {
        let of = |text: &str| runtime().block_on(addresses(&text.parse::<Config>().unwrap()));
        let tcp = |text: &str| matches!(&of(text).unwrap()[..], [Address::Tcp(it), ..] if it.to_string() == "127.0.0.1:7");
        assert!(tcp("host=127.0.0.1 port=7") && tcp("host=nowhere.invalid hostaddr=127.0.0.1 port=7"));
        let unix = of("host=/run/it").unwrap();
        assert!(matches!(&unix[..], [Address::Unix(it)] if it.ends_with("it/.s.PGSQL.5432")));
        assert!(of("dbname=x").is_err());
    }
}
