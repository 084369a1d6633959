//! A claim's place: a try on the shared session, or a session of its own in the server's line.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Grant, Place, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Load, Moment};
use tokio::sync::watch;

use super::super::NAME;
use super::super::fault::Trouble;
use super::Store;
use super::claimed::{Claimed, Held, On, State, Told, Waiting};
use super::join::{NOW, number_of, odd};
use super::lease::Lease;
use super::{Leases, whole_seconds};
use crate::leases::Leased as _;

const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";

/// So long a wait is waited for before it is asked whether it has begun.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The longest pause between two looks at what the server does with a session.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// When to ask again for a session to wait with.
const CROWDED: Duration = Duration::from_millis(20);

/// How often a wait is begun anew in one `turn` because its session was over.
const BEGINNINGS_MAX: u32 = 3;

/// The longest wait that the server bears, in seconds.
const FOR_EVER: u32 = 31_536_000;

/// How long the end of a session that waits is waited for.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A claim's place in a line of [`MysqlSessions`](super::MysqlSessions).
#[derive(Debug)]
pub struct MysqlSessionsPlace {
    store: Arc<Store>,
    claimed: Option<Arc<Claimed>>,
    claim: Claim,
    rung: Option<watch::Receiver<u64>>,
}

impl MysqlSessionsPlace {
    pub(super) fn new(store: Arc<Store>, claim: Claim) -> Self {
        MysqlSessionsPlace { store, claimed: None, claim, rung: None }
    }

    fn claimed(&mut self) -> Arc<Claimed> {
        let known = self.claimed.get_or_insert_with(|| self.store.claimed(&self.claim)).clone();
        self.rung.get_or_insert_with(|| known.rung.subscribe());
        known
    }

    /// Ask for the lock, from nothing.
    async fn ask(&self, claimed: &Arc<Claimed>, state: &mut State, called: Moment) -> Result<Turn> {
        let ttl = whole_seconds(self.claim.ttl);
        let leases = self.store.leases(ttl).map_err(|it| it.fault(TAKING))?;
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
        claimed: &Arc<Claimed>,
        state: &mut State,
        shared: &Arc<Lease>,
        called: Moment,
    ) -> Result<Option<Turn>> {
        let (lock, id) = (claimed.lock, self.claim.id);
        // From here on nobody knows whether it is ours, unless we are told.
        *state = State::InDoubt(shared.clone());
        let asked = shared.ask(take_sql(&claimed.name, 0)).await.map_err(|it| it.fault(TAKING))?;
        let sent_at = asked.1;
        let Some(taken) = Taken::read(&asked.0).map_err(|it| it.fault(TAKING))? else {
            *state = State::Out;
            shared.unreserve(&lock, id);
            return Ok(None);
        };
        let counter = shared.counter(taken.uuid).await.map_err(|it| it.fault(TAKING))?;
        shared.granted(lock, id, false);
        self.store.register.stands(claimed, shared.number(), counter, taken.server);
        *state = State::Held(Held { on: On::Shared(shared.clone()), counter });
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
            self.store.register.stands(claimed, waiter.lease.number(), 0, shared.server_now());
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
            Told::LetIn { counter, waited, proven_at } => {
                *state = State::Held(Held { on: On::Own(waiting.waiter, waiting.leases), counter });
                Ok(Some(self.held(counter, proven_at, called, waited)))
            }
            Told::Over => {
                self.out_of_the_line(waiting);
                Ok(None)
            }
            Told::Failed(fault) => {
                self.out_of_the_line(waiting);
                Err(fault)
            }
        }
    }

    fn out_of_the_line(&self, waiting: Waiting) {
        self.store.register.left(self.claim.id);
        waiting.waiter.end();
    }

    /// Whoever is told to wait has its place in the server's line: those who ask later come later.
    async fn until_standing(
        &self,
        waiting: &mut Waiting,
        shared: &Lease,
    ) -> std::result::Result<Option<Told>, Trouble> {
        let mut pause = AT_ONCE;
        let stands = format!(
            "SELECT 1 FROM information_schema.processlist WHERE id = {} AND state = 'User lock'",
            waiting.waiter.lease.number()
        );
        loop {
            tokio::select! {
                biased;
                told = waiting.told.wait_for(Option::is_some) => {
                    return Ok(Some(told.map_or(Told::Over, |it| it.clone().unwrap_or(Told::Over))));
                }
                () = self.store.clock.sleep(pause) => {}
            }
            let (rows, _) = shared.ask(stands.clone()).await?;
            if !rows.is_empty() {
                return Ok(None);
            }
            pause = (pause * 2).min(PAUSE_MAX);
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
            let name = &claimed.name;
            let sql =
                format!("SELECT IF(IS_USED_LOCK('{name}') = CONNECTION_ID(), RELEASE_LOCK('{name}'), 0)");
            if let Err(trouble) = lease.ask(sql).await
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
            let left = lease.ask(release_sql(&claimed.name)).await;
            if let Err(trouble) = left
                && !lease.is_closed()
            {
                return Err(trouble.fault(LEAVING));
            }
        }
        lease.unreserve(&claimed.lock, self.claim.id);
        self.store.register.left(self.claim.id);
        Ok(())
    }

    /// Leave the server's line: the session that stands there is ended, and we are told when it is gone.
    async fn step_out(&self, waiting: &Waiting) -> Result<()> {
        let lease = waiting.waiter.lease.clone();
        if lease.is_closed() {
            return Ok(());
        }
        let shared = waiting.leases.shared().await.map_err(|it| it.fault(LEAVING))?;
        // It may have ended meanwhile: then there is no such session.
        if let Err(trouble) = shared.ask(format!("KILL {}", lease.number())).await
            && !trouble.is_answer()
        {
            return Err(trouble.fault(LEAVING));
        }
        self.until_gone(&lease, &shared).await.map_err(|it| it.fault(LEAVING))
    }

    /// The server closes a killed session's connection first, and only then takes it out of the line: until it is gone
    /// from the list of sessions, whoever leaves could still hand the lock to it.
    async fn until_gone(&self, lease: &Lease, shared: &Lease) -> std::result::Result<(), Trouble> {
        let lives = format!("SELECT 1 FROM information_schema.processlist WHERE id = {}", lease.number());
        let until = self.store.clock.now().after(END_WITHIN);
        let mut pause = AT_ONCE;
        while !shared.ask(lives.clone()).await?.0.is_empty() && self.store.clock.now() < until {
            self.store.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(())
    }
}

