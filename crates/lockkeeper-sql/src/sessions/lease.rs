//! One session with a lease: the server ends it, and all its locks, when it is silent for the ttl.
//!
//! A statement's answer proves that the session lived when it was *sent*; from then on it lives for the ttl. One beat
//! keeps all its locks, however many. A connection that has ended is the loss of all of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Moment};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::Leases;
use super::conversation::{Answer, Conversation, Trouble as _};
use super::reckoning::Reckoning;
use crate::name::NameHash;

const RENEWING: &str = "renewing the lock";

/// A beat that was sent so long ago serves whoever asks now: many locks of a session are renewed in one go.
const JUST_NOW: Duration = Duration::from_millis(25);

/// What a session has, or is about to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding<M> {
    pub(super) id: ClaimId,
    /// Nothing while it is being taken.
    mark: Option<M>,
    /// Somebody waits for it.
    pub(super) wanted: bool,
}

/// A beat was answered, or the session is over.
type Beaten = backend::Result<Option<Moment>>;

/// One open session.
pub(crate) struct Lease<W: Conversation> {
    pub(super) wire: W,
    site: Arc<W::Site>,
    runtime: Handle,
    ttl: Duration,
    /// Before this nobody is let in: the server has started not long ago.
    pub(super) opens_at: Moment,
    life: Reckoning,
    beaten_at: Mutex<Moment>,
    held: Mutex<HashMap<NameHash, Holding<W::Mark>>>,
    /// A beat that is under way.
    beating: Mutex<Option<watch::Receiver<Option<Beaten>>>>,
    /// It holds nothing, and nobody looks after it until it does. Whoever clears it rings `stirred`. Set before it is looked
    /// whether something is held, and cleared after something is: the lock of `held` lies between, so one of both is seen,
    /// and Relaxed is enough.
    dozes: AtomicBool,
    stirred: Arc<Notify>,
    /// Something was granted since it was looked after: then it does not doze yet, as being stirred costs each grant more than a
    /// few looks. Relaxed: a hint, which is late by one look at most.
    used: AtomicBool,
}

impl<W: Conversation> fmt::Debug for Lease<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl<W: Conversation> Lease<W> {
    /// On the present runtime. One that `waits` is kept only while it holds something, another as long as it is used.
    pub(super) async fn open(
        of: &Arc<Leases<W>>,
        site: &Arc<W::Site>,
        waits: bool,
    ) -> Result<Arc<Self>, W::Trouble> {
        let ttl = of.ttl;
        let runtime = Handle::try_current().map_err(|_| W::Trouble::no_runtime())?;
        let opened = W::open(site, ttl, waits).await?;
        let (now, sent_at) = (site.clock.now(), opened.sent_at);
        let lease = Arc::new(Lease {
            wire: opened.wire,
            site: site.clone(),
            runtime: runtime.clone(),
            ttl,
            opens_at: if opened.quiet.is_zero() { Moment::from_nanos(0) } else { now.after(opened.quiet) },
            life: Reckoning::new(ttl, sent_at, opened.server),
            beaten_at: Mutex::new(sent_at),
            held: Mutex::default(),
            beating: Mutex::default(),
            dozes: AtomicBool::new(false),
            stirred: Arc::default(),
            used: AtomicBool::new(false),
        });
        let keeping = Keeping {
            lease: Arc::downgrade(&lease),
            of: Arc::downgrade(of),
            site: site.clone(),
            stirred: lease.stirred.clone(),
            waits,
        };
        runtime.spawn(keeping.beat_on(lease.wire.ended()));
        Ok(lease)
    }

