//! A cluster: which server keeps which slot, and a connection to each; redirects followed, every repetition known.
//! Which servers are of our cluster is judged in `cluster.rs`.
//!
//! The client library can do this too. But it repeats a command without telling, and then nobody knows that the first
//! copy may still be on its way; it asks servers one after the other, so that a frozen one holds up all; and it
//! introduces itself to every server by a command for which a user with the least rights has none.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::locked;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;

use crate::cluster::{self, Members, Told, Verdict};
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

/// A server that is spoken to for longer is looked at again: it may have been reset while its connections stayed open.
const VOUCHED_FOR: Duration = Duration::from_secs(5);

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
            Way::Moved(host) | Way::Ask(host) => self.reach(doing, host).await,
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
        let opened = self.reach(doing, &keeper).await;
        if opened.is_err() {
            self.look_anew().await;
            if let Some(other) = self.keeper_of(slot).filter(|it| *it != keeper) {
                return self.reach(doing, &other).await;
            }
        }
        opened
    }

    /// All servers that keep slots.
    pub(crate) async fn primaries(&self, doing: &'static str) -> Result<Vec<Host>, Fault> {
        if locked(&self.0.dialer.slots).is_empty() {
            self.look(doing).await?;
        }
        let slots = locked(&self.0.dialer.slots).clone();
        Ok(union(slots.iter().map(|it| &it.2)))
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

    /// Ask all servers at once who keeps what, and believe those of the cluster that most of them are in.
    async fn ask_all(&self, doing: &'static str) -> Result<(), Fault> {
        let named = &self.0.dialer.options.hosts;
        let slots = locked(&self.0.dialer.slots).clone();
        let hosts = union(named.iter().chain(slots.iter().map(|it| &it.2)));
        let electors = union(named.iter().chain(self.members().hosts()));
        let mut answers: FuturesUnordered<_> = hosts.iter().map(|it| self.told_by(doing, it)).collect();
        let (mut words, mut lives, mut last) = (Vec::new(), Vec::new(), None);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((live, word)) => {
                    lives.push(live);
                    words.push(word);
                }
                Err(fault) => last = Some(fault),
            }
            if let Verdict::Ours(at) = cluster::judge(&electors, &words, answers.is_empty()) {
                let ours = words[at].1.clone();
                for (live, _) in lives.iter().zip(&words).filter(|it| it.1.1.members.is_kin(&ours.members)) {
                    self.vouch(live);
                }
                self.believe(ours);
                return Ok(());
            }
        }
        Err(nobody_believed(doing, &electors, &words, last))
    }

    fn believe(&self, told: Told) {
        *locked(&self.0.dialer.members) = told.members;
        let before = std::mem::replace(&mut *locked(&self.0.dialer.slots), told.ranges.clone());
        if !before.is_empty() && before != told.ranges {
            (self.0.moved)();
        }
    }

    async fn told_by(&self, doing: &'static str, host: &Host) -> Result<(Live, (Host, Told)), Fault> {
        let live = self.link(host).open(doing).await?;
        let told = self.ask(host, &live).await.map_err(|it| live.fault(doing, it))?;
        if told.ranges.is_empty() {
            let what = format!("{host} knows of no slots: it is no member of a cluster yet");
            return Err(Fault::transient(fault::NAME, doing, what));
        }
        Ok((live, (host.clone(), told)))
    }

    /// Ask this server about its cluster.
    async fn ask(&self, host: &Host, live: &Live) -> RedisResult<Told> {
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let answer = live.send(&command, self.0.dialer.options.timeout).await?;
        Ok(cluster::read(&answer, host))
    }

    fn members(&self) -> Arc<Members> {
        locked(&self.0.dialer.members).clone()
    }

    fn vouch(&self, live: &Live) {
        *locked(live.vouched()) = Some(self.0.dialer.clock.now());
    }

    /// The connection to this server, if it is one of our cluster. It may have been wiped since we knew it, and stand for a
    /// cluster of its own at the same address.
    pub(crate) async fn reach(&self, doing: &'static str, host: &Host) -> Result<Live, Fault> {
        let live = self.link(host).open(doing).await?;
        let now = self.0.dialer.clock.now();
        let before = {
            let mut vouched = locked(live.vouched());
            let before = *vouched;
            if before.is_some_and(|at| VOUCHED_FOR <= now - at) {
                *vouched = Some(now);
            }
            before
        };
        match before {
            Some(at) if now - at < VOUCHED_FOR => {}
            Some(_) => self.look_at(host, &live),
            None => {
                // Boxed: what is done once for each connection would be in every call.
                let ours = Box::pin(self.is_ours(host, &live)).await.map_err(|it| live.fault(doing, it))?;
                return if ours { Ok(live) } else { Err(stranger(doing, host)) };
            }
        }
        Ok(live)
    }

    /// See whether this server is still one of our cluster. Nobody waits for that: what is given back must go out also
    /// where no answer comes any more.
    fn look_at(&self, host: &Host, live: &Live) {
        let (shards, host, live) = (self.clone(), host.clone(), live.clone());
        self.0.home.spawn(async move {
            if let Ok(false) = shards.is_ours(&host, &live).await {
                live.give_up();
            }
        });
    }

    /// Ask this server whether it is one of our cluster. One that keeps nothing yet says so to whoever asks for more.
    async fn is_ours(&self, host: &Host, live: &Live) -> RedisResult<bool> {
        let told = self.ask(host, live).await?;
        let mut ours = told.members.is_empty() || told.members.is_kin(&self.members());
        if !ours {
            // Perhaps it is we who know an older one.
            self.look_anew().await;
            ours = told.members.is_kin(&self.members());
        }
        if ours && !told.members.is_empty() {
            self.vouch(live);
        }
        Ok(ours)
    }

    /// Each named server, and whether it is one of our cluster, or why it does not tell.
    pub(crate) async fn roll_call(
        &self,
        doing: &'static str,
    ) -> Result<Vec<(Host, Result<bool, Fault>)>, Fault> {
        self.look(doing).await?;
        let ours = self.members();
        let asked = self.0.dialer.options.hosts.iter().map(async |host| {
            let told = self.told_by(doing, host).await;
            (host.clone(), told.map(|(_, word)| word.1.members.is_kin(&ours)))
        });
        Ok(join_all(asked).await)
    }
}

fn nobody_believed(
    doing: &'static str,
    electors: &[Host],
    words: &[(Host, Told)],
    last: Option<Fault>,
) -> Fault {
    let fault = |what: String| Fault::transient(fault::NAME, doing, what);
    if words.is_empty() {
        return last.unwrap_or_else(|| fault("no server of the cluster is known".to_owned()));
    }
    let others = last.map_or(String::new(), |it| format!("; of those that do not tell: {}", it.message));
    fault(format!(
        "{}: no cluster has most of the {} nodes that are named in the URL or known, so none is used; start the others, \
         let a node that was wiped join them again, and name only nodes of one cluster{others}",
        cluster::in_words(words),
        electors.len(),
    ))
}

fn stranger(doing: &'static str, host: &Host) -> Fault {
    let what = format!(
        "{host} belongs to another cluster than most of the nodes that are named in the URL or known, and is not used; \
         let it join them again, or name only nodes of one cluster"
    );
    Fault::transient(fault::NAME, doing, what)
}

/// Each once.
fn union<'a>(hosts: impl Iterator<Item = &'a Host>) -> Vec<Host> {
    let mut hosts: Vec<_> = hosts.cloned().collect();
    hosts.sort_unstable_by_key(Host::to_string);
    hosts.dedup();
    hosts
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
