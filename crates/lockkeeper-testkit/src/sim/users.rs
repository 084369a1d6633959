//! The users of a simulation: they lock, hold, lose patience, walk away, reenter and pass guards around.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, Load, LockRequest, Locker, Owner, SharedRequest, Spawn};

use super::executor::Process;
use super::held::Held;
use super::meetings::Minutes;
use super::witness::Witness;
use crate::chance::Chance;

/// One user of one process.
#[derive(Debug)]
pub(super) struct User {
    pub(super) locker: Locker,
    pub(super) process: Arc<Process>,
    pub(super) witness: Witness,
    pub(super) clock: Clock,
    pub(super) chance: Chance,
    pub(super) ttl: Duration,
    pub(super) rounds: u32,
    pub(super) keys: u64,
    pub(super) shares: bool,
    pub(super) together: bool,
    pub(super) meets: bool,
    /// What it is called where many meet.
    pub(super) name: String,
    pub(super) minutes: Minutes,
    /// How often its process was paused so far. Relaxed: a simulation has one thread.
    pub(super) pauses: Arc<AtomicU64>,
}

/// The names of the locks that everybody wants.
pub(super) fn key(number: u64) -> String {
    format!("simulated/{number}")
}

/// A request of either kind.
enum Request {
    Alone(LockRequest),
    Shared(SharedRequest, Load),
}

impl User {
    /// A life: so many rounds of wanting the lock.
    pub(super) async fn live(mut self) {
        for _ in 0..self.rounds {
            self.clock.sleep(self.chance.span(self.ttl / 2)).await;
            if self.together && self.chance.per_mille(500) {
                self.live_with_several().await;
                continue;
            }
            if self.meets && self.chance.per_mille(800) {
                self.live_with_others().await;
                continue;
            }
            let owner = Owner::new("user");
            let pauses = self.pauses.load(Ordering::Relaxed);
            let Some(guard) = self.want(&owner).await else {
                continue;
            };
            let prompt = pauses == self.pauses.load(Ordering::Relaxed);
            let guard = self.witness.received(self.process.id(), guard, prompt);
            self.hold(&guard, &owner).await;
            let Some(guard) = self.downgrade(guard, &owner).await else { continue };
            if !guard.is_valid() {
                self.witness.count(|it| it.lost += 1);
            }
            self.give_back(guard).await;
        }
    }

    /// What to ask for. Callers of one line need agree neither about the ttl nor about the capacity.
    fn request(&mut self, owner: &Owner) -> Request {
        let name = key(if self.keys == 1 { 0 } else { self.chance.below(self.keys) });
        let ttl = if self.chance.per_mille(850) { self.ttl } else { self.ttl / 2 };
        let max_hold = self.chance.per_mille(100).then_some(self.ttl * 2);
        let kind = if self.shares { self.chance.below(10) } else { 0 };
        if kind < 4 {
            let request = if kind == 1 { self.locker.write(name) } else { self.locker.lock(name) };
            let request = request.ttl(ttl).owner(owner);
            return Request::Alone(if let Some(it) = max_hold { request.max_hold(it) } else { request });
        }
        let capacity = if self.chance.per_mille(900) { 3 } else { 2 };
        let permits = 1 + u32::from(self.chance.per_mille(300));
        let (request, load) = if kind < 7 {
            (self.locker.read(name), Load::READER)
        } else {
            (self.locker.permits(name, permits, capacity), Load::new(permits, capacity))
        };
        let request = request.ttl(ttl).owner(owner);
        Request::Shared(if let Some(it) = max_hold { request.max_hold(it) } else { request }, load)
    }

