//! What keeps a locker's locks and places: a connection on the locker's own thread, which no user code can block
//! and on which nothing stands before a renewal. Messages arrive by it, too.
//!
//! It is open before the first lock is granted, and opened again as soon as it breaks: a renewal must not find
//! that the server has no connection left.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::ClaimId;
use lockkeeper_core::backend::{Renewal, Result};
use tokio::runtime::Handle;
use tokio_postgres::types::Type;

use super::crowd::{Position, Seen, columns, least_patience, odd, shared_by};
use super::hear;
use super::session::{Ears, Param};
use super::way::{Shared, Way};
use crate::name::micros_up;
use crate::retry;
use lockkeeper_core::kit::lane::{self, Carry, Lane};

const RENEWING: &str = "renewing the lock";
const LISTENING: &str = "listening for others";
const KEEPING: &str = "keeping a place in line";

/// The most in one statement.
const RENEWALS: usize = 500;
const PLACES: usize = 100;

/// How long a process goes on listening when nobody here waits any more.
const LINGER: Duration = Duration::from_secs(2);

/// One locker's keeper.
pub(crate) struct Keeper {
    way: Arc<Way>,
    ears: Arc<Ears>,
    /// The channel of this keeper: letters and digits.
    pub(super) channel: Arc<str>,
    renewals: Lane<Renew, Renewal>,
    places: Lane<Keep, Seen>,
    near: NearClaims,
    /// Acquire and Release, and only ever swapped: who finds that somebody rests already is seen by that one.
    resting: AtomicBool,
    /// How often we have begun to listen. Release and Acquire: counted before it is said that we listen, and read after that was seen.
    begun: AtomicU64,
    /// Held while we begin or cease to listen.
    changing: tokio::sync::Mutex<()>,
}

/// A lock to be renewed.
#[derive(Debug)]
struct Renew(Position);

/// A place in line to be kept, and whether it can be called.
#[derive(Debug)]
struct Keep(Position, Option<Arc<str>>);

impl Keeper {
    /// On the present runtime, which is the locker's own.
    pub(crate) fn start(shared: Arc<Shared>, runtime: &Handle) -> Result<Arc<Self>> {
        let id = ClaimId::random().map_err(|it| {
            let what = "no random name for its channel could be drawn";
            lockkeeper_core::backend::Fault::transient(super::NAME, KEEPING, what).with_source(it)
        })?;
        let ears = Ears::new(shared.wake.clone());
        let keeper = Arc::new(Keeper {
            way: Way::new(shared, runtime.clone(), Some(ears.clone())),
            ears,
            channel: format!("lockkeeper_{}", id.to_hex()).into(),
            renewals: Lane::new(2, RENEWALS),
            places: Lane::new(1, PLACES),
            near: NearClaims::default(),
            resting: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            changing: tokio::sync::Mutex::default(),
        });
        runtime.spawn(stay_open(Arc::downgrade(&keeper), keeper.ears.clone()));
        Ok(keeper)
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.way.runtime
    }

    pub(crate) fn way(&self) -> &Arc<Way> {
        &self.way
    }

    pub(crate) fn is_open(&self) -> bool {
        self.way.open_session().is_some()
    }

    /// What renewals need is there: nothing may be granted before.
    pub(crate) async fn ready(&self, doing: &'static str) -> Result<()> {
        self.way.session().await.map(drop).map_err(|it| it.fault(doing))
    }

    /// Renew together with whoever else asks now.
    pub(crate) async fn renew(self: &Arc<Self>, due: Position) -> Result<Renewal> {
        let answer = lane::ask(self, self.runtime(), Renew(due)).await;
        answer.unwrap_or_else(|| Err(super::fault::Trouble::NoRuntime.fault(RENEWING)))
    }

    /// Keep a place together with all others of this process, without a word to the line.
    pub(crate) async fn keep(self: &Arc<Self>, at: Position, wake: Option<Arc<str>>) -> Result<Seen> {
        let answer = lane::ask(self, self.runtime(), Keep(at, wake)).await;
        answer.unwrap_or_else(|| Err(super::fault::Trouble::NoRuntime.fault(KEEPING)))
    }

    /// Since when we listen without a break: a number that changes when we begin anew. `None` if we do not.
    pub(crate) fn listens_since(&self) -> Option<u64> {
        self.is_listening().then(|| self.begun.load(Ordering::Acquire))
    }

