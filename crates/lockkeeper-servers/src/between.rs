//! What servers of one cluster say to each other goes through gates, one before each of them. Who dials is known by its process,
//! so any two can be parted while clients reach both.
//!
//! ```text
//!   server 0 ──▶ gate of 1 ──▶ server 1      kept back while the two are on different sides
//! ```
//! Nothing is lost: what is kept back arrives when they are joined again, as by a network that is repaired before anybody gives up.

use std::fs;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::daemon::Daemon;
use crate::process::KitError;

/// The side of each server, by its number.
type Sides = watch::Receiver<Vec<u8>>;

/// One port at which a server hears its peers, and the gate before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    /// The number of the server.
    pub(crate) number: usize,
    pub(crate) server: u16,
    pub(crate) gate: u16,
}

impl Door {
    /// Whether there is a gate. Where there is none, both ports are one.
    pub(crate) fn is_gated(&self) -> bool {
        self.server != self.gate
    }
}

/// The gates of one cluster. Dropped, they are shut.
#[derive(Debug)]
pub(crate) struct Gates {
    sides: watch::Sender<Vec<u8>>,
    tasks: Vec<AbortHandle>,
}

impl Gates {
    /// A gate for each door. The servers need not run yet.
    pub(crate) async fn open<N>(nodes: &Arc<Vec<N>>, doors: &[Door]) -> Result<Self, KitError>
    where
        N: Deref<Target = Daemon> + Send + Sync + 'static,
    {
        let mut gates = Gates { sides: watch::Sender::new(vec![0; nodes.len()]), tasks: Vec::new() };
        for door in doors {
            let listener = TcpListener::bind(("127.0.0.1", door.gate)).await?;
            let way = Way { nodes: Arc::downgrade(nodes), door: *door };
            let sides = gates.sides.subscribe();
            gates.tasks.push(tokio::spawn(serve(listener, way, sides)).abort_handle());
        }
        Ok(gates)
    }

    /// Those on different sides hear nothing of each other from now on.
    pub(crate) fn part(&self, sides: &[u8]) {
        self.sides.send_replace(sides.to_vec());
    }

    /// All hear each other, and what was kept back.
    pub(crate) fn join(&self) {
        self.sides.send_modify(|it| it.fill(0));
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The way to one server.
struct Way<N> {
    nodes: Weak<Vec<N>>,
    door: Door,
}

impl<N: Deref<Target = Daemon>> Way<N> {
    /// Which of the servers has the other end of a connection to this gate; `None` for anybody else.
    fn dialled_by(&self, port: u16) -> Option<usize> {
        let inode = inode(&fs::read_to_string("/proc/net/tcp").ok()?, port, self.door.gate)?;
        let nodes = self.nodes.upgrade()?;
        nodes.iter().position(|it| it.pid().is_some_and(|pid| has_socket(pid, &inode)))
    }
}

async fn serve<N>(listener: TcpListener, way: Way<N>, sides: Sides)
where
    N: Deref<Target = Daemon> + Send + Sync + 'static,
{
    let mut all = JoinSet::new();
    loop {
        tokio::select! {
            dialled = listener.accept() => {
                // An error here is that of one connection which ended before we took it.
                let Ok((client, from)) = dialled else { continue };
                let pair = way.dialled_by(from.port()).map(|it| (it, way.door.number));
                all.spawn(carry(client, way.door.server, pair, sides.clone()));
            }
            Some(_) = all.join_next() => {}
        }
    }
}

/// Between two, until one of them ends it.
async fn carry(client: TcpStream, server: u16, pair: Option<(usize, usize)>, sides: Sides) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // Small messages in both directions; nobody may wait for the next one.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let ((from, back), (answers, to)) = (client.into_split(), server.into_split());
    // Broken in one direction, it is broken.
    drop(tokio::try_join!(pump(from, to, pair, sides.clone()), pump(answers, back, pair, sides)));
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    pair: Option<(usize, usize)>,
    mut sides: Sides,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if let Some((one, other)) = pair {
            // The gates are gone with their sender: then nothing more is kept back.
            drop(sides.wait_for(|it| it.get(one) == it.get(other)).await);
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// The number of the socket with these two ports in the kernel's list.
fn inode(list: &str, own: u16, other: u16) -> Option<String> {
    let (own, other) = (format!(":{own:04X}"), format!(":{other:04X}"));
    let mut rows = list.lines().map(|it| it.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|it| {
        it.get(1).is_some_and(|it| it.ends_with(&own)) && it.get(2).is_some_and(|it| it.ends_with(&other))
    })?;
    row.get(9).map(|it| (*it).to_owned())
}

fn has_socket(pid: u32, inode: &str) -> bool {
    let wanted = format!("socket:[{inode}]");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|it| fs::read_link(it.path()).ok()).any(|it| it.as_os_str() == wanted.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_process_at_the_other_end_of_a_connection_is_found() -> Result<(), KitError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let client = TcpStream::connect(at).await?;
        let (_server, from) = listener.accept().await?;
        let list = fs::read_to_string("/proc/net/tcp")?;
        let socket = inode(&list, from.port(), at.port()).ok_or_else(|| KitError::new("no socket"))?;
        assert!(has_socket(std::process::id(), &socket), "{client:?}");
        assert!(!has_socket(std::process::id(), "0"));
        assert!(inode(&list, at.port(), 1).is_none());
        Ok(())
    }
}
