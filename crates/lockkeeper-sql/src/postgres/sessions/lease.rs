//! One session with a lease: the server ends it, and all its locks, when it is silent for the ttl.
//!
//! A statement's answer proves that the session lived when it was *sent*; from then on it lives for the ttl. One beat
//! keeps all its locks, however many. A connection that has ended is the loss of all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Label, Moment};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::doubt::Identity;
use super::super::fault::{Result, Trouble};
use super::super::session::{Ears, Param, Session};
use super::Site;
use crate::leases::Leased;
use crate::name::{NameHash, micros_up, printable, span};
use crate::reckoning::Reckoning;

const RENEWING: &str = "renewing the lock";

/// For how long a name keeps its number after it was first used, if nobody holds it then.
const NAME_IDLE: Duration = Duration::from_secs(3600);

/// The most names that one statement removes.
const NAMES_MOST: i64 = 100;

/// What a session has, or is about to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) id: ClaimId,
    /// The name's number; 0 while it is being taken.
    pub(super) number: i64,
    /// Somebody waits for it.
    pub(super) wanted: bool,
}

/// A beat was answered, or the session is over.
type Beaten = backend::Result<Option<Moment>>;

/// One open session.
pub(super) struct Lease {
    session: Session,
    site: Arc<Site>,
    runtime: Handle,
    pub(super) ttl: Duration,
    pub(super) class: i32,
    /// Before this nobody is let in: the server has started not long ago.
    pub(super) opens_at: Moment,
    life: Reckoning,
    held: Mutex<HashMap<NameHash, Holding>>,
    /// A beat that is under way.
    beating: Mutex<Option<watch::Receiver<Option<Beaten>>>>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl Leased for Lease {
    type Site = Site;
    type Trouble = Trouble;

    /// On the present runtime. One that `waits` is kept only while it holds something.
    async fn open(site: &Arc<Site>, ttl: Duration, waits: bool) -> Result<Arc<Self>> {
        let runtime = Handle::try_current().map_err(|_| Trouble::NoRuntime)?;
        let ears = Ears::new(Arc::default());
        let session = site.dial(Some(&ears)).await?;
        let millis = ttl.as_nanos().div_ceil(1_000_000).to_string();
        let answer_within = site.options.common.timeout.as_millis().clamp(1, 2_000_000_000).to_string();
        let limit = if waits { "0" } else { answer_within.as_str() };
        let set: [Param<'_>; 2] = [(&millis, Type::TEXT), (&limit, Type::TEXT)];
        site.in_time(session.query(&site.sql.set, &set)).await?;
        let label = Label::of_this_process();
        let (host, pid) = (printable(&label.host), i64::from(label.pid));
        let join: [Param<'_>; 3] = [(&micros_up(ttl), Type::INT8), (&host, Type::TEXT), (&pid, Type::INT8)];
        let (rows, sent_at) = site.in_time(session.query(&site.sql.join, &join)).await?;
        let told = numbers(&rows)?;
        let [class, quiet, server, ..] = told[..] else { return Err(odd()) };
        let now = site.clock.now();
        let lease = Arc::new(Lease {
            session,
            site: site.clone(),
            runtime: runtime.clone(),
            ttl,
            class: i32::try_from(class).map_err(|_| odd())?,
            opens_at: if quiet == 0 { Moment::from_nanos(0) } else { now.after(span(quiet)) },
            life: Reckoning::new(ttl, sent_at, server),
            held: Mutex::default(),
            beating: Mutex::default(),
        });
        runtime.spawn(beat_on(Arc::downgrade(&lease), site.clone(), ears, waits));
        Ok(lease)
    }

    fn is_over(&self) -> bool {
        self.session.is_closed() || self.proven_until() <= self.site.clock.now()
    }

    fn end(&self) {
        self.session.end();
    }

    fn waiting(site: &Site) -> &Arc<Semaphore> {
        &site.waiting
    }

    fn no_runtime() -> Trouble {
        Trouble::NoRuntime
    }
}

impl Lease {
    pub(super) fn identity(&self) -> Option<&Identity> {
        self.session.identity.as_ref()
    }

    /// When the last statement was sent that was answered: the server keeps the session for a ttl from then on.
    pub(super) fn proof(&self) -> Moment {
        self.life.proof()
    }

    fn proven_until(&self) -> Moment {
        self.life.proven_until()
    }

    /// Run a statement that answers soon.
    pub(super) async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<(Vec<Row>, Moment)> {
        let asked = self.site.in_time(self.session.query(sql, params)).await;
        match &asked {
            Ok((_, sent_at)) => self.proven(*sent_at),
            // Whatever stands behind an unanswered statement is not answered, either.
            Err(Trouble::Silent) => self.end(),
            Err(_) => {}
        }
        asked
    }

    /// Run a statement that answers when somebody else is gone. Its answer does not prove the session: it may have stood
    /// in a buffer for longer than the ttl.
    pub(super) async fn wait(&self, sql: &str, params: &[Param<'_>]) -> Result<(Vec<Row>, Moment)> {
        self.session.query(sql, params).await.map_err(Trouble::from)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// The session lived at this moment.
    pub(super) fn proven(&self, at: Moment) {
        self.life.proven(at);
    }

    /// A wait that was sent at `sent_at` was answered: the server's clock showed `server` when it let us in. If that does
    /// not tell enough about when it was by ours, a beat makes sure.
    pub(super) async fn let_in(self: &Arc<Self>, sent_at: Moment, server: i64) -> Beaten {
        let now = self.site.clock.now();
        match self.life.let_in(now, sent_at, server) {
            Some(at) => Ok(Some(at)),
            None => self.beat_anew(now).await,
        }
    }

    /// A beat although the proof is old: the session has waited, and may have lived all the while.
    async fn beat_anew(self: &Arc<Self>, now: Moment) -> Beaten {
        if self.session.is_closed() {
            return Ok(None);
        }
        self.beat_within(now.after(self.ttl)).await
    }

    /// Keep this name for this claim, unless it is another's: a session is never refused what it has already.
    pub(super) fn reserve(&self, lock: NameHash, id: ClaimId) -> bool {
        let mut held = locked(&self.held);
        let free = !held.contains_key(&lock);
        if free {
            held.insert(lock, Holding { id, number: 0, wanted: false });
        }
        free
    }

    /// It was granted under this number.
    pub(super) fn granted(&self, lock: NameHash, id: ClaimId, number: i64, wanted: bool) {
        locked(&self.held).insert(lock, Holding { id, number, wanted });
    }

    pub(super) fn unreserve(&self, lock: &NameHash, id: ClaimId) {
        let mut held = locked(&self.held);
        if held.get(lock).is_some_and(|it| it.id == id) {
            held.remove(lock);
        }
    }

    /// What the session has of this name, if it is this claim's.
    pub(super) fn holding(&self, lock: &NameHash, id: ClaimId) -> Option<Holding> {
        locked(&self.held).get(lock).copied().filter(|it| it.id == id)
    }

    /// The beat: a statement that proves the session. Whoever asks while one is under way shares it. Answers when it was
    /// sent, or nothing if the session is over.
    pub(super) async fn beat(self: &Arc<Self>) -> Beaten {
        if self.is_over() {
            return Ok(None);
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
                    let beaten = lease.beat_within(lease.proven_until()).await;
                    *locked(&lease.beating) = None;
                    let _ = tell.send(Some(beaten));
                });
                told
            }
        };
        match told.wait_for(Option::is_some).await {
            Ok(beaten) => beaten.clone().unwrap_or(Ok(None)),
            Err(_) => Err(Trouble::NoRuntime.fault(RENEWING)),
        }
    }

    async fn beat_within(&self, until: Moment) -> Beaten {
        let params: [Param<'_>; 1] = [(&self.class, Type::INT4)];
        let asked = tokio::select! {
            biased;
            asked = self.session.query(&self.site.sql.beat, &params) => asked.map_err(Trouble::from),
            () = self.site.clock.sleep_until(until) => Err(Trouble::Silent),
        };
        let told = asked.and_then(|(rows, sent_at)| Ok((numbers(&rows)?, sent_at)));
        let (told, sent_at) = match told {
            Ok(told) => told,
            Err(_) if self.session.is_closed() || until <= self.site.clock.now() => {
                // Nothing that is heard from now on is believed.
                self.end();
                return Ok(None);
            }
            Err(trouble) => return Err(trouble.fault(RENEWING)),
        };
        let [server, waited, rest @ ..] = &told[..] else { return Err(odd().fault(RENEWING)) };
        self.life.beaten(sent_at, *server);
        let (waited, broken) = rest.split_at(usize::try_from(*waited).unwrap_or(0).min(rest.len()));
        locked(&self.held).values_mut().for_each(|it| it.wanted = waited.contains(&it.number));
        for number in broken {
            self.give_back(*number).await;
        }
        Ok(Some(sent_at))
    }

    /// An operator has taken this lock away.
    async fn give_back(&self, number: i64) {
        // First it is nobody's here, and then it is somebody else's.
        locked(&self.held).retain(|_, it| it.number != number);
        let params: [Param<'_>; 2] = [(&self.class, Type::INT4), (&number, Type::INT8)];
        let _ = self.ask(&self.site.sql.leave_noted, &params).await;
    }

    /// Remove names that nobody has used for long.
    async fn clean(&self) {
        let params: [Param<'_>; 3] =
            [(&self.class, Type::INT4), (&micros_up(NAME_IDLE), Type::INT8), (&NAMES_MOST, Type::INT8)];
        // A fault here is met again by the next verb, which can tell it.
        let _ = self.ask(&self.site.sql.clean, &params).await;
    }
}

/// Keep a session as long as somebody has a use for it, and tell when it has ended.
async fn beat_on(weak: Weak<Lease>, site: Arc<Site>, ears: Arc<Ears>, waits: bool) {
    let (clock, clean_every) = (&site.clock, site.options.common.clean_every);
    let mut cleaned_at = clock.now();
    loop {
        let Some(lease) = weak.upgrade() else { return };
        if lease.session.is_closed() {
            break;
        }
        let (ttl, due) = (lease.ttl, lease.proof().after(lease.ttl / 3));
        if due <= clock.now() && !(waits && locked(&lease.held).is_empty()) {
            let _ = lease.beat().await;
        }
        if !waits && clean_every <= clock.now() - cleaned_at {
            cleaned_at = clock.now();
            lease.clean().await;
        }
        // After a fault, and for a session that holds nothing yet, look again soon.
        let next = due.max(clock.now().after(ttl / 12));
        drop(lease);
        tokio::select! {
            biased;
            () = ears.ended.notified() => break,
            () = clock.sleep_until(next) => {}
        }
    }
    site.alarm.send_modify(|it| *it = it.wrapping_add(1));
}

/// The numbers in the only row.
pub(super) fn numbers(rows: &[Row]) -> Result<Vec<i64>> {
    let numbers = rows.first().map(|it| it.try_get(0)).transpose()?;
    numbers.ok_or_else(odd)
}

pub(super) fn odd() -> Trouble {
    Trouble::Refused("a function of Lockkeeper gave an answer that this version does not understand".into())
}
