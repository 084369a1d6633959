//! A place in a line: an ephemeral node of ours. The line is the order of the numbers that the store gave.
//!
//! ```text
//!          create and list                 told, and proven by a write
//!   out ──────────────────▶ in line ─────────────────────────────────▶ inside
//!    ▲ ▲                     │    ▲ predecessor watched                   │
//!    │ └── leave ────────────┴────│───────────────────────────────────────┤
//!    └──── node gone: session lost, or removed by hand ───────────────────┘
//! ```
//!
//! Whoever shares enters without a look at those who enter beside it, so one leave lets in all who fit. The counter is
//! that of a write to our node which the store did when nobody kept us out any more; our node was in the line from before
//! until after. Hence, however slow we are between look and write: every exclusive grant before ours was written by one
//! who had gone by then, with a smaller number; and whoever comes behind and wants the room for itself writes after our
//! node is gone, with a larger one. Of those who are inside together the counters differ, in no order.

mod entering;
pub(crate) mod lingering;
mod listening;
mod lowering;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::record::{Record, segment_of};
use lockkeeper_core::{Claim, Load};
use zookeeper_client::{Acls, Error, SessionState, Stat};

use crate::admin::session_line;
use crate::fault::NAME;
use crate::fences::Written;
use crate::line::{Look, in_order, mark_of};
use crate::session::Session;
use crate::store::Store;
use crate::wake::Watch;

const TAKING: &str = "taking the lock";
const RENEWING: &str = "renewing the lock";
const LEAVING: &str = "giving the lock back";
const LISTENING: &str = "listening while the lock is held";

/// A place in a line of [`ZooKeeper`](crate::ZooKeeper).
#[derive(Debug)]
pub struct ZooKeeperPlace {
    store: Arc<Store>,
    claim: Claim,
    /// The node whose children are the line.
    folder: String,
    /// The session of our node, once we have asked. It stays until we have left for sure.
    session: Option<Arc<Session>>,
    /// Our node's name, once we know it.
    node: Option<String>,
    /// The number of the write that let us in, while we are inside. Not that of our node's creation: where several
    /// share a room, or wait for rooms of different size, the line's order is not the order of grants.
    counter: Option<u64>,
    /// The node that may say that we went on as a reader.
    mark: Option<String>,
    /// What it means to us when whoever we watch is gone.
    end: End,
    wanted: bool,
    /// The capacity that others name, if it is another than ours.
    theirs: Option<u32>,
    /// Outside, those who keep us out; inside, the line, or our own node once we know that we are wanted.
    watches: Vec<Watch>,
    /// The line's numbers come to an end: it must be empty, and begun anew, before we can stand in it.
    worn_out: bool,
    /// Nodes that our server shows and the leader no longer has.
    gone: HashSet<String>,
    /// How often we asked in vain since the line last changed, and how many stood before us.
    idle: (u32, usize),
    /// For how long one who has gone keeps us out yet.
    kept_for: Option<Duration>,
    /// The version of the folder when we last looked: who begins to linger writes it.
    folder_version: i32,
    /// For who only tries: the node of the one who holds.
    in_the_way: Option<String>,
    /// While we are inside: somebody called us when we last heard something.
    called: bool,
}

/// What the end of whoever we watch means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It was all that stood before us: we are inside.
    LetsIn,
    /// Most likely we are.
    MayLetIn,
    /// Others are left.
    SaysLittle,
}

/// Where an attempt to get inside ended.
enum Next {
    Inside,
    Wait(usize),
    /// Something changed meanwhile: look again.
    Again,
}

impl ZooKeeperPlace {
    pub(crate) fn new(store: Arc<Store>, claim: Claim) -> Self {
        let folder = format!("{}/{}", store.options.path, segment_of(claim.key.as_str()));
        ZooKeeperPlace {
            store,
            claim,
            folder,
            session: None,
            node: None,
            counter: None,
            mark: None,
            end: End::SaysLittle,
            wanted: false,
            theirs: None,
            watches: Vec::new(),
            worn_out: false,
            gone: HashSet::new(),
            idle: (0, 0),
            kept_for: None,
            folder_version: 0,
            in_the_way: None,
            called: true,
        }
    }

