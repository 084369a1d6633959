//! The post: a network on which a request outlives whoever sent it.
//!
//! A driver that gives up does not call its request back. It may still be under way, and be carried out
//! after the caller was told of a failure, after it asked again, or after it died.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::kit::locked;
use lockkeeper_core::memos::DynMemos;
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use lockkeeper_core::{Claim, Clock, Load, Spawn};
use tokio::sync::oneshot;

use super::memos::PostedMemos;
use crate::chance::Chance;

/// A backend behind a post. Requests are carried by `network`, not by the process that sends them.
#[derive(Clone)]
pub struct Post<B> {
    inner: Arc<B>,
    pub(super) clock: Clock,
    network: Arc<dyn Spawn>,
    delays: Arc<Mutex<Delays>>,
    patience: Duration,
}

/// How long letters take.
#[derive(Clone, Debug)]
pub struct Delays {
    /// What is drawn from.
    pub chance: Chance,
    /// Letters of a thousand that are slow.
    pub slow: u64,
    /// The longest way of a slow letter.
    pub slow_max: Duration,
    /// The longest way of any other.
    pub usual_max: Duration,
    /// Signs of a thousand that never arrive.
    pub lost_signs: u64,
}

impl Delays {
    fn draw(&mut self) -> Duration {
        let slow = self.chance.per_mille(self.slow);
        self.chance.span(if slow { self.slow_max } else { self.usual_max })
    }

    /// How long a sign takes, or `None` if it never arrives.
    fn draw_sign(&mut self) -> Option<Duration> {
        let lost = self.chance.per_mille(self.lost_signs);
        let delay = self.draw();
        (!lost).then_some(delay)
    }
}

impl<B: Backend> Post<B> {
    /// `inner` behind a post. Whoever waits longer than `patience` for an answer is told that it failed.
    pub fn new(inner: B, clock: Clock, network: Arc<dyn Spawn>, delays: Delays, patience: Duration) -> Self {
        Post { inner: Arc::new(inner), clock, network, delays: Arc::new(Mutex::new(delays)), patience }
    }

    /// The same post, which need not be one of a store that can be cloned.
    fn twin(&self) -> Self {
        Post {
            inner: self.inner.clone(),
            network: self.network.clone(),
            clock: self.clock.clone(),
            delays: self.delays.clone(),
            patience: self.patience,
        }
    }

    /// What comes back of a letter that the network carries, unless it takes too long.
    pub(super) fn carry<T, L>(&self, letter: L) -> impl Future<Output = Result<T>> + Send + use<T, B, L>
    where
        T: Send + 'static,
        L: Future<Output = Result<T>> + Send + 'static,
    {
        let (there, back) = {
            let mut delays = locked(&self.delays);
            (delays.draw(), delays.draw())
        };
        let clock = self.clock.clone();
        let (reply, answer) = oneshot::channel();
        self.network.spawn(Box::pin(async move {
            clock.sleep(there).await;
            let out = letter.await;
            clock.sleep(back).await;
            let _ = reply.send(out);
        }));
        let (timer, name) = (self.clock.sleep(self.patience), self.inner.profile().name);
        async move {
            let (mut answer, mut timer) = (pin!(answer), pin!(timer));
            poll_fn(|cx| {
                if let Poll::Ready(Ok(out)) = answer.as_mut().poll(cx) {
                    return Poll::Ready(out);
                }
                let too_late = || Err(Fault::transient(name, "waiting for an answer", "none came in time"));
                timer.as_mut().poll(cx).map(|()| too_late())
            })
            .await
        }
    }

    /// How long a sign takes, or `None` if it never arrives.
    pub(super) fn draw_sign(&self) -> Option<Duration> {
        locked(&self.delays).draw_sign()
    }

    /// From now on every letter is quick.
    pub fn heal(&self) {
        let mut delays = locked(&self.delays);
        delays.slow = 0;
    }
}

impl<B: fmt::Debug> fmt::Debug for Post<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Post").field(&self.inner).finish()
    }
}

impl<B: Backend> Backend for Post<B> {
    type Place = PostPlace<B>;

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    /// Their letters travel as those of locks do.
    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        let memos = self.inner.memos()?;
        Some(Arc::new(PostedMemos { memos, post: self.twin() }))
    }

    fn enter(&self, claim: Claim) -> PostPlace<B> {
        let ear = self.inner.enter(claim.clone());
        PostPlace { ear, claim, post: self.twin() }
    }
}

/// A place at the far end of a post.
pub struct PostPlace<B: Backend> {
    /// Wake-ups are hints, so they need no letters: they are late, or never come.
    ear: B::Place,
    claim: Claim,
    post: Post<B>,
}

impl<B: Backend> fmt::Debug for PostPlace<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostPlace").field("claim", &self.claim).finish_non_exhaustive()
    }
}

type Answer<'p, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'p>>;

impl<B: Backend> PostPlace<B> {
    /// Send a verb and wait for its answer, not for ever.
    fn send<T, V>(&self, verb: V) -> impl Future<Output = Result<T>> + Send + use<T, B, V>
    where
        T: Send + 'static,
        V: for<'p> FnOnce(&'p mut B::Place) -> Answer<'p, T> + Send + 'static,
    {
        let (inner, claim) = (self.post.inner.clone(), self.claim.clone());
        self.post.carry(async move {
            // What the store knows is the claim, not our place: any place with its id will do.
            let mut place = inner.enter(claim);
            verb(&mut place).await
        })
    }
}

impl<B: Backend> Place for PostPlace<B> {
    fn turn(&mut self) -> impl Future<Output = Result<Turn>> + Send {
        self.send(|it| Box::pin(it.turn()))
    }

    async fn changed(&mut self) {
        let Some(delay) = self.post.draw_sign() else { return std::future::pending().await };
        self.ear.changed().await;
        self.post.clock.sleep(delay).await;
    }

    fn was_called(&self) -> bool {
        self.ear.was_called()
    }

    fn renew(&mut self) -> impl Future<Output = Result<Renewal>> + Send {
        self.send(|it| Box::pin(it.renew()))
    }

    fn leave(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.send(|it| Box::pin(it.leave()))
    }

    fn linger(&mut self, span: Duration) -> impl Future<Output = Result<()>> + Send {
        self.send(move |it| Box::pin(it.linger(span)))
    }

    fn lower(&mut self, load: Load) -> impl Future<Output = Result<bool>> + Send {
        self.send(move |it| Box::pin(it.lower(load)))
    }
}

impl<B: Node> Node for Post<B> {
    fn standing(&self) -> impl Future<Output = Result<Standing>> + Send {
        self.inner.standing()
    }
}

impl<B: Node> RaiseCounter for PostPlace<B> {
    fn raise(&mut self, counter: u64) -> impl Future<Output = Result<Option<u64>>> + Send {
        self.send(move |it| Box::pin(it.raise(counter)))
    }
}
