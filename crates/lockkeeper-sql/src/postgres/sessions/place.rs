//! A claim's place: a try on the shared session, or a session of its own in the server's line.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Load, Moment};
use tokio::sync::watch;
use tokio_postgres::types::Type;

use super::super::NAME;
use super::super::fault::Trouble;
use super::super::session::Param;
use super::Leases;
use super::Store;
use super::claimed::{Claimed, Held, On, State, Told, Waiting};
use super::lease::{Lease, numbers, odd};
use crate::leases::Leased as _;
use crate::name::printable;

const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";

/// So long a wait is waited for before it is asked whether it has begun.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// When to ask again for a session to wait with.
const CROWDED: Duration = Duration::from_millis(20);

/// How often a wait is begun anew in one `turn` because its session was over.
const BEGINNINGS_MAX: u32 = 3;

/// A claim's place in a line of [`PostgresSessions`](super::PostgresSessions).
#[derive(Debug)]
pub struct PostgresSessionsPlace {
    store: Arc<Store>,
    claimed: Option<Arc<Claimed>>,
    claim: Claim,
    rung: Option<watch::Receiver<u64>>,
}

impl PostgresSessionsPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        PostgresSessionsPlace { store, claimed: None, claim, rung: None }
    }

    fn claimed(&mut self) -> Arc<Claimed> {
        let known = self.claimed.get_or_insert_with(|| self.store.claimed(&self.claim)).clone();
        self.rung.get_or_insert_with(|| known.rung.subscribe());
        known
    }

    /// Ask for the lock, from nothing.
    async fn ask(&self, claimed: &Arc<Claimed>, state: &mut State, called: Moment) -> Result<Turn> {
        let leases = self.store.leases(self.claim.ttl).map_err(|it| it.fault(TAKING))?;
        let shared = leases.shared().await.map_err(|it| it.fault(TAKING))?;
        let now = self.store.clock.now();
        if now < shared.opens_at {
            let recheck = (shared.opens_at - now).min(self.claim.ttl / 3).max(RECHECK_MIN);
            return Ok(Turn::wait(recheck, None));
        }
        let contended = self.claim.patient && leases.is_contended(&claimed.lock, now);
        if !contended && shared.reserve(claimed.lock, self.claim.id) {
            if let Some(turn) = self.try_shared(claimed, state, &shared, called).await? {
                return Ok(turn);
            }
            leases.note(claimed.lock, true, now);
        }
        if !self.claim.patient {
            return Ok(Turn::wait(self.claim.ttl / 3, None));
        }
        self.stand(claimed, state, &leases, &shared, called).await
    }

    /// One statement on the shared session. `None` if the lock is another's.
    async fn try_shared(
        &self,
        claimed: &Claimed,
        state: &mut State,
        shared: &Arc<Lease>,
        called: Moment,
    ) -> Result<Option<Turn>> {
        let (lock, id) = (claimed.lock, self.claim.id);
        // From here on nobody knows whether it is ours, unless we are told.
        *state = State::InDoubt(shared.clone());
        let (told, sent_at) =
            take(&self.store, claimed, shared, false).await.map_err(|it| it.fault(TAKING))?;
        *state = State::Out;
        let Some((counter, number)) = told.granted() else {
            shared.unreserve(&lock, id);
            return Ok(None);
        };
        shared.granted(lock, id, number, false);
        *state = State::Held(Held { on: On::Shared(shared.clone()), number, counter });
        Ok(Some(self.held(counter, sent_at, called, false)))
    }

    /// Stand in the server's line with a session of its own, or be let in.
    async fn stand(
        &self,
        claimed: &Arc<Claimed>,
        state: &mut State,
        leases: &Arc<Leases>,
        shared: &Arc<Lease>,
        called: Moment,
    ) -> Result<Turn> {
        for _ in 0..BEGINNINGS_MAX {
            let Some(waiter) = leases.waiter().await.map_err(|it| it.fault(TAKING))? else {
                return Ok(Turn::wait(CROWDED.min(self.claim.ttl / 3), None).crowded());
            };
            let told = begin(&self.store, claimed, leases, &waiter.lease);
            *state = State::Waiting(Waiting { waiter, leases: leases.clone(), told });
            if let Some(turn) = self.look(state, Some(shared), called).await? {
                return Ok(turn);
            }
        }
        Err(Trouble::Silent.fault(TAKING))
    }

    /// What has come of waiting. `None` if the session is over: the state says that we are out of the line.
    async fn look(
        &self,
        state: &mut State,
        make_sure: Option<&Arc<Lease>>,
        called: Moment,
    ) -> Result<Option<Turn>> {
        let State::Waiting(waiting) = state else { return Ok(None) };
        let mut told = waiting.told.borrow().clone();
        if let (None, Some(shared)) = (&told, make_sure) {
            told = self.until_standing(waiting, shared).await.map_err(|it| it.fault(TAKING))?;
        }
        let Some(told) = told else {
            return Ok(Some(Turn::wait(self.claim.ttl / 3, None)));
        };
        let State::Waiting(waiting) = std::mem::replace(state, State::Out) else { return Ok(None) };
        match told {
            Told::LetIn { counter, number, waited, proven_at } => {
                let on = On::Own(waiting.waiter, waiting.leases);
                *state = State::Held(Held { on, number, counter });
                Ok(Some(self.held(counter, proven_at, called, waited)))
            }
            Told::Over => {
                waiting.waiter.end();
                Ok(None)
            }
            Told::Failed(fault) => {
                waiting.waiter.end();
                Err(fault)
            }
        }
    }

    /// Whoever is told to wait has its place in the server's line: those who ask later come later.
    async fn until_standing(
        &self,
        waiting: &mut Waiting,
        shared: &Lease,
    ) -> std::result::Result<Option<Told>, Trouble> {
        let Some(identity) = waiting.waiter.lease.identity().cloned() else { return Err(odd()) };
        let mut pause = AT_ONCE;
        loop {
            tokio::select! {
                biased;
                told = waiting.told.wait_for(Option::is_some) => {
                    return Ok(Some(told.map_or(Told::Over, |it| it.clone().unwrap_or(Told::Over))));
                }
                () = self.store.clock.sleep(pause) => {}
            }
            let params: [Param<'_>; 2] = [(&identity.pid, Type::INT8), (&identity.began, Type::TEXT)];
            let (rows, _) = shared.ask(self.store.sql.stands, &params).await?;
            if rows.first().is_some_and(|it| matches!(it.try_get(0), Ok(Some(true)))) {
                return Ok(None);
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// A grant whose session lived at `proven_at`.
    fn held(&self, counter: u64, proven_at: Moment, called: Moment, wanted: bool) -> Turn {
        let ttl = self.claim.ttl;
        let grant = if called <= proven_at {
            Grant::new(counter, ttl).sent_at(proven_at)
        } else {
            Grant::new(counter, proven_at.after(ttl) - called)
        };
        Turn::Held(grant.wanted(wanted))
    }

    /// Asked again while it is ours.
    async fn still(&self, claimed: &Claimed, held: &Held, called: Moment) -> Result<Option<Turn>> {
        let lease = held.on.lease();
        if lease.holding(&claimed.lock, self.claim.id).is_none() {
            return Ok(None);
        }
        let Some(sent_at) = lease.beat().await? else { return Ok(None) };
        let holding = lease.holding(&claimed.lock, self.claim.id);
        Ok(holding.map(|it| self.held(held.counter, sent_at, called, it.wanted)))
    }

    /// Give back what a take did of which nobody heard.
    async fn undo(&self, claimed: &Claimed, lease: &Lease, doing: &'static str) -> Result<()> {
        if !lease.is_over() {
            let lock = claimed.lock.as_slice();
            let params: [Param<'_>; 2] = [(&lease.class, Type::INT4), (&lock, Type::BYTEA)];
            let undone = lease.ask(&self.store.sql.undo, &params).await;
            if let Err(trouble) = undone
                && !lease.is_closed()
            {
                return Err(trouble.fault(doing));
            }
        }
        lease.unreserve(&claimed.lock, self.claim.id);
        Ok(())
    }

    async fn give_back(&self, claimed: &Claimed, held: &Held) -> Result<()> {
        let lease = held.on.lease();
        if lease.holding(&claimed.lock, self.claim.id).is_some() && !lease.is_closed() {
            let sql = if claimed.is_noted() { &self.store.sql.leave_noted } else { self.store.sql.leave };
            let narrow = i32::try_from(held.number).unwrap_or_default();
            let number: Param<'_> =
                if claimed.is_noted() { (&held.number, Type::INT8) } else { (&narrow, Type::INT4) };
            let left = lease.ask(sql, &[(&lease.class, Type::INT4), number]).await;
            if let Err(trouble) = left
                && !lease.is_closed()
            {
                return Err(trouble.fault(LEAVING));
            }
        }
        lease.unreserve(&claimed.lock, self.claim.id);
        Ok(())
    }

    /// Leave the server's line: the session that stands there is ended, and we are told when it is gone.
    async fn step_out(&self, waiting: &Waiting) -> Result<()> {
        let lease = &waiting.waiter.lease;
        if lease.is_closed() {
            return Ok(());
        }
        let Some(identity) = lease.identity().cloned() else { return Ok(()) };
        let shared = waiting.leases.shared().await.map_err(|it| it.fault(LEAVING))?;
        let params: [Param<'_>; 2] = [(&identity.pid, Type::INT8), (&identity.began, Type::TEXT)];
        shared.ask(self.store.sql.end, &params).await.map_err(|it| it.fault(LEAVING))?;
        Ok(())
    }
}

/// What a take answered.
struct Taken([i64; 4]);

impl Taken {
    /// Its counter and number, if it is ours.
    fn granted(&self) -> Option<(u64, i64)> {
        let counter = u64::try_from(self.0[0]).ok().filter(|it| *it != 0)?;
        Some((counter, self.0[1]))
    }
}

async fn take(
    store: &Store,
    claimed: &Claimed,
    lease: &Lease,
    wait: bool,
) -> super::super::fault::Result<(Taken, Moment)> {
    let (lock, name, label) = (claimed.lock.as_slice(), claimed.claim.key.as_str(), &claimed.claim.label);
    let (owner, note) = (label.owner.as_deref().map(printable), label.note.as_deref().map(printable));
    let params: [Param<'_>; 6] = [
        (&lease.class, Type::INT4),
        (&lock, Type::BYTEA),
        (&name, Type::TEXT),
        (&wait, Type::BOOL),
        (&owner, Type::TEXT),
        (&note, Type::TEXT),
    ];
    let sql = &store.sql.take;
    let (rows, sent_at) =
        if wait { lease.wait(sql, &params).await? } else { lease.ask(sql, &params).await? };
    let taken = numbers(&rows)?.try_into().map_err(|_| odd())?;
    Ok((Taken(taken), sent_at))
}

/// Begin to wait: a task of our own runtime hears the answer, whoever listens.
fn begin(
    store: &Arc<Store>,
    claimed: &Arc<Claimed>,
    leases: &Arc<Leases>,
    lease: &Arc<Lease>,
) -> watch::Receiver<Option<Told>> {
    let (tell, told) = watch::channel(None);
    let (store, claimed, lease) = (store.clone(), claimed.clone(), lease.clone());
    let leases = leases.clone();
    leases.runtime.clone().spawn(async move {
        let outcome = wait(&store, &claimed, &lease, &leases).await;
        let _ = tell.send(Some(outcome));
        claimed.rung.send_modify(|it| *it = it.wrapping_add(1));
    });
    told
}

async fn wait(store: &Store, claimed: &Claimed, lease: &Arc<Lease>, leases: &Leases) -> Told {
    let taken = match take(store, claimed, lease, true).await {
        Ok(taken) => taken,
        Err(_) if lease.is_closed() => return Told::Over,
        Err(trouble) => return Told::Failed(trouble.fault(TAKING)),
    };
    let (Taken([_, _, server, waited]), sent_at) = taken;
    let Some((counter, number)) = taken.0.granted() else { return Told::Failed(odd().fault(TAKING)) };
    let waited = waited != 0;
    leases.note(claimed.lock, waited, store.clock.now());
    lease.granted(claimed.lock, claimed.claim.id, number, waited);
    match lease.let_in(sent_at, server).await {
        Ok(Some(proven_at)) => Told::LetIn { counter, number, waited, proven_at },
        Ok(None) => Told::Over,
        Err(fault) => Told::Failed(fault),
    }
}

impl Place for PostgresSessionsPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(NAME)?;
        if self.claim.load != Load::MUTEX && !self.claim.load.is_exclusive() {
            let what = "session locks have one holder at a time; use `lock`, or durable locks for shares and permits";
            return Err(lockkeeper_core::backend::Fault::permanent(NAME, TAKING, what));
        }
        let (called, claimed) = (self.store.clock.now(), self.claimed());
        let mut state = claimed.state.lock().await;
        match &mut *state {
            State::Out => {}
            State::InDoubt(lease) => {
                let lease = lease.clone();
                self.undo(&claimed, &lease, TAKING).await?;
                *state = State::Out;
            }
            State::Held(held) => {
                if let Some(turn) = self.still(&claimed, held, called).await? {
                    return Ok(turn);
                }
                self.lost(&claimed, &mut state);
            }
            State::Waiting(_) => {
                if let Some(turn) = self.look(&mut state, None, called).await? {
                    return Ok(turn);
                }
            }
        }
        self.ask(&claimed, &mut state, called).await
    }

    async fn changed(&mut self) {
        let Some(rung) = &mut self.rung else { return std::future::pending().await };
        if rung.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (called, claimed) = (self.store.clock.now(), self.claimed());
        let mut state = claimed.state.lock().await;
        let State::Held(held) = &*state else { return Ok(Renewal::Lost) };
        if let Some(Turn::Held(grant)) = self.still(&claimed, held, called).await? {
            let renewal = Renewal::held(grant.valid_for, grant.wanted);
            return Ok(grant.sent_at.map_or(renewal, |at| renewal.sent_at(at)));
        }
        self.lost(&claimed, &mut state);
        Ok(Renewal::Lost)
    }

    async fn leave(&mut self) -> Result<()> {
        let Some(claimed) = self.claimed.clone() else { return Ok(()) };
        let mut state = claimed.state.lock().await;
        match &*state {
            State::Out => return Ok(()),
            State::InDoubt(lease) => self.undo(&claimed, lease, LEAVING).await?,
            State::Held(held) => self.give_back(&claimed, held).await?,
            State::Waiting(waiting) => self.step_out(waiting).await?,
        }
        match std::mem::replace(&mut *state, State::Out) {
            State::Held(Held { on: On::Own(waiter, leases), .. }) => leases.spare(waiter),
            State::Waiting(waiting) => waiting.waiter.end(),
            State::Out | State::InDoubt(_) | State::Held(_) => {}
        }
        Ok(())
    }
}

impl PostgresSessionsPlace {
    /// What was ours is not any more.
    fn lost(&self, claimed: &Claimed, state: &mut State) {
        let State::Held(held) = std::mem::replace(state, State::Out) else { return };
        held.on.lease().unreserve(&claimed.lock, self.claim.id);
        if let On::Own(waiter, _) = held.on {
            waiter.end();
        }
    }
}

impl Drop for PostgresSessionsPlace {
    fn drop(&mut self) {
        if self.claimed.take().is_some() {
            self.store.forget(self.claim.id);
        }
    }
}
