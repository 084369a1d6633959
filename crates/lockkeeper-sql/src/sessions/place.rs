//! A claim's place: a try on the shared session, or a session of its own in the server's line.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Grant, Renewal, Result, Turn};
use lockkeeper_core::{Claim, Load, Moment};
use tokio::sync::watch;

use super::claimed::{Held, On, State, Told, Waiting};
use super::conversation::{Conversation, Trouble as _};
use super::wait::{Wait, begin};
use super::{Claimed, Lease, Leases, Store};

pub(super) const TAKING: &str = "taking the lock";
const LEAVING: &str = "giving the lock back";

/// The shortest pause before a look at what the server does with a session.
pub(super) const AT_ONCE: Duration = Duration::from_millis(1);

/// The longest pause between two such looks.
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The shortest time after which asking again is worthwhile.
const RECHECK_MIN: Duration = Duration::from_millis(1);

/// When to ask again for a session to wait with.
const CROWDED: Duration = Duration::from_millis(20);

/// How often a wait is begun anew in one `turn` because its session was over.
const BEGINNINGS_MAX: u32 = 3;

/// How long the end of a session that waits is waited for.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A place in the line of a store that keeps session locks.
pub(crate) struct SessionPlace<W: Conversation> {
    store: Arc<Store<W>>,
    claimed: Option<Arc<Claimed<W>>>,
    claim: Claim,
    rung: Option<watch::Receiver<u64>>,
}