    /// Nobody else can be beside us.
    fn is_alone(&self) -> bool {
        self.claim.load.capacity == 1
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// What our node says to people.
    fn text(&self, session: &Session) -> String {
        Record::text_of(&self.claim) + &session_line(session)
    }

    fn acls(&self) -> Acls<'static> {
        if self.store.options.user.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// Our node is gone, or will be with its session.
    fn reset(&mut self) {
        (self.node, self.end, self.idle) = (None, End::SaysLittle, (0, 0));
        self.watches.clear();
        if self.counter.take().is_some() {
            self.store.forget(self.claim.id);
        }
    }

    /// Our session, or a new one if we have none that lives.
    async fn session(&mut self) -> Result<Arc<Session>> {
        if let Some(session) = self.session.as_ref().filter(|it| !it.proof.is_lost()) {
            return Ok(session.clone());
        }
        self.reset();
        let session = self.store.sessions.session(self.claim.ttl).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    /// The line with all that we ever sent in this session. After a change of server a list alone may be older than
    /// that; a write before it brings the server up to date.
    async fn up_to_date(&mut self, session: &Session, doing: &'static str) -> Result<Vec<String>> {
        let (checked, listed) =
            (session.check(&self.store.options.path), session.client.list_children(&self.folder));
        let both = async { (checked.await, listed.await) };
        let (checked, listed) = self.store.in_time(doing, both).await?;
        let _ = self.store.call(session, doing, async { checked }).await?;
        Ok(self.store.call(session, doing, async { listed }).await?.unwrap_or_default())
    }

    /// Reckon with a list of the line. `None` if our node is not in it.
    fn look(&self, names: Vec<String>) -> Option<Look> {
        Look::at(names, self.node.as_deref()?, &self.gone)
    }

    /// The same, and remember whether anybody began to linger by then.
    fn look_at(&mut self, names: Vec<String>, folder: &Stat) -> Option<Look> {
        self.folder_version = folder.version;
        self.look(names)
    }

    /// Watch who keeps us out, or get inside.
    async fn proceed(&mut self, session: &Session, look: Look) -> Result<Next> {
        if !look.blockers.is_empty() {
            return self.stand_behind(session, look).await;
        }
        self.wanted = look.wanted;
        self.write(session).await
    }

    /// Get inside by a write to our node, which proves that it is there.
    async fn write(&mut self, session: &Session) -> Result<Next> {
        let Some(node) = &self.node else { return Ok(Next::Again) };
        let (data, floor) = (self.text(session), self.store.seen());
        let written = session.client.set_data(&self.path(node), data.as_bytes(), None);
        let Ok(stat) = self.store.call(session, TAKING, written).await? else {
            self.reset();
            return Ok(Next::Again);
        };
        self.enter(session, Written::last(&stat), floor).await
    }

    /// Whoever kept us out is gone. Most likely it held, and we are next: look, and get inside in the same trip.
    /// The look is answered first. If somebody is before us yet, the write has let nobody in.
    async fn look_and_write(&mut self, session: &Session, node: &str) -> Result<Next> {
        let (path, data, floor) = (self.path(node), self.text(session), self.store.seen());
        let listed = session.client.get_children(&self.folder);
        let written = session.client.set_data(&path, data.as_bytes(), None);
        let both = async { (listed.await, written.await) };
        let (listed, written) = self.store.in_time(TAKING, both).await?;
        let listed = self.store.call(session, TAKING, async { listed }).await?;
        let written = self.store.call(session, TAKING, async { written }).await?;
        let (Some(look), Ok(stat)) =
            (listed.ok().and_then(|(names, folder)| self.look_at(names, &folder)), written)
        else {
            self.reset();
            return Ok(Next::Again);
        };
        if !look.blockers.is_empty() {
            return self.stand_behind(session, look).await;
        }
        self.wanted = look.wanted;
        self.enter(session, Written::last(&stat), floor).await
    }

    async fn watch(&mut self, session: &Session, look: &Look) -> Result<Next> {
        // A waiter's node has no children, so watching them tells its end and nothing else.
        let paths: Vec<String> = look.blockers.iter().map(|it| self.path(it)).collect();
        let asked: Vec<_> = paths.iter().map(|it| session.client.list_and_watch_children(it)).collect();
        // Whoever could share the room is let in, too, when one that has it for itself goes on as a reader.
        let sharing = if self.claim.load.is_exclusive() { &[][..] } else { &look.alone };
        let marks: Vec<String> = sharing.iter().map(|it| mark_of(&self.path(it))).collect();
        let marked: Vec<_> = marks.iter().map(|it| session.client.check_and_watch_stat(it)).collect();
        let mut watches = Vec::new();
        for watch in marked {
            match self.store.call(session, TAKING, watch).await? {
                Ok((None, watcher)) => watches.push(Watch::new(watcher, &self.store.events)),
                _ => return Ok(Next::Again),
            }
        }
        let end = match look {
            _ if self.is_alone() && look.ahead == 1 => End::LetsIn,
            _ if look.likely => End::MayLetIn,
            _ => End::SaysLittle,
        };
        for watch in asked {
            match self.store.call(session, TAKING, watch).await? {
                Ok((_, watcher)) => watches.push(Watch::new(watcher, &self.store.events)),
                // It has left since we looked, which is as good as being told so.
                Err(Error::NoNode) if end == End::LetsIn => {
                    self.wanted = true;
                    return self.write_unless_kept(session).await;
                }
                Err(_) => return Ok(Next::Again),
            }
        }
        (self.watches, self.theirs, self.end) = (watches, look.theirs, end);
        // Whoever stands alone before us holds.
        self.in_the_way = match &paths[..] {
            [one] if !self.claim.patient && look.ahead == 1 => Some(one.clone()),
            _ => None,
        };
        Ok(Next::Wait(look.ahead))
    }

    /// Whether those who kept us out may be gone, or we never looked.
    fn is_told(&mut self) -> bool {
        self.watches.is_empty() || self.watches.iter_mut().any(Watch::has_told)
    }

    /// One attempt to get inside, or to find that we are.
    async fn step(&mut self, session: &Session) -> Result<Next> {
        let Some(node) = self.node.clone() else {
            return self.join(session).await;
        };
        if self.is_beyond() {
            return self.begin_anew(session).await;
        }
        let told = self.is_told();
        if self.counter.is_some() {
            return self.prove(session, &node).await;
        }
        match self.end {
            End::LetsIn if told && !self.watches.is_empty() => {
                // Nobody can come before us. Most likely somebody is behind.
                self.wanted = true;
                return self.write_unless_kept(session).await;
            }
            End::MayLetIn if told && !self.watches.is_empty() => {
                return self.look_and_write(session, &node).await;
            }
            _ => {}
        }
        let listed = self.store.call(session, TAKING, session.client.get_children(&self.folder)).await?;
        let Some(look) = listed.ok().and_then(|(names, folder)| self.look_at(names, &folder)) else {
            self.reset();
            return Ok(Next::Again);
        };
        // Who stands behind one that is kept asks the leader for the time, and so hears what there is.
        if !told && !look.blockers.is_empty() && look.kept.is_empty() {
            return self.doubt(session, look).await;
        }
        self.proceed(session, look).await
    }

    /// We are inside, as far as we know: prove it by a write, and see who waits.
    async fn prove(&mut self, session: &Session, node: &str) -> Result<Next> {
        let path = self.path(node);
        let (checked, listed) = (session.check(&path), session.client.list_children(&self.folder));
        let both = async { (checked.await, listed.await) };
        let (checked, listed) = self.store.in_time(TAKING, both).await?;
        let checked = self.store.call(session, TAKING, async { checked }).await?;
        let listed = self.store.call(session, TAKING, async { listed }).await?;
        let (Ok(()), Some(look)) = (checked, listed.ok().and_then(|it| self.look(it))) else {
            self.reset();
            return Ok(Next::Again);
        };
        self.wanted = look.wanted;
        Ok(Next::Inside)
    }

    fn waits(&self, ahead: usize) -> Turn {
        // The watch is enough; this is for the day on which the store forgets to tell.
        let recheck = (self.claim.ttl / 3).clamp(Duration::from_millis(500), Duration::from_secs(10));
        let recheck = recheck.min(self.kept_for.unwrap_or(recheck));
        Turn::wait(recheck, u64::try_from(ahead).ok()).theirs(self.theirs)
    }
}

/// How often something may change while we look, before we tell it as a fault.
const STEPS_MAX: u32 = 8;

impl Place for ZooKeeperPlace {
    async fn turn(&mut self) -> Result<Turn> {
        let called_at = self.store.clock.now();
        self.claim.check_load(NAME)?;
        for _ in 0..STEPS_MAX {
            let session = self.session().await?;
            match self.step(&session).await? {
                Next::Again => {}
                Next::Wait(ahead) if self.claim.patient => return Ok(self.waits(ahead)),
                Next::Wait(ahead) => {
                    // Both are sent now, and cost one trip.
                    let (store, asked) = (self.store.clone(), self.in_the_way.take());
                    let (idle, left) = tokio::join!(may_be_idle(&store, &session, asked), self.leave());
                    left?;
                    return Ok(self.waits(ahead).may_be_idle(idle));
                }
                Next::Inside => {
                    let valid_for = session.proof.proven_until() - called_at;
                    if valid_for < session.timeout / 20 || session.proof.is_lost() {
                        return Err(Fault::transient(
                            NAME,
                            TAKING,
                            "the session is in doubt until its next pulse",
                        ));
                    }
                    let counter = self.counter.unwrap_or(0);
                    return Ok(Turn::Held(Grant::new(counter, valid_for).wanted(self.wanted)));
                }
            }
        }
        Err(Fault::transient(NAME, TAKING, "the line changes faster than it can be looked at"))
    }

    async fn changed(&mut self) {
        let Some(session) = self.session.clone() else {
            return std::future::pending().await;
        };
        let inside = self.counter.is_some();
        let state = (inside && self.claim.label.warm).then(|| Box::pin(when_disconnected(session.clone())));
        let deaf = async {
            match state {
                Some(state) => state.await,
                None => std::future::pending().await,
            }
        };
        self.called = true;
        let broke = tokio::select! {
            () = self.told(&session) => false,
            () = session.proof.when_lost() => false,
            () = deaf => true,
        };
        self.called &= !broke;
    }

    fn was_called(&self) -> bool {
        self.called
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let called_at = self.store.clock.now();
        let (Some(session), Some(node), Some(_)) = (self.session.clone(), self.node.clone(), self.counter)
        else {
            return Ok(Renewal::Lost);
        };
        // Afterwards the watch tells; until it does, a renewal costs this lock nothing.
        if !session.proof.is_lost() && (self.wanted || self.is_told()) {
            let path = self.path(&node);
            let (checked, listed) =
                (session.check(&path), session.client.list_and_watch_children(&self.folder));
            let both = async { (checked.await, listed.await) };
            let (checked, listed) = self.store.in_time(RENEWING, both).await?;
            let checked = self.store.call(&session, RENEWING, async { checked }).await;
            let listed = self.store.call(&session, RENEWING, async { listed }).await;
            if !session.proof.is_lost() {
                match (checked?, listed?) {
                    (Ok(()), Ok((names, watcher))) => {
                        self.wanted = self.look(names).is_some_and(|it| it.wanted);
                        self.watches.clear();
                        // Who knows that it is wanted need not hear of all who come.
                        if !self.wanted {
                            self.watches.push(Watch::new(watcher, &self.store.events));
                        }
                    }
                    // Removed by hand.
                    _ => self.reset(),
                }
            }
        }
        if !session.proof.is_lost() && self.counter.is_some() {
            // What the pulse of all has proven is ours as well; a stale proof is waited for.
            let fresh = session.proof.when_proven_beyond(called_at.after(session.timeout / 3));
            let _ = self.store.in_time(RENEWING, fresh).await;
        }
        if session.proof.is_lost() || self.counter.is_none() {
            self.reset();
            return Ok(Renewal::Lost);
        }
        let valid_for = session.proof.proven_until() - called_at;
        if valid_for.is_zero() {
            return Err(Fault::transient(NAME, RENEWING, "no pulse was confirmed in time"));
        }
        Ok(Renewal::held(valid_for, self.wanted))
    }

    async fn leave(&mut self) -> Result<()> {
        self.watches.clear();
        let Some(session) = self.session.clone() else {
            return Ok(());
        };
        if !session.proof.is_lost() {
            let names = if let Some(node) = &self.node {
                vec![node.clone()]
            } else {
                // We do not know whether our node was made. All we sent comes before this, in order.
                let listed = self.up_to_date(&session, LEAVING).await;
                let line = in_order(over(&session, listed.map(Ok))?.unwrap_or_default());
                line.into_iter().filter(|it| it.id == self.claim.id && !it.kept).map(|it| it.name).collect()
            };
            for name in names {
                let deleted = session.client.delete(&self.path(&name), None);
                let deleted = self.store.call(&session, LEAVING, deleted).await;
                over(&session, deleted)?;
            }
            self.remove_mark(&session).await?;
        }
        self.reset();
        self.store.forget(self.claim.id);
        self.session = None;
        Ok(())
    }

    async fn linger(&mut self, span: Duration) -> Result<()> {
        self.keep_for(span).await
    }

    async fn lower(&mut self, load: Load) -> Result<bool> {
        self.mark_as(load).await
    }
}

/// Whether whoever made this node keeps its locks, if it says so. It is only a hint: a fault does not matter.
async fn may_be_idle(store: &Store, session: &Session, asked: Option<String>) -> Option<bool> {
    let (data, _) = store.in_time(TAKING, session.client.get_data(&asked?)).await.ok()?.ok()?;
    Record::read(&data).map(|it| it.label.warm)
}

/// Resolves when the connection breaks, or at once while it is broken: nothing is told until there is another.
async fn when_disconnected(session: Arc<Session>) {
    let mut state = session.client.state_watcher();
    let mut now = state.state();
    while now == SessionState::SyncConnected {
        now = state.changed().await;
    }
}

/// `None` if there was nothing to do it to: no such node, or the session is over and all of it goes.
fn over<T>(session: &Session, answer: Result<std::result::Result<T, Error>>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(answer.ok()),
        Err(_) if session.proof.is_lost() => Ok(None),
        Err(fault) => Err(fault),
    }
}