    /// Ask in one of the many ways.
    async fn want(&mut self, owner: &Owner) -> Option<Held> {
        let request = self.request(owner);
        let wait = self.chance.span(self.ttl * 4);
        let way = self.chance.below(10);
        let bored = if matches!(way, 3 | 4) { self.chance.span(self.ttl * 2) } else { Duration::ZERO };
        let answer = match request {
            Request::Alone(it) => {
                let attempt = |it: LockRequest| it.attempt().into_future();
                let patient = |it: LockRequest| it.wait_at_most(wait);
                self.ask(way, it, bored, attempt, patient).await.map(|it| it.map(Held::from))
            }
            Request::Shared(it, load) => {
                let attempt = |it: SharedRequest| it.attempt().into_future();
                let patient = |it: SharedRequest| it.wait_at_most(wait);
                let answer = self.ask(way, it, bored, attempt, patient).await;
                answer.map(|it| it.map(|guard| Held::share(guard, load)))
            }
        };
        match answer {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) => self.witness.count(|it| it.cancelled += 1),
            Err(Error::TimedOut { .. } | Error::Unavailable { .. }) => {
                self.witness.count(|it| it.refused += 1);
            }
            Err(error) => self.witness.accuse(format!("a good request was answered with: {error}")),
        }
        None
    }

    async fn ask<G, R, T>(
        &self,
        way: u64,
        request: R,
        bored: Duration,
        attempt: impl FnOnce(R) -> T,
        patient: impl FnOnce(R) -> R,
    ) -> Result<Option<G>, Error>
    where
        R: Future<Output = Result<G, Error>>,
        T: Future<Output = Result<Option<G>, Error>>,
    {
        match way {
            0 | 1 => attempt(request).await,
            2 => walk_away(request, poll_fn(|_| Poll::Ready(()))).await,
            3 | 4 => walk_away(request, self.clock.sleep(bored)).await,
            5 => request.await.map(Some),
            _ => patient(request).await.map(Some),
        }
    }

    /// Hold it for a while, perhaps deeper.
    async fn hold(&mut self, guard: &Held, owner: &Owner) {
        let span = match self.chance.below(4) {
            0 => Duration::ZERO,
            1 => self.chance.span(self.ttl * 3),
            _ => self.chance.span(self.ttl / 4),
        };
        match self.chance.below(4) {
            0 => drop(guard.run(self.clock.sleep(span)).await),
            1 => {
                let mut lost = guard.lost();
                let work = self.clock.sleep(span);
                walk_away(async { Ok::<_, Error>((&mut lost).await) }, work).await.ok();
            }
            2 => self.reenter(guard, owner, span).await,
            _ => self.clock.sleep(span).await,
        }
    }

    /// Perhaps go on as a reader, and hold that for a while. `None` if it was lost or given back over it.
    async fn downgrade(&mut self, guard: Arc<Held>, owner: &Owner) -> Option<Arc<Held>> {
        if !self.shares || !guard.load().is_exclusive() || !self.chance.per_mille(300) {
            return Some(guard);
        }
        let Some(guard) = Arc::into_inner(guard) else {
            self.witness.accuse("a guard was shared by mistake of the simulation".to_owned());
            return None;
        };
        let bored = if self.chance.per_mille(100) { self.chance.span(self.ttl) } else { self.ttl * 100 };
        let Ok(Some(guard)) = walk_away(guard.downgrade(), self.clock.sleep(bored)).await else {
            return None;
        };
        let guard = self.witness.downgraded(self.process.id(), guard);
        self.hold(&guard, owner).await;
        Some(guard)
    }

    /// Ask again for what we hold. Who reads may read again, and must not ask to write.
    async fn reenter(&mut self, outer: &Held, owner: &Owner, span: Duration) {
        let (name, load) = (outer.key().as_str().to_owned(), outer.load());
        let inner = if load == Load::READER {
            if self.chance.per_mille(300) {
                let valid = outer.is_valid();
                let answer =
                    self.locker.write(name).owner(owner).ttl(self.ttl).wait_at_most(self.ttl / 4).await;
                let refused = matches!(answer, Err(Error::Invalid { .. }));
                if valid && outer.is_valid() && !refused {
                    self.witness.accuse(format!("an owner that reads asked to write: {answer:?}"));
                }
                return;
            }
            let again = self.locker.read(name).owner(owner).ttl(self.ttl).wait_at_most(self.ttl / 4).await;
            again.map(|it| Held::share(it, load))
        } else if load.is_exclusive() {
            let again = self.locker.lock(name).owner(owner).ttl(self.ttl).wait_at_most(self.ttl / 4).await;
            again.map(Held::from)
        } else {
            return self.clock.sleep(span).await;
        };
        let Ok(inner) = inner else { return };
        let inner = self.witness.reentered(self.process.id(), outer, inner);
        self.clock.sleep(span).await;
        self.give_back(inner).await;
    }

    /// End a guard in one of the many ways.
    async fn give_back(&mut self, guard: Arc<Held>) {
        let Some(guard) = Arc::into_inner(guard) else {
            self.witness.accuse("a guard was shared by mistake of the simulation".to_owned());
            return;
        };
        match self.chance.below(8) {
            0..4 => drop(guard.release().await),
            4 => drop(walk_away(guard.release(), poll_fn(|_| Poll::Ready(()))).await),
            5 => {
                let (clock, span) = (self.clock.clone(), self.chance.span(self.ttl / 8));
                let guard = self.witness.passed_on(self.process.id(), guard);
                self.process.spawn(Box::pin(async move {
                    clock.sleep(span).await;
                    drop(guard);
                }));
            }
            _ => drop(guard),
        }
    }
}

/// The answer, or `None` if `bored` comes first and the future is dropped where it stands.
pub(super) async fn walk_away<T, E>(
    future: impl Future<Output = Result<T, E>>,
    bored: impl Future<Output = ()>,
) -> Result<Option<T>, E> {
    let (mut future, mut bored) = (pin!(future), pin!(bored));
    poll_fn(|cx| {
        if let Poll::Ready(out) = future.as_mut().poll(cx) {
            return Poll::Ready(out.map(Some));
        }
        bored.as_mut().poll(cx).map(|()| Ok(None))
    })
    .await
}
