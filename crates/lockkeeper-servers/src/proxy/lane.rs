//! One connection through the proxy: two lanes, each with a reader, a queue and a writer that obeys the rule.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_core::Moment;
use lockkeeper_core::kit::locked;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

use super::flow::Flow;
use super::tape::Tape;
use super::{Direction, Kind, Rule, Shared};

const CHUNK: usize = 16 * 1024;
/// Chunks kept per direction and connection; beyond that the sender has to wait, as with a full socket.
const QUEUE: usize = 64;

/// Counts a connection as open until dropped, also when its task is aborted.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.count(|it| it.open -= 1);
    }
}

/// Why a connection ends with a reset for both sides.
#[derive(PartialEq, Eq)]
enum Cut {
    /// A rule, a trap or the owner of the proxy wants it.
    Wanted,
    /// One side did it.
    Peer,
}

pub(super) async fn connection(shared: Arc<Shared>, mut client: TcpStream) {
    // Before the count, so that whoever saw the count can cut the connection.
    let mut cuts = shared.cuts.subscribe();
    shared.count(|it| (it.accepted, it.open) = (it.accepted + 1, it.open + 1));
    let _open = Open(&shared);
    let upstream = SocketAddr::from(([127, 0, 0, 1], *locked(&shared.upstream)));
    // Not given up for a cut: a dial that is dropped half-way ends in good order, which is no cut.
    let server = TcpStream::connect(upstream).await;
    let Ok(mut server) = server else {
        drop(client.set_zero_linger());
        return;
    };
    let tape = locked(&shared.tapes).begin();
    // Best effort: without it small packets come later, not wrong.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let end = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let (lose_reply, flow) = (AtomicBool::new(false), Flow::new(&shared));
        let lane = |direction| Lane {
            shared: &shared,
            direction,
            flow: &flow,
            lose_reply: &lose_reply,
            tape: tape.as_deref(),
            swallowing: false,
        };
        tokio::select! {
            end = both(
                lane(Direction::ToServer).run(from_client, to_server),
                lane(Direction::ToClient).run(from_server, to_client),
            ) => end,
            _ = cuts.changed() => Err(Cut::Wanted),
            end = flow.watch() => end,
        }
    };
    let Err(cut) = end else { return };
    drop((client.set_zero_linger(), server.set_zero_linger()));
    drop((client, server));
    // After the deed, so that whoever waits for the count finds it done.
    if cut == Cut::Wanted {
        shared.count(|it| it.cut += 1);
    }
}

async fn both(
    one: impl Future<Output = Result<(), Cut>>,
    two: impl Future<Output = Result<(), Cut>>,
) -> Result<(), Cut> {
    tokio::try_join!(one, two).map(drop)
}

/// What was read, and when.
struct Item {
    arrived: Moment,
    what: What,
}

enum What {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One direction of one connection.
struct Lane<'a> {
    shared: &'a Shared,
    direction: Direction,
    flow: &'a Flow<'a>,
    lose_reply: &'a AtomicBool,
    /// Where requests are kept.
    tape: Option<&'a Tape>,
    swallowing: bool,
}

impl Lane<'_> {
    async fn run(mut self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), Cut> {
        let (queue, items) = mpsc::channel(QUEUE);
        both(read(self.flow, from, queue), self.write(items, to)).await
    }

    async fn write(&mut self, mut items: mpsc::Receiver<Item>, mut to: WriteHalf<'_>) -> Result<(), Cut> {
        let mut rules = self.shared.rule(self.direction).subscribe();
        while let Some(item) = items.recv().await {
            self.wait_for_leave(item.arrived, &mut rules).await;
            self.swallowing |= self.flow.is_forgotten();
            match item.what {
                what if self.swallowing => self.swallow(what).await,
                What::Bytes(bytes) => self.forward(&bytes, &mut to).await?,
                // The other side may be gone already.
                What::End => drop(to.shutdown().await),
                What::Reset => return Err(Cut::Peer),
            }
        }
        Ok(())
    }

    /// Wait until the rule lets something go that arrived at `arrived`, to its goal or to nowhere.
    async fn wait_for_leave(&mut self, arrived: Moment, rules: &mut watch::Receiver<Rule>) {
        while !self.swallowing {
            let rule = *rules.borrow_and_update();
            let due = match rule {
                Rule::Pass | Rule::CutAfter(_) => return,
                Rule::Drop => {
                    self.swallowing = true;
                    return;
                }
                Rule::Delay(span) => arrived.after(span),
                Rule::Hold => Moment::NEVER,
            };
            tokio::select! {
                () = self.shared.clock.sleep_until(due) => return,
                // The sender lives in `shared`, as long as we do.
                _ = rules.changed() => {}
            }
        }
    }

    async fn swallow(&self, what: What) {
        match what {
            What::Bytes(bytes) => self.shared.count(|it| it.dropped += bytes.len()),
            // The far side is never told.
            What::End | What::Reset => pending().await,
        }
    }

    async fn forward(&mut self, bytes: &[u8], to: &mut WriteHalf<'_>) -> Result<(), Cut> {
        if self.direction == Direction::ToClient && self.lose_reply.load(Ordering::SeqCst) {
            return Err(Cut::Wanted);
        }
        match self.shared.spring(self.direction, bytes) {
            Some(Kind::Request) => return Err(Cut::Wanted),
            Some(Kind::Kept) => {
                self.shared.count(|it| it.kept += 1);
                // The sender lives in `shared`, as long as we do.
                drop(self.shared.keeping.subscribe().wait_for(|it| !it).await);
            }
            Some(Kind::Reply) => self.lose_reply.store(true, Ordering::SeqCst),
            Some(Kind::Message) => {
                self.shared.count(|it| it.dropped += bytes.len());
                return Ok(());
            }
            None => {}
        }
        let (bytes, cut) = self.allowance(bytes);
        if let (Direction::ToServer, Some(tape)) = (self.direction, self.tape) {
            tape.add(bytes);
        }
        // Before the deed, so that whoever hears the answer finds it counted.
        self.flow.pass(self.direction);
        // A failure is not ours to tell: the reader of that socket sees it, and its own rule decides.
        if to.write_all(bytes).await.is_ok() {
            let length = bytes.len();
            self.shared.count(|it| match self.direction {
                Direction::ToServer => it.to_server += length,
                Direction::ToClient => it.to_client += length,
            });
        }
        if cut { Err(Cut::Wanted) } else { Ok(()) }
    }

    /// As many of these bytes as `CutAfter` allows, and whether to cut after them.
    fn allowance<'b>(&self, bytes: &'b [u8]) -> (&'b [u8], bool) {
        let mut allowed = (bytes, false);
        self.shared.rule(self.direction).send_if_modified(|rule| {
            let Rule::CutAfter(left) = rule else { return false };
            if bytes.len() < *left {
                *left -= bytes.len();
            } else {
                allowed = (&bytes[..*left], true);
                *rule = Rule::Pass;
            }
            true
        });
        allowed
    }
}

async fn read(flow: &Flow<'_>, mut from: ReadHalf<'_>, queue: mpsc::Sender<Item>) -> Result<(), Cut> {
    loop {
        let mut bytes = vec![0; CHUNK];
        let what = match from.read(&mut bytes).await {
            Ok(0) => What::End,
            Ok(length) => {
                bytes.truncate(length);
                What::Bytes(bytes)
            }
            Err(_) => What::Reset,
        };
        let last = !matches!(what, What::Bytes(_));
        let arrived = flow.hear();
        if queue.send(Item { arrived, what }).await.is_err() || last {
            return Ok(());
        }
    }
}
