//! Getting into a line: making our node, finding it again, beginning a worn-out line anew, and doubting our server.

use lockkeeper_core::backend::{Fault, Result};
use zookeeper_client::{Acls, CreateMode, Error, Stat};

use super::lingering::left_of;
use super::{Next, TAKING, ZooKeeperPlace};
use crate::fault::{self, NAME};
use crate::fences::Written;
use crate::line::{Entry, Look, in_order, is_worn_out, marked_by, name_of};
use crate::memos::time_of;
use crate::session::Session;
use crate::store::Known;
use crate::wake::Watch;

/// Who has at most so many before it asks the leader each time; the others each so-and-so-many times.
const DOUBT_AHEAD_MAX: usize = 4;
const DOUBT_EVERY: u32 = 8;

impl ZooKeeperPlace {
    /// This write let us in. `floor` is what this process had seen before it wrote.
    pub(super) async fn enter(&mut self, session: &Session, written: Written, floor: u64) -> Result<Next> {
        self.watches.clear();
        let Some(counter) = self.store.number(session, written, floor).await? else {
            // It has no number, but the next write has one.
            return Ok(Next::Again);
        };
        self.counter = Some(counter);
        self.store.see(counter);
        self.store.remember(self.claim.id, Known { session: session.id, counter: Some(counter) });
        Ok(Next::Inside)
    }

    /// Take our place: make our node and list the line, in one go.
    pub(super) async fn join(&mut self, session: &Session) -> Result<Next> {
        if let Some(known) = self.store.remembered(self.claim.id, session.id)
            && self.find_again(session, known).await?
        {
            return Ok(Next::Again);
        }
        if self.worn_out {
            return self.begin_anew(session).await;
        }
        let floor = self.store.seen();
        self.store.remember(self.claim.id, Known { session: session.id, counter: None });
        let (name, data) = (name_of(&self.claim), self.text(session));
        let path = self.path(&name);
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        // Both are sent now; the store answers them in this order.
        let created = session.client.create(&path, data.as_bytes(), &options);
        let listed = session.client.get_children(&self.folder);
        let both = async { (created.await, listed.await) };
        let (created, listed) = self.store.in_time(TAKING, both).await?;
        let (stat, number) = match self.store.call(session, TAKING, async { created }).await {
            Ok(Ok(created)) => created,
            Ok(Err(Error::NoNode)) => return self.make_folder(session).await,
            Ok(Err(error)) => return Err(fault::from_error(TAKING, error)),
            Err(fault) => return Err(self.refused(fault)),
        };
        self.node = Some(format!("{name}{number}"));
        if self.is_beyond() {
            return self.begin_anew(session).await;
        }
        let Ok((names, folder)) = self.store.call(session, TAKING, async { listed }).await? else {
            self.reset();
            return Ok(Next::Again);
        };
        let Some(look) = self.look_at(names, &folder) else {
            self.reset();
            return Ok(Next::Again);
        };
        if look.blockers.is_empty()
            && let Some(written) = self.let_in_by(&stat, &folder)
        {
            self.wanted = look.wanted;
            return self.enter(session, written, floor).await;
        }
        self.proceed(session, look).await
    }

    /// What let us in, if a list shows nobody in our way right after our node was made; `None` if it takes another write.
    ///
    /// If our node is the last thing that happened to the line, nobody was in the way when it was made. Otherwise one who
    /// stood before us may have entered since, by a write after ours, and gone. Its end is not later than the last thing
    /// that happened to the line, so a mutex may count by that: whoever was before it has a smaller number, whoever comes
    /// behind it a larger one, from after its own end. Two that share could count by the same, and write instead.
    fn let_in_by(&self, own: &Stat, folder: &Stat) -> Option<Written> {
        if folder.pzxid == own.czxid {
            return Some(Written::first(own));
        }
        // A server that shows what is gone may not know of the last thing, either.
        (self.is_alone() && self.gone.is_empty())
            .then(|| Written { zxid: folder.pzxid, ..Written::first(own) })
    }

    /// Our node could not be made. If the ensemble said no there is none, and nothing to leave.
    fn refused(&mut self, fault: Fault) -> Fault {
        if !fault.is_transient() {
            self.store.forget(self.claim.id);
            self.session = None;
        }
        fault
    }

