//! A cluster: which server keeps which slot, and a connection to each; redirects followed, every repetition known.
//!
//! The client library can do this too. But it repeats a command without telling, and then nobody knows that the first
//! copy may still be on its way; it asks servers one after the other, so that a frozen one holds up all; and it
//! introduces itself to every server by a command for which a user with the least rights has none.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::locked;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::connection::{Asked, Link, Live, Tried};
use crate::dial::{Goal, Range, SharedDialer};
use crate::fault;
use crate::joint::Joint;
use crate::options::Host;
use crate::script::{Call, Script};
use crate::wake::Ear;

/// How often a call may be sent elsewhere, or again because the cluster is changing.
const REDIRECTS: u32 = 8;

/// Pause before a call is sent again to a cluster that is changing.
const PAUSE: Duration = Duration::from_millis(25);

/// The connections to a cluster.
#[derive(Clone)]
pub(crate) struct Shards(Arc<Nodes>);

struct Nodes {
    dialer: SharedDialer,
    ear: Option<Ear>,
    for_calls: bool,
    home: Handle,
    links: Mutex<Vec<(Host, Link)>>,
    looking: Joint<()>,
    /// Called when another server keeps a slot than we thought.
    moved: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("nodes", &locked(&self.0.links).len()).finish_non_exhaustive()
    }
}

/// Where to send a call.
enum Way {
    Usual,
    /// The server said that this one keeps the slot from now on.
    Moved(Host),
    /// The slot is on its way to this one.
    Ask(Host),
}

impl Shards {
    pub(crate) fn new(
        dialer: SharedDialer,
        ear: Option<Ear>,
        for_calls: bool,
        home: Handle,
        moved: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        let (links, looking) = (Mutex::default(), Joint::default());
        Shards(Arc::new(Nodes { dialer, ear, for_calls, home, links, looking, moved }))
    }

    pub(crate) fn is_open(&self) -> bool {
        locked(&self.0.links).iter().any(|it| it.1.is_open())
    }

    /// Whether the connection to the server that keeps this slot is open, as far as we know who that is.
    pub(crate) fn is_open_for(&self, slot: u16) -> bool {
        let ranges = locked(&self.0.dialer.slots).clone();
        let keeper = keeper_in(&ranges, slot);
        keeper.is_some_and(|it| locked(&self.0.links).iter().any(|(host, link)| host == it && link.is_open()))
    }

    pub(crate) fn is_stuck(&self) -> bool {
        locked(&self.0.links).iter().any(|it| it.1.is_stuck())
    }

