//! The users of a simulation: they lock, hold, lose patience, walk away, reenter and pass guards around.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, Guard, LockRequest, Locker, Owner, Spawn};

use super::executor::Process;
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
    /// How often its process was paused so far.
    pub(super) pauses: Arc<AtomicU64>,
}

/// The name of the lock that everybody wants.
pub(super) const KEY: &str = "simulated";

impl User {
    /// A life: so many rounds of wanting the lock.
    pub(super) async fn live(mut self) {
        for _ in 0..self.rounds {
            self.clock.sleep(self.chance.span(self.ttl / 2)).await;
            let owner = Owner::new("user");
            let pauses = self.pauses.load(Ordering::Relaxed);
            let Some(guard) = self.want(&owner).await else {
                continue;
            };
            let prompt = pauses == self.pauses.load(Ordering::Relaxed);
            let guard = self.witness.received(self.process.id(), guard, prompt);
            self.hold(&guard, &owner).await;
            if !guard.is_valid() {
                self.witness.count(|it| it.lost += 1);
            }
            self.give_back(guard).await;
        }
    }

    fn request(&mut self, owner: &Owner) -> LockRequest {
        // Callers of one line need not agree about the ttl.
        let ttl = if self.chance.per_mille(850) { self.ttl } else { self.ttl / 2 };
        let request = self.locker.lock(KEY).ttl(ttl).owner(owner);
        if self.chance.per_mille(100) { request.max_hold(self.ttl * 2) } else { request }
    }

    /// Ask for the lock in one of the many ways.
    async fn want(&mut self, owner: &Owner) -> Option<Guard> {
        let request = self.request(owner);
        let wait = self.chance.span(self.ttl * 4);
        let answer = match self.chance.below(10) {
            0 | 1 => request.attempt().await,
            2 => walk_away(request.into_future(), poll_fn(|_| Poll::Ready(()))).await,
            3 | 4 => {
                let bored = self.clock.sleep(self.chance.span(self.ttl * 2));
                walk_away(request.into_future(), bored).await
            }
            5 => request.await.map(Some),
            _ => request.wait_at_most(wait).await.map(Some),
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

    /// Hold it for a while, perhaps deeper.
    async fn hold(&mut self, guard: &Guard, owner: &Owner) {
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

    async fn reenter(&mut self, outer: &Guard, owner: &Owner, span: Duration) {
        let again = self.locker.lock(KEY).owner(owner).ttl(self.ttl).wait_at_most(self.ttl / 4).await;
        let Ok(inner) = again else { return };
        let inner = self.witness.reentered(self.process.id(), outer, inner);
        self.clock.sleep(span).await;
        self.give_back(inner).await;
    }

    /// End a guard in one of the many ways.
    async fn give_back(&mut self, guard: Arc<Guard>) {
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
async fn walk_away<T>(
    future: impl Future<Output = Result<T, Error>>,
    bored: impl Future<Output = ()>,
) -> Result<Option<T>, Error> {
    let (mut future, mut bored) = (pin!(future), pin!(bored));
    poll_fn(|cx| {
        if let Poll::Ready(out) = future.as_mut().poll(cx) {
            return Poll::Ready(out.map(Some));
        }
        bored.as_mut().poll(cx).map(|()| Ok(None))
    })
    .await
}
