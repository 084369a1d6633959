//! The way to the cluster: which channel is used for a request, and which one next if nobody answers.
//!
//! Every request may be repeated. One that is not answered in good time is sent again on a fresh connection to the
//! next endpoint, while the first is still listened to: whichever answers first counts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::kit::{caller_runtime, locked};
use lockkeeper_core::{Clock, Moment};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::channel::{self, Dials};
use crate::cluster::{self, Cluster};
use crate::fault;
use crate::grants::History;
use crate::options::EtcdOptions;
use crate::trips::Trips;
use crate::wire::Answer;

/// How many runtimes of the application get channels of their own.
const RUNTIMES_MAX: usize = 8;
/// The pause before a cluster that has no leader is asked again.
const SETTLING: Duration = Duration::from_millis(50);

/// The channels to all endpoints.
pub(crate) struct Connection {
    pub(crate) options: EtcdOptions,
    pub(crate) clock: Clock,
    pub(crate) cluster: Cluster,
    pub(crate) trips: Trips,
    pub(crate) history: History,
    /// Those that our own thread drives.
    slots: Vec<Mutex<Slot>>,
    /// How many of them were replaced.
    replaced: watch::Sender<u64>,
    /// Those that runtimes of the application drive: a call that stays on its thread is quicker. They may be blocked
    /// or gone at any time, so a call that failed on one of them is repeated on ours.
    local: Mutex<HashMap<tokio::runtime::Id, Vec<Channel>>>,
    pub(crate) driver: Handle,
    dials: Dials,
    /// The endpoint in use, modulo their number. Relaxed: a hint; an old one costs a trip to an endpoint that somebody has left.
    at: AtomicUsize,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A channel of ours to one endpoint.
struct Slot {
    channel: Channel,
    /// When it was made, or last heard from.
    alive_at: Moment,
}

/// Which way a request took, and when.
#[derive(Clone, Copy)]
struct Way {
    at: usize,
    /// The runtime of the application that drives its channel, if it is not ours.
    runtime: Option<tokio::runtime::Id>,
    sent_at: Moment,
}

/// A request under way.
struct Attempt<F> {
    way: Way,
    answer: Pin<Box<F>>,
}

/// A failed call, and how often it was sent. What was sent and not answered may still be under way.
pub(crate) struct Failed {
    pub(crate) status: Status,
    pub(crate) sent: u32,
}

impl From<Failed> for Status {
    fn from(failed: Failed) -> Self {
        failed.status
    }
}

impl Connection {
    /// Prepare the channels. Nothing is sent yet.
    pub(crate) fn new(options: EtcdOptions, clock: Clock, driver: Handle) -> lockkeeper_core::Result<Self> {
        let (dials, alive_at) = (Dials::default(), clock.now());
        let entered = driver.enter();
        let slot = |it: &String| {
            let channel = channel::channel(it, &options, &dials)?;
            Ok(Mutex::new(Slot { channel, alive_at }))
        };
        let slots = options.endpoints.iter().map(slot).collect::<lockkeeper_core::Result<_>>()?;
        drop(entered);
        Ok(Connection {
            cluster: Cluster::default(),
            trips: Trips::default(),
            history: History::default(),
            slots,
            replaced: watch::Sender::new(0),
            local: Mutex::default(),
            driver,
            dials,
            at: AtomicUsize::new(0),
            token: Mutex::new(None),
            options,
            clock,
        })
    }

    /// The channel in use that the caller's own runtime drives, and the id of that runtime.
    fn nearby(&self) -> Option<(tokio::runtime::Id, usize, Channel)> {
        let caller = caller_runtime()?;
        let (here, at) = (caller.id(), self.current());
        let mut local = locked(&self.local);
        if here == self.driver.id() || RUNTIMES_MAX <= local.len() && !local.contains_key(&here) {
            return None;
        }
        let channels = match local.entry(here) {
            Entry::Occupied(it) => it.into_mut(),
            Entry::Vacant(it) => {
                let _entered = caller.enter();
                let fresh = |it: &String| channel::channel(it, &self.options, &self.dials);
                it.insert(self.options.endpoints.iter().map(fresh).collect::<Result<_, _>>().ok()?)
            }
        };
        Some((here, at, channels[at % channels.len()].clone()))
    }

