//! One session with a lease: the server ends it, and all its locks, when it is silent for the ttl.
//!
//! An answer proves that the session lived when the question was *sent*; from then on it lives for the ttl. One beat keeps
//! all its locks, however many. The driver does not notice that a connection has ended while nobody uses it, so a session
//! that holds something asks several times a second whether the server is there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Moment};
use mysql_async::Row;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::super::fault::{Result, Trouble};
use super::Site;
use super::join::{Epoch, NOW, RANGE, hash_of, join, number_of, odd};
use super::tether::{Answer, Tether};
use crate::leases::Leased;
use crate::name::NameHash;
use crate::reckoning::Reckoning;

const RENEWING: &str = "renewing the lock";

/// How often a session that holds something asks whether the server is there.
const LOOK: Duration = Duration::from_millis(200);

/// What a session has, or is about to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) id: ClaimId,
    /// Somebody waits for it.
    pub(super) wanted: bool,
}

/// A beat was answered, or the session is over.
type Beaten = backend::Result<Option<Moment>>;

/// One open session.
pub(super) struct Lease {
    tether: Tether,
    site: Arc<Site>,
    runtime: Handle,
    /// In whole seconds, as the server counts.
    pub(super) ttl: Duration,
    epoch: Epoch,
    /// No fence above it is given before more are reserved.
    ceiling: Mutex<i64>,
    /// Before this nobody is let in: the server has started not long ago.
    pub(super) opens_at: Moment,
    life: Reckoning,
    beaten_at: Mutex<Moment>,
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
        let conn = site.dial().await?;
        let joined = site.in_time(join(conn, &site.id, ttl.as_secs(), &site.clock)).await?;
        let (now, sent_at) = (site.clock.now(), joined.sent_at);
        let quiet = joined.quiet;
        let lease = Arc::new(Lease {
            tether: Tether::start(joined.conn, &runtime, site.clock.clone()),
            site: site.clone(),
            runtime: runtime.clone(),
            ttl,
            epoch: joined.epoch,
            ceiling: Mutex::new(joined.ceiling),
            opens_at: if quiet.is_zero() { Moment::from_nanos(0) } else { now.after(quiet) },
            life: Reckoning::new(ttl, sent_at, joined.server),
            beaten_at: Mutex::new(sent_at),
            held: Mutex::default(),
            beating: Mutex::default(),
        });
        runtime.spawn(beat_on(Arc::downgrade(&lease), site.clone(), lease.tether.over(), waits));
        Ok(lease)
    }

    fn is_over(&self) -> bool {
        self.tether.is_closed() || self.proven_until() <= self.site.clock.now()
    }

    fn end(&self) {
        self.tether.end();
    }

    fn waiting(site: &Site) -> &Arc<Semaphore> {
        &site.waiting
    }

    fn no_runtime() -> Trouble {
        Trouble::NoRuntime
    }
}

impl Lease {
    pub(super) fn is_closed(&self) -> bool {
        self.tether.is_closed()
    }

    /// The session's number at the server.
    pub(super) fn number(&self) -> u32 {
        self.tether.number
    }

    /// When the last request was sent that was answered: the server keeps the session for a ttl from then on.
    fn proof(&self) -> Moment {
        self.life.proof()
    }

    fn proven_until(&self) -> Moment {
        self.life.proven_until()
    }

    /// What the server's clock shows, by the last reading of it: for operators only.
    pub(super) fn server_now(&self) -> i64 {
        self.life.server_now(self.site.clock.now())
    }