    /// A claim of ours holds, and can be called from now on. Whether there is something to hear already.
    pub(crate) async fn hear(&self, at: &Position) -> Result<bool> {
        let (lock, id) = (at.lock.as_slice(), at.claim.id.as_bytes().as_slice());
        let params: [Param<'_>; 4] =
            [(&lock, Type::BYTEA), (&id, Type::BYTEA), (&at.seq, Type::INT8), (&&*self.channel, Type::TEXT)];
        let answer =
            self.way.ask(LISTENING, &self.way.shared.sql.hear, &params, at.patience(&self.way)).await?;
        match answer.numbers(LISTENING)?[..] {
            [state] => Ok(state != 1),
            _ => Err(odd(LISTENING)),
        }
    }

    /// Whether messages arrive at present.
    pub(crate) fn is_listening(&self) -> bool {
        self.way.open_session().is_some_and(|it| it.listens.load(Ordering::SeqCst))
    }

    /// Whether we cannot be called at all: by choice, or because the session may be another's the next moment.
    pub(crate) fn is_deaf(&self) -> bool {
        !self.way.shared.options.listen || self.way.open_session().is_some_and(|it| !it.is_ours())
    }

    /// Begin to listen. `false` if messages do not arrive here.
    pub(crate) async fn listen(self: &Arc<Self>) -> bool {
        if self.is_listening() {
            return true;
        }
        if self.is_deaf() {
            return false;
        }
        let keeper = self.clone();
        // By a task of our own: whoever wants it may go away half-way.
        let listening = self.runtime().spawn(async move { keeper.listen_now().await });
        listening.await.unwrap_or(false)
    }

    async fn listen_now(&self) -> bool {
        let _changing = self.changing.lock().await;
        if self.is_listening() {
            return true;
        }
        let Ok(session) = self.way.session().await else { return false };
        if self.is_deaf() {
            return false;
        }
        let begun = hear::begin(&self.way.shared, &session, &self.channel).await;
        if begun {
            self.begun.fetch_add(1, Ordering::AcqRel);
            session.listens.store(true, Ordering::SeqCst);
        } else {
            self.way.forget(&session);
        }
        begun
    }

    /// Every process that listens costs whoever calls another: the server wakes them all. So nobody listens for
    /// long without need.
    fn rest(self: &Arc<Self>) {
        if !self.is_listening() || self.resting.swap(true, Ordering::AcqRel) {
            return;
        }
        let keeper = self.clone();
        self.runtime().spawn(async move {
            keeper.way.shared.clock.sleep(LINGER).await;
            keeper.resting.swap(false, Ordering::AcqRel);
            keeper.unlisten().await;
        });
    }

    /// We stand at the end of a long line: there is nothing to hear for a while.
    pub(crate) fn far(self: &Arc<Self>) {
        if self.near.are_none() && self.is_listening() {
            let keeper = self.clone();
            self.runtime().spawn(async move { keeper.unlisten().await });
        }
    }

    async fn unlisten(&self) {
        let _changing = self.changing.lock().await;
        let Some(session) = self.way.open_session() else { return };
        let cease = || session.listens.swap(false, Ordering::SeqCst);
        if self.near.unless_any(cease, || session.listens.store(true, Ordering::SeqCst)) {
            // If it fails the session is broken, which the next verb notices.
            let unlisten = format!("UNLISTEN {}", self.channel);
            let _ = self.way.shared.in_time(session.client.batch_execute(&unlisten)).await;
        }
    }
}

/// How many of our claims may be called any time. In one order with whether the session listens (`SeqCst`): a claim counts itself and then
/// looks whether we listen, and who ends that says so and then looks for claims. So one of the two sees the other.
#[derive(Debug, Default)]
struct NearClaims(AtomicUsize);

impl NearClaims {
    fn are_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Cease, unless there are any. Who comes meanwhile may have seen that we go on: for that one we do.
    fn unless_any(&self, cease: impl FnOnce() -> bool, go_on: impl FnOnce()) -> bool {
        if !self.are_none() || !cease() {
            return false;
        }
        let nobody_came = self.are_none();
        if !nobody_came {
            go_on();
        }
        nobody_came
    }
}

/// One of our claims may be called any time.
pub(crate) struct Near(Arc<Keeper>);

impl Near {
    pub(crate) fn new(keeper: &Arc<Keeper>) -> Self {
        keeper.near.0.fetch_add(1, Ordering::SeqCst);
        Near(keeper.clone())
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        if self.0.near.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.rest();
        }
    }
}

impl std::fmt::Debug for Near {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Near")
    }
}