/// Take a lock if it is free within so many seconds. What follows the taking is asked for only when it is ours.
fn take_sql(name: &str, seconds: u32) -> String {
    format!("SELECT IF(GET_LOCK('{name}', {seconds}) = 1, CONCAT_WS(' ', UUID_SHORT(), {NOW}), '0')")
}

pub(super) fn release_sql(name: &str) -> String {
    format!("DO RELEASE_LOCK('{name}')")
}

/// What a take answered, if it is ours.
struct Taken {
    uuid: u64,
    /// The server's clock when it was granted.
    server: i64,
}

impl Taken {
    fn read(rows: &[mysql_async::Row]) -> std::result::Result<Option<Self>, Trouble> {
        let word: Option<String> = rows.first().and_then(|it| it.get_opt(0)?.ok());
        let word = word.ok_or_else(odd)?;
        let Some((uuid, server)) = word.split_once(' ') else { return Ok(None) };
        Ok(Some(Taken { uuid: uuid.parse().map_err(|_| odd())?, server: number_of(server)? }))
    }
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

async fn wait(store: &Store, claimed: &Arc<Claimed>, lease: &Arc<Lease>, leases: &Leases) -> Told {
    let failed = |trouble: Trouble| {
        if lease.is_closed() { Told::Over } else { Told::Failed(trouble.fault(TAKING)) }
    };
    let began = store.clock.now();
    let (rows, sent_at) = match lease.wait(take_sql(&claimed.name, FOR_EVER)).await {
        Ok(answer) => answer,
        Err(trouble) => return failed(trouble),
    };
    let taken = match Taken::read(&rows) {
        Ok(Some(taken)) => taken,
        // The server gave up waiting: so may we.
        Ok(None) => return failed(Trouble::Silent),
        Err(trouble) => return failed(trouble),
    };
    let counter = match lease.counter(taken.uuid).await {
        Ok(counter) => counter,
        Err(trouble) => return failed(trouble),
    };
    let waited = AT_ONCE <= store.clock.now() - began;
    leases.note(claimed.lock, waited, store.clock.now());
    lease.granted(claimed.lock, claimed.claim.id, waited);
    store.register.stands(claimed, lease.number(), counter, taken.server);
    match lease.let_in(sent_at, taken.server).await {
        Ok(Some(proven_at)) => Told::LetIn { counter, waited, proven_at },
        Ok(None) => Told::Over,
        Err(fault) => Told::Failed(fault),
    }
}

impl Place for MysqlSessionsPlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(NAME)?;
        if self.claim.load != Load::MUTEX && !self.claim.load.is_exclusive() {
            let what = "session locks have one holder at a time; use `lock`, or durable locks for shares and permits";
            return Err(Fault::permanent(NAME, TAKING, what));
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
        match &mut *state {
            State::Out => return Ok(()),
            State::InDoubt(lease) => {
                let lease = lease.clone();
                self.undo(&claimed, &lease, LEAVING).await?;
            }
            State::Held(held) => self.give_back(&claimed, held).await?,
            State::Waiting(waiting) => self.step_out(waiting).await?,
        }
        match std::mem::replace(&mut *state, State::Out) {
            State::Held(Held { on: On::Own(waiter, leases), .. }) => leases.spare(waiter),
            State::Waiting(waiting) => self.out_of_the_line(waiting),
            State::Out | State::InDoubt(_) | State::Held(_) => {}
        }
        Ok(())
    }
}

impl MysqlSessionsPlace {
    /// What was ours is not any more.
    fn lost(&self, claimed: &Claimed, state: &mut State) {
        let State::Held(held) = std::mem::replace(state, State::Out) else { return };
        held.on.lease().unreserve(&claimed.lock, self.claim.id);
        self.store.register.left(self.claim.id);
        if let On::Own(waiter, _) = held.on {
            waiter.end();
        }
    }
}

impl Drop for MysqlSessionsPlace {
    fn drop(&mut self) {
        if self.claimed.take().is_some() {
            self.store.forget(self.claim.id);
        }
    }
}