impl<W: Conversation> fmt::Debug for SessionPlace<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionPlace").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// The place of one kind of server, by its public name.
macro_rules! session_place {
    ($(#[$doc:meta])* $name:ident, $wire:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(pub(super) $crate::sessions::SessionPlace<$wire>);

        impl lockkeeper_core::backend::Place for $name {
            async fn turn(&mut self) -> lockkeeper_core::backend::Result<lockkeeper_core::backend::Turn> {
                self.0.turn().await
            }

            async fn changed(&mut self) {
                self.0.changed().await;
            }

            async fn renew(&mut self) -> lockkeeper_core::backend::Result<lockkeeper_core::backend::Renewal> {
                self.0.renew().await
            }

            async fn leave(&mut self) -> lockkeeper_core::backend::Result<()> {
                self.0.leave().await
            }
        }
    };
}

pub(crate) use session_place;

impl<W: Conversation> SessionPlace<W> {
    pub(crate) fn new(store: Arc<Store<W>>, claim: Claim) -> Self {
        SessionPlace { store, claimed: None, claim, rung: None }
    }

    pub(crate) async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(W::NAME)?;
        if self.claim.load != Load::MUTEX && !self.claim.load.is_exclusive() {
            let what = "session locks have one holder at a time; use `lock`, or durable locks for shares and permits";
            return Err(Fault::permanent(W::NAME, TAKING, what));
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
                if let Some(turn) = self.look(&mut state, false, called).await? {
                    return Ok(turn);
                }
            }
        }
        self.ask(&claimed, &mut state, called).await
    }

    pub(crate) async fn changed(&mut self) {
        let Some(rung) = &mut self.rung else { return std::future::pending().await };
        if rung.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn renew(&mut self) -> Result<Renewal> {
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

    pub(crate) async fn leave(&mut self) -> Result<()> {
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

    fn claimed(&mut self) -> Arc<Claimed<W>> {
        let known = self.claimed.get_or_insert_with(|| self.store.claimed(&self.claim)).clone();
        self.rung.get_or_insert_with(|| known.rung.subscribe());
        known
    }

    /// Ask for the lock, from nothing.
    async fn ask(&self, claimed: &Arc<Claimed<W>>, state: &mut State<W>, called: Moment) -> Result<Turn> {
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
            leases.met(claimed.lock, false, now);
        }
        if !self.claim.patient {
            return Ok(Turn::wait(self.claim.ttl / 3, None));
        }
        self.stand(claimed, state, &leases, &shared, called).await
    }

    /// One statement on the shared session. `None` if the lock is another's.
    async fn try_shared(
        &self,
        claimed: &Arc<Claimed<W>>,
        state: &mut State<W>,
        shared: &Arc<Lease<W>>,
        called: Moment,
    ) -> Result<Option<Turn>> {
        let (lock, id) = (claimed.lock, self.claim.id);
        // From here on nobody knows whether it is ours, unless we are told.
        *state = State::InDoubt(shared.clone());
        let asked = shared.ask(shared.wire.take(claimed, false)).await;
        let (taken, sent_at) = asked.map_err(|it| it.fault(TAKING))?;
        *state = State::Out;
        let Some(taken) = taken else {
            shared.unreserve(&lock, id);
            return Ok(None);
        };
        shared.granted(lock, id, taken.mark, false);
        shared.wire.stands_here(claimed, taken.counter, shared.server_now());
        *state =
            State::Held(Held { on: On::Shared(shared.clone()), mark: taken.mark, counter: taken.counter });
        Ok(Some(self.held(taken.counter, sent_at, called, false)))
    }

    /// Stand in the server's line with a session of its own, or be let in.
    async fn stand(
        &self,
        claimed: &Arc<Claimed<W>>,
        state: &mut State<W>,
        leases: &Arc<Leases<W>>,
        shared: &Arc<Lease<W>>,
        called: Moment,
    ) -> Result<Turn> {
        for _ in 0..BEGINNINGS_MAX {
            let Some(waiter) = leases.waiter().await.map_err(|it| it.fault(TAKING))? else {
                return Ok(Turn::wait(CROWDED.min(self.claim.ttl / 3), None).crowded());
            };
            waiter.lease.wire.stands_here(claimed, 0, shared.server_now());
            let wait = Wait {
                store: self.store.clone(),
                claimed: claimed.clone(),
                leases: leases.clone(),
                lease: waiter.lease.clone(),
                shared: shared.clone(),
            };
            let (tell, told) = watch::channel(None);
            *state = State::Waiting(Waiting { waiter, leases: leases.clone(), told });
            begin(wait, tell).await;
            if let Some(turn) = self.look(state, true, called).await? {
                return Ok(turn);
            }
        }
        Err(W::Trouble::silent().fault(TAKING))
    }

    /// What has come of waiting. `None` if the session is over: the state says that we are out of the line. `begun` if the wait
    /// has just begun: then its place in the line must be sure before anybody is told to wait.
    async fn look(&self, state: &mut State<W>, begun: bool, called: Moment) -> Result<Option<Turn>> {
        let State::Waiting(waiting) = state else { return Ok(None) };
        let told = if begun {
            let heard = waiting.told.wait_for(Option::is_some).await;
            heard.map_or(Some(Told::Over), |it| it.clone())
        } else {
            waiting.told.borrow().clone()
        };
        let told = match told {
            Some(Told::Unsure(fault)) if begun => return Err(fault),
            Some(told) if told.is_outcome() => told,
            // Nobody will tell: whoever began to wait went away in the middle of it.
            _ if waiting.told.has_changed().is_err() => Told::Over,
            _ if !begun && self.has_ended_unheard(waiting).await => Told::Over,
            _ => return Ok(Some(Turn::wait(self.claim.ttl / 3, None))),
        };
        let State::Waiting(waiting) = std::mem::replace(state, State::Out) else { return Ok(None) };
        match told {
            Told::LetIn { counter, mark, waited, proven_at } => {
                let on = On::Own(waiting.waiter, waiting.leases);
                *state = State::Held(Held { on, mark, counter });
                Ok(Some(self.held(counter, proven_at, called, waited)))
            }
            Told::Over | Told::Stands => {
                self.out_of_the_line(waiting);
                Ok(None)
            }
            Told::Failed(fault) | Told::Unsure(fault) => {
                self.out_of_the_line(waiting);
                Err(fault)
            }
        }
    }

    /// Whether the session that stands in the line has ended and the word of it was lost: nobody speaks on its connection, so
    /// nobody would notice. Another session can tell; if that does not answer, this is found out another time.
    async fn has_ended_unheard(&self, waiting: &Waiting<W>) -> bool {
        let Ok(shared) = waiting.leases.shared().await else { return false };
        let lives = shared.ask(shared.wire.lives(&waiting.waiter.lease.wire)).await;
        // It may have been let in and told so meanwhile.
        lives.is_ok_and(|it| !it.0) && !waiting.told.borrow().as_ref().is_some_and(Told::is_outcome)
    }

    fn out_of_the_line(&self, waiting: Waiting<W>) {
        W::left(&self.store, self.claim.id);
        waiting.waiter.end();
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
    async fn still(&self, claimed: &Claimed<W>, held: &Held<W>, called: Moment) -> Result<Option<Turn>> {
        let lease = held.on.lease();
        if lease.holding(&claimed.lock, self.claim.id).is_none() {
            return Ok(None);
        }
        let Some(sent_at) = lease.beat().await? else { return Ok(None) };
        let holding = lease.holding(&claimed.lock, self.claim.id);
        Ok(holding.map(|it| self.held(held.counter, sent_at, called, it.wanted)))
    }

    /// Give back what a take did of which nobody heard.
    async fn undo(&self, claimed: &Claimed<W>, lease: &Lease<W>, doing: &'static str) -> Result<()> {
        if !lease.is_over()
            && let Err(trouble) = lease.ask(lease.wire.undo(claimed)).await
            && !lease.is_closed()
        {
            return Err(trouble.fault(doing));
        }
        lease.unreserve(&claimed.lock, self.claim.id);
        Ok(())
    }

    async fn give_back(&self, claimed: &Claimed<W>, held: &Held<W>) -> Result<()> {
        let lease = held.on.lease();
        if lease.holding(&claimed.lock, self.claim.id).is_some()
            && !lease.is_closed()
            && let Err(trouble) = lease.ask(lease.wire.release(claimed, held.mark)).await
            && !lease.is_closed()
        {
            return Err(trouble.fault(LEAVING));
        }
        lease.unreserve(&claimed.lock, self.claim.id);
        W::left(&self.store, self.claim.id);
        Ok(())
    }

    /// Leave the server's line: the session that stands there is ended, and we are told when it is gone.
    async fn step_out(&self, waiting: &Waiting<W>) -> Result<()> {
        let lease = waiting.waiter.lease.clone();
        if lease.is_closed() {
            return Ok(());
        }
        let shared = waiting.leases.shared().await.map_err(|it| it.fault(LEAVING))?;
        let ended = shared.ask(shared.wire.end_other(&lease.wire)).await;
        if ended.map_err(|it| it.fault(LEAVING))?.0 {
            return Ok(());
        }
        self.until_gone(&lease, &shared).await.map_err(|it| it.fault(LEAVING))
    }

    /// A server may close a session's connection first, and only then take it out of the line: until it is gone from the
    /// list of sessions, whoever leaves could still hand the lock to it.
    async fn until_gone(&self, lease: &Lease<W>, shared: &Lease<W>) -> std::result::Result<(), W::Trouble> {
        let until = self.store.clock.now().after(END_WITHIN);
        let mut pause = AT_ONCE;
        while shared.ask(shared.wire.lives(&lease.wire)).await?.0 && self.store.clock.now() < until {
            self.store.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// What was ours is not any more.
    fn lost(&self, claimed: &Claimed<W>, state: &mut State<W>) {
        let State::Held(held) = std::mem::replace(state, State::Out) else { return };
        held.on.lease().unreserve(&claimed.lock, self.claim.id);
        W::left(&self.store, self.claim.id);
        if let On::Own(waiter, _) = held.on {
            waiter.end();
        }
    }
}

impl<W: Conversation> Drop for SessionPlace<W> {
    fn drop(&mut self) {
        if self.claimed.take().is_some() {
            self.store.forget(self.claim.id);
        }
    }
}