    /// The number of endpoints.
    pub(crate) fn nodes(&self) -> usize {
        self.slots.len()
    }

    /// The number of the endpoint in use, for [`Connection::node`] and [`Connection::turn_away_from`].
    pub(crate) fn current(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// The channel of ours to one endpoint.
    pub(crate) fn node(&self, at: usize) -> Channel {
        self.slot(at).channel.clone()
    }

    fn slot(&self, at: usize) -> MutexGuard<'_, Slot> {
        locked(&self.slots[at % self.slots.len()])
    }

    /// Use the next endpoint, unless somebody has turned away already.
    pub(crate) fn turn_away_from(&self, at: usize) {
        let _ = self.at.compare_exchange(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Use this endpoint from now on.
    pub(crate) fn turn_to(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// How many connections were made so far.
    pub(crate) fn dials(&self) -> u64 {
        self.dials.count()
    }

    /// This endpoint has been silent since `since`. What is sent to it from now on takes a fresh connection: the old
    /// one may be forgotten by the network.
    pub(crate) fn silent(&self, at: usize, since: Moment) {
        {
            let mut slot = self.slot(at);
            if since <= slot.alive_at {
                return;
            }
            let _entered = self.driver.enter();
            let endpoint = &self.options.endpoints[at % self.slots.len()];
            let Ok(channel) = channel::channel(endpoint, &self.options, &self.dials) else { return };
            *slot = Slot { channel, alive_at: self.clock.now() };
        }
        self.replaced.send_modify(|it| *it += 1);
    }

    /// Changes whenever a channel of ours was replaced, because its endpoint kept silent.
    pub(crate) fn replaced(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// A request with our token. `with_leader` refuses to be served by a node that knows of no leader.
    pub(crate) fn request<T>(&self, message: T, with_leader: bool) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token().as_ref() {
            request.metadata_mut().insert("token", token.clone());
        }
        if with_leader {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        request
    }

    /// How long to wait for an answer before the request is sent again elsewhere.
    pub(crate) fn patience(&self) -> Duration {
        (self.options.timeout / 2).max(self.trips.slowest() * 3).min(self.options.timeout)
    }

    /// [`Connection::call_counted`] with the usual patience.
    pub(crate) async fn call<Q, A, F>(
        &self,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Clone,
        A: Answer,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        Ok(self.call_counted(self.patience(), message, send).await?.0)
    }

    /// Call until an endpoint answers. Every call we make may be repeated, and is sent again to the next endpoint
    /// whenever nobody has answered for `patience`. Tells how often it was sent.
    ///
    /// Silence is told as `DeadlineExceeded`.
    pub(crate) async fn call_counted<Q, A, F>(
        &self,
        patience: Duration,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<(A, u32), Failed>
    where
        Q: Clone,
        A: Answer,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let until = self.clock.now().after(self.options.timeout * 2);
        let (mut left, mut sent) = (self.nodes() + 1, 0);
        let (mut launch, mut nearby, mut renewed_token) = (true, true, false);
        let mut failed = Status::deadline_exceeded("no answer in time; the next endpoint is tried");
        let mut attempts: Vec<Attempt<F>> = Vec::new();
        loop {
            if launch && 0 < left {
                (left, sent) = (left - 1, sent + 1);
                attempts.push(self.attempt(nearby, message.clone(), &send));
            } else if attempts.is_empty() {
                return Err(Failed { status: self.in_words(failed).await, sent });
            }
            let pause = if 0 < left { self.clock.now().after(patience).min(until) } else { until };
            let Some((way, answer)) = self.first(&mut attempts, pause).await else {
                if let Some(silent) = attempts.last() {
                    self.forsake(silent.way);
                }
                if until <= self.clock.now() {
                    return Err(Failed { status: self.in_words(failed).await, sent });
                }
                (launch, nearby) = (true, false);
                continue;
            };
            let status = match self.judged(way, answer).await {
                Ok(answer) => return Ok((answer, sent)),
                Err(status) => status,
            };
            launch = true;
            if self.options.user.is_some() && fault::is_token_stale(&status) && !renewed_token {
                // A refusal is an answer.
                (renewed_token, sent, left) = (true, sent - 1, left + 1);
                self.authenticate().await.map_err(|status| Failed { status, sent })?;
                continue;
            }
            let elsewhere = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
            if let (Some(runtime), true) = (way.runtime, elsewhere) {
                locked(&self.local).remove(&runtime);
                (nearby, left) = (false, left + 1);
                continue;
            }
            if elsewhere || status.code() == Code::Cancelled {
                self.turn_away_from(way.at);
            }
            if !elsewhere {
                // Whoever refuses has done nothing; but a copy may still be under way.
                let sent = if fault::is_refusal(&status) { sent - 1 } else { sent };
                return Err(Failed { status, sent });
            }
            if fault::is_settling(&status) && self.clock.now() < until {
                // They elect a leader. That is over soon, and an error now would only be asked about again.
                self.clock.sleep(SETTLING).await;
                left += 1;
            }
            failed = status;
        }
    }

    /// Send a message to the endpoint in use.
    fn attempt<Q, F>(&self, nearby: bool, message: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Attempt<F> {
        let near = if nearby { self.nearby() } else { None };
        let runtime = near.as_ref().map(|it| it.0);
        let (at, channel) = near.map_or_else(
            || {
                let at = self.current();
                (at, self.node(at))
            },
            |it| (it.1, it.2),
        );
        let answer = Box::pin(send(channel, self.request(message, false)));
        Attempt { way: Way { at, runtime, sent_at: self.clock.now() }, answer }
    }

    /// The first answer to any of these, which is then taken out; `None` if there is none until `until`.
    async fn first<A, F>(
        &self,
        attempts: &mut Vec<Attempt<F>>,
        until: Moment,
    ) -> Option<(Way, Result<Response<A>, Status>)>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut timer = self.clock.sleep_until(until);
        poll_fn(|cx| {
            for at in 0..attempts.len() {
                if let Poll::Ready(answer) = attempts[at].answer.as_mut().poll(cx) {
                    return Poll::Ready(Some((attempts.remove(at).way, answer)));
                }
            }
            Pin::new(&mut timer).poll(cx).map(|()| None)
        })
        .await
    }

    /// Nobody answered this one for a while.
    fn forsake(&self, silent: Way) {
        if let Some(runtime) = silent.runtime {
            locked(&self.local).remove(&runtime);
        }
        self.silent(silent.at, silent.sent_at);
        self.turn_away_from(silent.at);
    }

    /// The answer, unless it is that of another cluster's node.
    async fn judged<A: Answer>(&self, way: Way, answer: Result<Response<A>, Status>) -> Result<A, Status> {
        let at = way.at % self.nodes();
        match answer {
            Ok(answer) => {
                let (answer, now) = (answer.into_inner(), self.clock.now());
                if !self.cluster.admits(at, answer.cluster()) {
                    return Err(cluster::strange());
                }
                self.trips.add(now - way.sent_at);
                if way.runtime.is_none() {
                    self.slot(at).alive_at = now;
                }
                Ok(answer)
            }
            // A refusal does not say who refuses.
            Err(status) if fault::is_refusal(&status) && self.is_strange(at).await => Err(cluster::strange()),
            Err(status) => Err(status),
        }
    }

    /// Ask one endpoint, on our own channel. For those who ask several by themselves.
    pub(crate) async fn call_at<Q, A, F>(
        &self,
        at: usize,
        patience: Duration,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Clone,
        A: Answer,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut renewed_token = false;
        loop {
            let answer = Box::pin(send(self.node(at), self.request(message.clone(), false)));
            let way = Way { at, runtime: None, sent_at: self.clock.now() };
            let mut attempts = vec![Attempt { way, answer }];
            let until = self.clock.now().after(patience);
            let Some((way, answer)) = self.first(&mut attempts, until).await else {
                return Err(Status::deadline_exceeded("no answer in time"));
            };
            match self.judged(way, answer).await {
                Err(status)
                    if self.options.user.is_some() && fault::is_token_stale(&status) && !renewed_token =>
                {
                    renewed_token = true;
                    self.authenticate().await?;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) fn token(&self) -> MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        locked(&self.token)
    }
}