    /// The node of a claim that was sent before, if it is there and of this session: one of an older session is
    /// about to vanish. `false` if there is none.
    async fn find_again(&mut self, session: &Session, known: Known) -> Result<bool> {
        let listed = self.up_to_date(session, TAKING).await?;
        for stand in in_order(listed).into_iter().filter(|it| it.id == self.claim.id && !it.kept) {
            let stat = session.client.check_stat(&self.path(&stand.name));
            let stat = self.store.call(session, TAKING, stat).await?.ok().flatten();
            if stat.is_some_and(|it| it.ephemeral_owner == session.id) {
                (self.node, self.counter) = (Some(stand.name), known.counter);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The folder goes away by itself when it has been empty for a while.
    pub(super) async fn make_folder(&mut self, session: &Session) -> Result<Next> {
        // There was no folder to make our node in, so there is nothing to find again, nor to leave.
        self.store.forget(self.claim.id);
        let folder = CreateMode::Container.with_acls(self.acls());
        let made = session.client.create(&self.folder, b"", &folder);
        let made = self.store.call(session, TAKING, made).await.map_err(|it| self.refused(it))?;
        if let Err(Error::NoNode) = made {
            let root = CreateMode::Persistent.with_acls(Acls::anyone_all());
            let root = session.client.mkdir(&self.store.options.path, &root);
            let _ = self.store.call(session, TAKING, root).await.map_err(|it| self.refused(it))?;
        }
        Ok(Next::Again)
    }

    /// Whether our number is one that the store may give twice.
    pub(super) fn is_beyond(&self) -> bool {
        self.node.clone().and_then(Entry::read).is_some_and(|it| it.is_beyond())
    }

    /// The line's numbers come to an end. Those in it are served; then its folder is removed, with which the store
    /// forgets how far it counted. Who comes meanwhile waits beside the line: the order among these is lost.
    pub(super) async fn begin_anew(&mut self, session: &Session) -> Result<Next> {
        if let Some(node) = self.node.take() {
            let deleted = session.client.delete(&self.path(&node), None);
            let _ = self.store.call(session, TAKING, deleted).await?;
        }
        let listed = session.client.get_and_watch_children(&self.folder);
        let Ok((names, stat, watcher)) = self.store.call(session, TAKING, listed).await? else {
            self.worn_out = false;
            return Ok(Next::Again);
        };
        // Somebody may have begun it anew while we came here.
        self.worn_out = is_worn_out(&stat);
        if !self.worn_out || names.is_empty() {
            if self.worn_out {
                let deleted = session.client.delete(&self.folder, None);
                let _ = self.store.call(session, TAKING, deleted).await?;
            }
            return Ok(Next::Again);
        }
        let foreign = names.iter().find(|it| marked_by(it).is_none()).cloned();
        let line = in_order(names);
        if let (Some(foreign), true) = (foreign, line.is_empty()) {
            let text = format!(
                "the line's numbers are used up, and it cannot be begun anew because of {foreign:?}, which is not \
                 ours; remove that node from {}",
                self.folder
            );
            return Err(Fault::permanent(NAME, TAKING, text));
        }
        self.kept_for = None;
        if let Some(kept) = line.iter().find(|it| it.kept) {
            let (path, now) = (self.path(&kept.name), time_of(&self.store, session, TAKING).await?);
            let left = left_of(&self.store, session, &path, now).await?;
            if left.is_none() {
                return Ok(Next::Again);
            }
            self.kept_for = left;
        }
        self.watches = vec![Watch::new(watcher, &self.store.events)];
        Ok(Next::Wait(line.len()))
    }

    /// We were not told, asked by ourselves, and nothing has changed. Our server may be one that still shows what the
    /// leader has removed (versions before 3.9.3 can do that); then nobody will ever tell us. A write asks the leader.
    pub(super) async fn doubt(&mut self, session: &Session, look: Look) -> Result<Next> {
        let (asked, ahead) = self.idle;
        self.idle = (if ahead == look.ahead { asked + 1 } else { 0 }, look.ahead);
        // Many that wait must not all write. Those in front find out, and the others behind them wait for these.
        if DOUBT_AHEAD_MAX < look.ahead && self.idle.0 % DOUBT_EVERY != 1 {
            return Ok(Next::Wait(look.ahead));
        }
        let mut found = false;
        for name in &look.blockers {
            if self.store.call(session, TAKING, session.check(&self.path(name))).await?.is_err() {
                found |= self.gone.insert(name.clone());
            }
        }
        if found {
            // What the write brought up to date may show it no longer; if it does, it does not count.
            self.watches.clear();
            return Ok(Next::Again);
        }
        Ok(Next::Wait(look.ahead))
    }
}