    /// Call a script at the server that keeps this slot; if no answer comes, once more, there or where it is kept then.
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        slot: u16,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
    ) -> Asked<Value> {
        let (mut way, mut in_doubt, mut rounds) = (Way::Usual, false, 0);
        loop {
            let tried = self.call_once(doing, slot, script, call, patience, &way).await;
            rounds += 1;
            let again = rounds < REDIRECTS;
            match &tried {
                Tried::Answered(Err(error), _) if again && redirect(error).is_some() => {
                    way = redirect(error).unwrap_or(Way::Usual);
                    if let Way::Moved(host) = &way {
                        self.note_move(slot, host);
                    }
                    continue;
                }
                Tried::Answered(Err(error), _) if again && is_changing(error) => {
                    way = Way::Usual;
                    self.0.dialer.clock.sleep(PAUSE).await;
                    self.look_anew().await;
                    continue;
                }
                Tried::Unanswered(_) if !in_doubt => {
                    (way, in_doubt) = (Way::Usual, true);
                    self.look_anew().await;
                    continue;
                }
                Tried::NotSent(_) | Tried::Unanswered(_) | Tried::Answered(..) => {}
            }
            let asked = tried.told(doing, &self.0.dialer);
            return Asked { in_doubt: in_doubt || asked.in_doubt, ..asked };
        }
    }

    async fn call_once(
        &self,
        doing: &'static str,
        slot: u16,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
        way: &Way,
    ) -> Tried {
        let opened = match way {
            Way::Usual => self.open(doing, slot).await,
            Way::Moved(host) | Way::Ask(host) => self.link(host).open(doing).await,
        };
        let live = match opened {
            Ok(live) => live,
            Err(fault) => return Tried::NotSent(fault),
        };
        let sent_at = self.0.dialer.clock.now();
        let answer = live.eval(script, call, patience, matches!(way, Way::Ask(_))).await;
        live.judge(answer, sent_at)
    }

    /// The connection to the server that keeps this slot. If it does not answer, perhaps another keeps the slot by now.
    pub(crate) async fn open(&self, doing: &'static str, slot: u16) -> Result<Live, Fault> {
        if self.keeper_of(slot).is_none() {
            self.look(doing).await?;
        }
        let keeper = self.keeper_of(slot).ok_or_else(|| {
            let what = format!("no server of the cluster keeps slot {slot}; see CLUSTER INFO");
            Fault::transient(fault::NAME, doing, what)
        })?;
        let opened = self.link(&keeper).open(doing).await;
        if opened.is_err() {
            self.look_anew().await;
            if let Some(other) = self.keeper_of(slot).filter(|it| *it != keeper) {
                return self.link(&other).open(doing).await;
            }
        }
        opened
    }

    /// All servers that keep slots.
    pub(crate) async fn primaries(&self, doing: &'static str) -> Result<Vec<Host>, Fault> {
        if locked(&self.0.dialer.slots).is_empty() {
            self.look(doing).await?;
        }
        let mut hosts: Vec<_> = locked(&self.0.dialer.slots).iter().map(|it| it.2.clone()).collect();
        hosts.sort_unstable_by_key(Host::to_string);
        hosts.dedup();
        Ok(hosts)
    }

    pub(crate) fn link(&self, host: &Host) -> Link {
        let mut links = locked(&self.0.links);
        if let Some((_, link)) = links.iter().find(|it| it.0 == *host) {
            return link.clone();
        }
        let (nodes, goal) = (&self.0, Goal::Node(host.clone()));
        let (ear, home) = (nodes.ear.clone(), nodes.home.clone());
        let link = Link::new(nodes.dialer.clone(), goal, ear, nodes.for_calls, home);
        links.push((host.clone(), link.clone()));
        link
    }

    fn keeper_of(&self, slot: u16) -> Option<Host> {
        keeper_in(&locked(&self.0.dialer.slots), slot).cloned()
    }

    /// Follow a redirect of a command that is not a script. Whether there was one.
    pub(crate) fn follow(&self, slot: u16, error: &RedisError) -> bool {
        match redirect(error) {
            Some(Way::Moved(host)) => {
                self.note_move(slot, &host);
                true
            }
            _ => false,
        }
    }

    /// A server told that another keeps the slot: believe it for this slot, and look at the rest when it is needed.
    fn note_move(&self, slot: u16, host: &Host) {
        let mut ranges = locked(&self.0.dialer.slots);
        let mut changed = Vec::with_capacity(ranges.len() + 2);
        for (last, first, keeper) in ranges.iter() {
            if slot < *first || *last < slot {
                changed.push((*last, *first, keeper.clone()));
                continue;
            }
            if *first < slot {
                changed.push((slot - 1, *first, keeper.clone()));
            }
            if slot < *last {
                changed.push((*last, slot + 1, keeper.clone()));
            }
        }
        changed.push((slot, slot, host.clone()));
        changed.sort_unstable_by_key(|it| it.0);
        *ranges = changed.into();
        drop(ranges);
        (self.0.moved)();
    }

    /// Look who keeps what, because something failed. That this fails too is no news.
    async fn look_anew(&self) {
        let _ = self.look("looking at the cluster").await;
    }

    async fn look(&self, doing: &'static str) -> Result<(), Fault> {
        let shards = self.clone();
        self.0.looking.join(doing, || async move { shards.ask_all(doing).await }).await
    }

    /// Ask all servers at once who keeps what, and believe the first that tells.
    async fn ask_all(&self, doing: &'static str) -> Result<(), Fault> {
        let mut hosts = self.0.dialer.options.hosts.clone();
        hosts.extend(locked(&self.0.dialer.slots).iter().map(|it| it.2.clone()));
        hosts.sort_unstable_by_key(Host::to_string);
        hosts.dedup();
        let mut answers: FuturesUnordered<_> = hosts.iter().map(|it| self.told_by(doing, it)).collect();
        let mut last = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(ranges) => {
                    let before = std::mem::replace(&mut *locked(&self.0.dialer.slots), ranges.clone());
                    if !before.is_empty() && before != ranges {
                        (self.0.moved)();
                    }
                    return Ok(());
                }
                Err(fault) => last = Some(fault),
            }
        }
        Err(last.unwrap_or_else(|| Fault::transient(fault::NAME, doing, "no server of the cluster is known")))
    }

    async fn told_by(&self, doing: &'static str, host: &Host) -> Result<Arc<[Range]>, Fault> {
        let live = self.link(host).open(doing).await?;
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let answer = live.send(&command, self.0.dialer.options.timeout).await;
        let answer = answer.map_err(|it| live.fault(doing, it))?;
        let ranges = ranges(&answer, host);
        if ranges.is_empty() {
            let what = format!("{host} knows of no slots: it is no member of a cluster yet");
            return Err(Fault::transient(fault::NAME, doing, what));
        }
        Ok(ranges)
    }
}

fn keeper_in(ranges: &[Range], slot: u16) -> Option<&Host> {
    let at = ranges.partition_point(|it| it.0 < slot);
    ranges.get(at).filter(|it| it.1 <= slot).map(|it| &it.2)
}

/// Where the answer sends us, if it does.
fn redirect(error: &RedisError) -> Option<Way> {
    let (address, _) = error.redirect_node()?;
    let (name, port) = address.rsplit_once(':')?;
    let host = Host { name: name.to_owned(), port: port.parse().ok()? };
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Ask) => Some(Way::Ask(host)),
        _ => Some(Way::Moved(host)),
    }
}

/// Whether the cluster did nothing with the call because it is about to change, or has changed.
fn is_changing(error: &RedisError) -> bool {
    matches!(error.code(), Some("TRYAGAIN" | "CLUSTERDOWN" | "READONLY" | "LOADING" | "MASTERDOWN"))
}

/// What `CLUSTER SLOTS` tells, as `asked` tells it: a server without a name is itself.
fn ranges(answer: &Value, asked: &Host) -> Arc<[Range]> {
    let read = |range: &Value| {
        let [first, last, keeper, ..] = items(range) else { return None };
        let [name, port, ..] = items(keeper) else { return None };
        let name = match name {
            Value::BulkString(it) if !it.is_empty() => String::from_utf8(it.clone()).ok()?,
            Value::SimpleString(it) if !it.is_empty() => it.clone(),
            _ => asked.name.clone(),
        };
        Some((number(last)?, number(first)?, Host { name, port: number(port)? }))
    };
    let mut ranges: Vec<_> = items(answer).iter().filter_map(read).collect();
    ranges.sort_unstable_by_key(|it| it.0);
    ranges.into()
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(it) => it,
        _ => &[],
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(it) => u16::try_from(*it).ok(),
        _ => None,
    }
}