    /// Whether it holds nothing any more, for good.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed() || self.life.proven_until() <= self.site.clock.now()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.wire.is_closed()
    }

    /// End it, and with it all that it holds.
    pub(super) fn end(&self) {
        self.wire.end();
    }

    /// What the server's clock shows, by the last reading of it: for operators only.
    pub(super) fn server_now(&self) -> i64 {
        self.life.server_now(self.site.clock.now())
    }

    /// Ask what is answered soon.
    pub(super) async fn ask<T>(&self, asking: impl Future<Output = Answer<W, T>>) -> Answer<W, T> {
        let answer = self.site.in_time(asking).await;
        match &answer {
            Ok((_, sent_at)) => self.life.proven(*sent_at),
            // Whatever stands behind an unanswered statement is not answered, either.
            Err(trouble) if trouble.is_silent() => self.end(),
            Err(_) => {}
        }
        answer
    }

    /// A wait that was sent at `sent_at` was answered: the server's clock showed `server` when it let us in. If that does
    /// not tell enough about when it was by ours, a beat makes sure.
    pub(super) async fn let_in(self: &Arc<Self>, sent_at: Moment, server: i64) -> Beaten {
        let now = self.site.clock.now();
        match self.life.let_in(now, sent_at, server) {
            Some(at) => Ok(Some(at)),
            None if self.is_closed() => Ok(None),
            // The session has waited, and may have lived all the while, although its proof is old.
            None => self.beat_within(now.after(self.ttl)).await,
        }
    }

    /// Keep this name for this claim, unless it is another's: a session is never refused what it has already.
    pub(super) fn reserve(&self, lock: NameHash, id: ClaimId) -> bool {
        let mut held = locked(&self.held);
        let free = !held.contains_key(&lock);
        if free {
            held.insert(lock, Holding { id, mark: None, wanted: false });
        }
        free
    }

    pub(super) fn granted(&self, lock: NameHash, id: ClaimId, mark: W::Mark, wanted: bool) {
        self.used.store(true, Ordering::Relaxed);
        locked(&self.held).insert(lock, Holding { id, mark: Some(mark), wanted });
        if self.dozes.load(Ordering::Relaxed) && self.dozes.swap(false, Ordering::Relaxed) {
            self.stirred.notify_one();
        }
    }

    pub(super) fn holds(&self) -> bool {
        !locked(&self.held).is_empty()
    }

    pub(super) fn unreserve(&self, lock: &NameHash, id: ClaimId) {
        let mut held = locked(&self.held);
        if held.get(lock).is_some_and(|it| it.id == id) {
            held.remove(lock);
        }
    }

    /// What the session has of this name, if it is this claim's.
    pub(super) fn holding(&self, lock: &NameHash, id: ClaimId) -> Option<Holding<W::Mark>> {
        locked(&self.held).get(lock).copied().filter(|it| it.id == id)
    }

    /// The beat: a statement that proves the session. Whoever asks while one is under way, or was a moment ago, shares it.
    /// Answers when it was sent, or nothing if the session is over.
    pub(super) async fn beat(self: &Arc<Self>) -> Beaten {
        if self.is_over() {
            return Ok(None);
        }
        let beaten_at = *locked(&self.beaten_at);
        if self.site.clock.now() < beaten_at.after(JUST_NOW.min(self.ttl / 12)) {
            return Ok(Some(beaten_at));
        }
        let mut told = {
            let mut beating = locked(&self.beating);
            if let Some(told) = &*beating {
                told.clone()
            } else {
                let (tell, told) = watch::channel(None);
                *beating = Some(told.clone());
                let lease = self.clone();
                self.runtime.spawn(async move {
                    let beaten = lease.beat_within(lease.life.proven_until()).await;
                    *locked(&lease.beating) = None;
                    let _ = tell.send(Some(beaten));
                });
                told
            }
        };
        match told.wait_for(Option::is_some).await {
            Ok(beaten) => beaten.clone().unwrap_or(Ok(None)),
            Err(_) => Err(W::Trouble::no_runtime().fault(RENEWING)),
        }
    }

    async fn beat_within(&self, until: Moment) -> Beaten {
        let (beat, sent_at) = match self.until(until, self.wire.beat()).await {
            Ok(told) => told,
            Err(_) if self.is_closed() || until <= self.site.clock.now() => {
                // Nothing that is heard from now on is believed.
                self.end();
                return Ok(None);
            }
            Err(trouble) => return Err(trouble.fault(RENEWING)),
        };
        self.life.beaten(sent_at, beat.server);
        *locked(&self.beaten_at) = sent_at;
        let wanted = |it: &Holding<W::Mark>| it.mark.is_some_and(|mark| beat.wanted.contains(&mark));
        locked(&self.held).values_mut().for_each(|it| it.wanted = wanted(it));
        for mark in beat.broken {
            self.give_up(mark).await;
        }
        Ok(Some(sent_at))
    }

    async fn until<T>(&self, until: Moment, asking: impl Future<Output = Answer<W, T>>) -> Answer<W, T> {
        tokio::select! {
            biased;
            answer = asking => answer,
            () = self.site.clock.sleep_until(until) => Err(W::Trouble::silent()),
        }
    }

    /// An operator has taken this lock away.
    async fn give_up(&self, mark: W::Mark) {
        // First it is nobody's here, and then it is somebody else's.
        let mut ids = Vec::new();
        locked(&self.held).retain(|_, it| {
            let kept = it.mark != Some(mark);
            ids.extend((!kept).then_some(it.id));
            kept
        });
        for id in ids {
            W::left(&self.site, id);
        }
        let _ = self.ask(self.wire.give_up(mark)).await;
    }

    /// Ask whether the server is there.
    async fn look(&self) {
        match self.until(self.life.proven_until(), self.wire.look()).await {
            Ok(((), sent_at)) => self.life.proven(sent_at),
            Err(trouble) if trouble.is_silent() => self.end(),
            Err(_) => {}
        }
    }

    /// What is to be done now, and when to come again.
    async fn step(self: &Arc<Self>, waits: bool) -> Moment {
        let clock = &self.site.clock;
        let third = self.ttl / 3;
        let look = W::LOOK.map(|it| it.min(third));
        let used = self.used.swap(false, Ordering::Relaxed);
        self.dozes.store(waits && look.is_some() && !used, Ordering::Relaxed);
        let holds = self.holds();
        if holds {
            self.dozes.store(false, Ordering::Relaxed);
        }
        let due = locked(&self.beaten_at).after(third);
        if holds || !waits {
            if due <= clock.now() {
                let _ = self.beat().await;
            } else if holds && look.is_some_and(|it| self.life.proof().after(it) <= clock.now()) {
                self.look().await;
            }
        }
        if !waits {
            self.wire.tend().await;
        }
        match look {
            Some(look) if holds || !waits || used => clock.now().after(look),
            // After a fault, and for a session that holds nothing yet, again soon.
            _ => locked(&self.beaten_at).after(third).max(clock.now().after(self.ttl / 12)),
        }
    }
}

/// What keeps a session as long as somebody has a use for it.
struct Keeping<W: Conversation> {
    lease: Weak<Lease<W>>,
    of: Weak<Leases<W>>,
    site: Arc<W::Site>,
    stirred: Arc<Notify>,
    waits: bool,
}

impl<W: Conversation> Keeping<W> {
    /// Beat, and tell when it has ended.
    async fn beat_on(self, ended: impl Future<Output = ()>) {
        let mut ended = std::pin::pin!(ended);
        loop {
            let Some(lease) = self.lease.upgrade() else { return };
            if lease.is_closed() {
                break;
            }
            let mut next = lease.step(self.waits).await;
            if !self.waits && self.of.upgrade().is_some_and(|it| it.retire(&lease)) {
                return;
            }
            drop(lease);
            loop {
                tokio::select! {
                    biased;
                    () = &mut ended => return self.site.tell_of_an_end(),
                    // It holds something now, and is looked after soon; most often it has given that back by then.
                    () = self.stirred.notified() => {
                        next = next.min(self.site.clock.now().after(W::LOOK.unwrap_or_default()));
                    }
                    () = self.site.clock.sleep_until(next) => break,
                }
            }
        }
        self.site.tell_of_an_end();
    }
}