/// Open the connection again whenever it breaks, until the keeper is gone.
async fn stay_open(weak: Weak<Keeper>, ears: Arc<Ears>) {
    loop {
        ears.ended.notified().await;
        // Whoever holds cannot be called until another is open, and must not stay idle meanwhile.
        ears.wake.all().iter().filter(|it| it.holds()).for_each(|it| it.ring());
        for attempt in 0.. {
            let Some(keeper) = weak.upgrade() else { return };
            let opened = keeper.way.session().await.is_ok();
            if opened && (keeper.near.are_none() || keeper.listen_now().await || keeper.is_deaf()) {
                // Messages may have been missed.
                ears.wake.all().iter().for_each(|it| it.ring());
                break;
            }
            let clock = keeper.way.shared.clock.clone();
            drop(keeper);
            let pause = retry::pause(attempt, Duration::from_millis(20), Duration::from_secs(5));
            clock.sleep(pause).await;
        }
    }
}

impl Carry<Renew, Renewal> for Keeper {
    fn lane(&self) -> &Lane<Renew, Renewal> {
        &self.renewals
    }

    async fn carry(&self, items: Vec<Renew>) -> Vec<Result<Renewal>> {
        let all = || items.iter().map(|it| &it.0);
        let (locks, ids, seqs) = columns(all());
        let ttls: Vec<i64> = all().map(|it| micros_up(it.claim.ttl)).collect();
        let params: [Param<'_>; 4] = [
            (&locks, Type::BYTEA_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
        ];
        let bears = least_patience(&self.way, all());
        let answer = match self.way.ask(RENEWING, &self.way.shared.sql.renew, &params, bears).await {
            Ok(answer) => answer,
            Err(fault) => return shared_by(items.len(), Err(fault)),
        };
        let renewal = |(due, answered): (&Position, i64)| match answered {
            0 => Ok(Renewal::Lost),
            it => Ok(Renewal::held(due.claim.ttl, it == 2).sent_at(answer.sent_at)),
        };
        match answer.numbers(RENEWING) {
            Ok(numbers) if numbers.len() == items.len() => all().zip(numbers).map(renewal).collect(),
            Ok(_) => shared_by(items.len(), Err(odd(RENEWING))),
            Err(fault) => shared_by(items.len(), Err(fault)),
        }
    }
}

impl Carry<Keep, Seen> for Keeper {
    fn lane(&self) -> &Lane<Keep, Seen> {
        &self.places
    }

    async fn carry(&self, items: Vec<Keep>) -> Vec<Result<Seen>> {
        let all = || items.iter().map(|it| &it.0);
        let (locks, ids, seqs) = columns(all());
        let ttls: Vec<i64> = all().map(|it| micros_up(it.claim.ttl)).collect();
        let wakes: Vec<Option<&str>> = items.iter().map(|it| it.1.as_deref()).collect();
        let params: [Param<'_>; 5] = [
            (&locks, Type::BYTEA_ARRAY),
            (&ids, Type::BYTEA_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&wakes, Type::TEXT_ARRAY),
        ];
        let bears = least_patience(&self.way, all());
        let answer = self.way.ask(KEEPING, &self.way.shared.sql.keep, &params, bears).await;
        match answer.and_then(|it| it.numbers(KEEPING)) {
            Ok(numbers) if numbers.len() == items.len() * Seen::NUMBERS => {
                numbers.chunks(Seen::NUMBERS).map(|it| Seen::read(it).ok_or_else(|| odd(KEEPING))).collect()
            }
            Ok(_) => shared_by(items.len(), Err(odd(KEEPING))),
            Err(fault) => shared_by(items.len(), Err(fault)),
        }
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("channel", &self.channel).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_claim_that_comes_while_we_cease_to_listen_is_seen() {
        let (near, listens) = (NearClaims::default(), Cell::new(true));
        // It counts itself, and sees that we listen still.
        let comes = || {
            near.0.fetch_add(1, Ordering::SeqCst);
            listens.replace(false)
        };
        assert!(!near.unless_any(comes, || listens.set(true)));
        assert!(listens.get(), "it relies on that");
        assert!(!near.unless_any(|| listens.replace(false), || {}), "it is there");
        assert!(listens.get());
        near.0.fetch_sub(1, Ordering::SeqCst);
        assert!(near.unless_any(|| listens.replace(false), || listens.set(true)));
        assert!(!listens.get());
        assert!(
            !near.unless_any(|| listens.replace(false), || listens.set(true)),
            "there was nothing to end"
        );
    }
}