    /// Run a statement that answers soon.
    pub(super) async fn ask(&self, sql: String) -> Result<Answer> {
        let asked = self.site.in_time(self.tether.ask(sql)).await;
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
    pub(super) async fn wait(&self, sql: String) -> Result<Answer> {
        self.tether.ask(sql).await
    }

    /// The session lived at this moment.
    fn proven(&self, at: Moment) {
        self.life.proven(at);
    }

    /// The counter of a fence, from what the server counted while the lock was ours. If so many have been given that it is
    /// above what is reserved on disk, more are reserved first.
    pub(super) async fn counter(&self, uuid: u64) -> Result<u64> {
        let counter = self.epoch.counter(uuid).ok_or_else(odd)?;
        if *locked(&self.ceiling) <= counter {
            // Most often somebody else has done it, and nothing is written.
            let reserve = format!(
                "UPDATE lockkeeper_session_store SET ceiling = {} WHERE one = 1 AND ceiling <= {counter}",
                counter.saturating_add(RANGE)
            );
            self.ask(reserve).await?;
            let (rows, _) =
                self.ask("SELECT ceiling FROM lockkeeper_session_store WHERE one = 1".into()).await?;
            let ceiling = rows.first().and_then(|it| it.get_opt(0)?.ok()).ok_or_else(odd)?;
            if ceiling <= counter {
                return Err(odd());
            }
            *locked(&self.ceiling) = ceiling;
        }
        u64::try_from(counter).map_err(|_| odd())
    }

    /// A wait that was sent at `sent_at` was answered: the server's clock showed `server` when it let us in. If that does
    /// not tell enough about when it was by ours, a beat makes sure.
    pub(super) async fn let_in(self: &Arc<Self>, sent_at: Moment, server: i64) -> Beaten {
        let now = self.site.clock.now();
        match self.life.let_in(now, sent_at, server) {
            Some(at) => Ok(Some(at)),
            None if self.tether.is_closed() => Ok(None),
            // The session has waited, and may have lived all the while, although its proof is old.
            None => self.beat_within(now.after(self.ttl)).await,
        }
    }

    /// Keep this name for this claim, unless it is another's: a session is never refused what it has already.
    pub(super) fn reserve(&self, lock: NameHash, id: ClaimId) -> bool {
        let mut held = locked(&self.held);
        let free = !held.contains_key(&lock);
        if free {
            held.insert(lock, Holding { id, wanted: false });
        }
        free
    }

    pub(super) fn granted(&self, lock: NameHash, id: ClaimId, wanted: bool) {
        locked(&self.held).insert(lock, Holding { id, wanted });
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
        let asked = self.until(until, self.tether.ask(beat_sql())).await;
        let told = asked.and_then(|(rows, sent_at)| Ok((Beat::read(&rows)?, sent_at)));
        let (beat, sent_at) = match told {
            Ok(told) => told,
            Err(_) if self.tether.is_closed() || until <= self.site.clock.now() => {
                // Nothing that is heard from now on is believed.
                self.end();
                return Ok(None);
            }
            Err(trouble) => return Err(trouble.fault(RENEWING)),
        };
        self.life.beaten(sent_at, beat.server);
        *locked(&self.beaten_at) = sent_at;
        locked(&self.held).iter_mut().for_each(|(lock, it)| it.wanted = beat.waited.contains(lock));
        for lock in beat.broken {
            self.give_back(&lock).await;
        }
        Ok(Some(sent_at))
    }

    async fn until<T>(&self, until: Moment, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            out = work => out,
            () = self.site.clock.sleep_until(until) => Err(Trouble::Silent),
        }
    }

    /// An operator has taken this lock away.
    async fn give_back(&self, lock: &NameHash) {
        // First it is nobody's here, and then it is somebody else's.
        let holding = locked(&self.held).remove(lock);
        if let Some(holding) = holding {
            self.site.register.left(holding.id);
        }
        let _ = self.ask(self.site.leave_sql(lock)).await;
    }

    /// Ask whether the server is there.
    async fn look(&self) {
        match self.until(self.proven_until(), self.tether.ping()).await {
            Ok(sent_at) => self.proven(sent_at),
            Err(Trouble::Silent) => self.end(),
            Err(_) => {}
        }
    }

    /// What is to be done now, and when to come again.
    async fn step(self: &Arc<Self>, waits: bool) -> Moment {
        let clock = &self.site.clock;
        let holds = !locked(&self.held).is_empty();
        let (look, third) = (LOOK.min(self.ttl / 3), self.ttl / 3);
        let beat_due = locked(&self.beaten_at).after(third);
        if holds || !waits {
            if beat_due <= clock.now() {
                let _ = self.beat().await;
            } else if holds && self.proof().after(look) <= clock.now() {
                self.look().await;
            }
        }
        if !waits {
            self.site.register.write(self).await;
        }
        clock.now().after(look)
    }
}

/// Keep a session as long as somebody has a use for it, and tell when it has ended.
async fn beat_on(weak: Weak<Lease>, site: Arc<Site>, mut over: watch::Receiver<bool>, waits: bool) {
    loop {
        let Some(lease) = weak.upgrade() else { return };
        if lease.is_closed() {
            break;
        }
        let next = lease.step(waits).await;
        drop(lease);
        tokio::select! {
            biased;
            _ = over.wait_for(|it| *it) => break,
            () = site.clock.sleep_until(next) => {}
        }
    }
    site.alarm.send_modify(|it| *it = it.wrapping_add(1));
}

/// Rows of the kinds `c` the server's clock, `w` a lock that is waited for, `b` one that this session shall give back.
fn beat_sql() -> String {
    format!(
        "SELECT 'c', CAST({NOW} AS CHAR) \
         UNION ALL SELECT 'w', HEX(`lock`) FROM lockkeeper_session_claim WHERE counter = 0 \
         UNION ALL SELECT 'b', HEX(`lock`) FROM lockkeeper_session_broken WHERE conn = CONNECTION_ID()"
    )
}

/// What a beat was answered.
struct Beat {
    server: i64,
    waited: Vec<NameHash>,
    broken: Vec<NameHash>,
}

impl Beat {
    fn read(rows: &[Row]) -> Result<Self> {
        let (mut server, mut waited, mut broken) = (None, Vec::new(), Vec::new());
        for row in rows {
            let word = |at: usize| row.get_opt::<String, _>(at).and_then(std::result::Result::ok);
            let (kind, value) = word(0).zip(word(1)).ok_or_else(odd)?;
            match kind.as_str() {
                "c" => server = Some(number_of(&value)?),
                "w" => waited.push(hash_of(&value).ok_or_else(odd)?),
                _ => broken.push(hash_of(&value).ok_or_else(odd)?),
            }
        }
        Ok(Beat { server: server.ok_or_else(odd)?, waited, broken })
    }
}
