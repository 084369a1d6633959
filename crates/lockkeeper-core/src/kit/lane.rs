//! A queue inside the process in front of a connection: what is asked at the same time travels together.
//!
//! At most `width` statements of a lane are under way. Alone, a request goes at once and by itself; whatever
//! comes while the lane is full waits here and goes as one statement of up to `together` requests. So a crowd
//! neither floods the server nor loses time on the way: a deadline counts from when the statement leaves.
//!
//! Statements are sent by tasks of the connection's runtime, so that a caller that is not polled holds nobody up; only
//! one at a time, with nobody else under way when it began, may be sent by whoever asks.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::company;
use super::locked::locked;
use crate::spi::fault::Result;

/// Requests of one kind that wait for a statement.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::Arc;
///
/// use lockkeeper_core::backend::Result;
/// use lockkeeper_core::kit::lane::{self, Carry, Lane};
/// use tokio::runtime::Handle;
///
/// /// Renewals: one statement at a time, for up to 500 claims.
/// struct Renewals(Lane<u64, bool>);
///
/// impl Carry<u64, bool> for Renewals {
///     fn lane(&self) -> &Lane<u64, bool> {
///         &self.0
///     }
///
///     async fn carry(&self, claims: Vec<u64>) -> Vec<Result<bool>> {
///         // UPDATE … WHERE id IN (…)
///         claims.into_iter().map(|it| Ok(it != 3)).collect()
///     }
/// }
///
/// let renewals = Arc::new(Renewals(Lane::new(1, 500)));
/// let here = Handle::current();
/// let both = tokio::join!(lane::ask(&renewals, &here, 2), lane::ask(&renewals, &here, 3));
/// assert!(matches!(both, (Some(Ok(true)), Some(Ok(false)))));
/// // Nobody else is under way: sent from here, without a task of its own.
/// assert!(matches!(lane::ask_here(&renewals, &here, 4).await, Some(Ok(true))));
/// # }
/// ```
pub struct Lane<I, A> {
    width: usize,
    together: usize,
    state: Mutex<State<I, A>>,
}

struct State<I, A> {
    waiting: VecDeque<Asked<I, A>>,
    under_way: usize,
}

struct Asked<I, A> {
    item: I,
    answer: oneshot::Sender<Result<A>>,
}

/// Whatever brings the requests of a lane to the server.
pub trait Carry<I, A>: Send + Sync + 'static {
    /// Where its requests wait.
    fn lane(&self) -> &Lane<I, A>;

    /// Send these as one statement. The answers come in the order of the requests, one for each.
    fn carry(&self, items: Vec<I>) -> impl Future<Output = Vec<Result<A>>> + Send;
}

impl<I, A> Lane<I, A> {
    /// `width`: the most statements under way; `together`: the most requests in one.
    pub fn new(width: usize, together: usize) -> Self {
        let state = State { waiting: VecDeque::new(), under_way: 0 };
        Lane { width: width.max(1), together: together.max(1), state: Mutex::new(state) }
    }

    /// Stand in the queue. `true` if another statement may be under way: then somebody must send.
    fn join(&self, asked: Asked<I, A>) -> bool {
        let mut state = locked(&self.state);
        state.waiting.push_back(asked);
        let more = state.under_way < self.width;
        state.under_way += usize::from(more);
        more
    }

    /// `true` if nothing is under way: one statement is from now on.
    fn begin_alone(&self) -> bool {
        let mut state = locked(&self.state);
        let idle = state.under_way == 0 && state.waiting.is_empty();
        state.under_way += usize::from(idle);
        idle
    }

    /// That statement is over. `true` if somebody waits: then somebody must send, in its stead.
    fn end_alone(&self) -> bool {
        let mut state = locked(&self.state);
        let waits = !state.waiting.is_empty();
        state.under_way -= usize::from(!waits);
        waits
    }

    /// What the next statement carries. `None` if nobody waits: then one statement less is under way.
    fn take(&self) -> Option<Vec<Asked<I, A>>> {
        let mut state = locked(&self.state);
        let mut taken = Vec::new();
        while taken.len() < self.together {
            let Some(asked) = state.waiting.pop_front() else { break };
            // Whoever went away has asked elsewhere since; sent late, its request might do harm.
            if !asked.answer.is_closed() {
                taken.push(asked);
            }
        }
        if taken.is_empty() {
            state.under_way -= 1;
            return None;
        }
        Some(taken)
    }
}

/// Ask by a lane whose statements are sent on `runtime`, in a task of which we are. With nobody else under way it is sent
/// from here: a task more costs as much as a statement. `None` if that runtime has ended.
///
/// # Cancel safety
/// As `ask`, if the lane is in use. Otherwise the statement may have been sent; others go on without us.
pub async fn ask_here<I, A, C>(carrier: &Arc<C>, runtime: &Handle, item: I) -> Option<Result<A>>
where
    C: Carry<I, A>,
    I: Send + 'static,
    A: Send + 'static,
{
    // One statement for all whom one caller asks for at this moment.
    if company::is_here() || !carrier.lane().begin_alone() {
        return ask(carrier, runtime, item).await;
    }
    let alone = Alone { carrier, runtime, kind: PhantomData };
    // On the heap: whoever asks has a stack of unknown depth.
    let answer = Box::pin(carrier.carry(vec![item])).await.pop();
    drop(alone);
    match answer {
        // If the runtime is over, that is why.
        Some(Err(_)) | None if runtime.spawn(async {}).await.is_err() => None,
        answer => answer,
    }
}

/// One result for all of `count` requests, as one for each.
///
/// ```
/// use lockkeeper_core::backend::Fault;
/// use lockkeeper_core::kit::lane::each;
///
/// assert!(matches!(each(2, Ok(vec![true, false]))[..], [Ok(true), Ok(false)]));
/// let down = Fault::transient("mystore", "asking", "connection refused");
/// assert!(matches!(each::<bool>(2, Err(down))[..], [Err(_), Err(_)]));
/// ```
pub fn each<A>(count: usize, answers: Result<Vec<A>>) -> Vec<Result<A>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(fault) => std::iter::repeat_n(fault, count).map(Err).collect(),
    }
}

/// One statement is under way that no task of the lane sends.
struct Alone<'a, I: Send + 'static, A: Send + 'static, C: Carry<I, A>> {
    carrier: &'a Arc<C>,
    runtime: &'a Handle,
    kind: PhantomData<fn(I) -> A>,
}

impl<I: Send + 'static, A: Send + 'static, C: Carry<I, A>> Drop for Alone<'_, I, A, C> {
    fn drop(&mut self) {
        // Whoever came meanwhile and found the lane full is sent by a task.
        if self.carrier.lane().end_alone() {
            self.runtime.spawn(Sending::new(self.carrier.clone()).send());
        }
    }
}

/// Ask by a lane whose statements are sent on `runtime`. `None` if that runtime has ended.
///
/// # Cancel safety
/// If dropped before the request was taken from the queue, it is never sent.
pub async fn ask<I, A, C>(carrier: &Arc<C>, runtime: &Handle, item: I) -> Option<Result<A>>
where
    C: Carry<I, A>,
    I: Send + 'static,
    A: Send + 'static,
{
    let (sender, answer) = oneshot::channel();
    if carrier.lane().join(Asked { item, answer: sender }) {
        let (runtime, sending) = (runtime.clone(), Sending::new(carrier.clone()));
        company::when_all_have_asked(move || drop(runtime.spawn(sending.send())));
    }
    answer.await.ok()
}

/// One of those who send.
struct Sending<I, A, C: Carry<I, A>> {
    carrier: Arc<C>,
    kind: PhantomData<fn(I)>,
    /// Who waits for the statement under way. Told after the lane is free again, so that nobody who asks anew
    /// joins a lane whose sender is gone.
    replies: Vec<oneshot::Sender<Result<A>>>,
    over: bool,
}

impl<I: Send + 'static, A: Send + 'static, C: Carry<I, A>> Sending<I, A, C> {
    fn new(carrier: Arc<C>) -> Self {
        Sending { carrier, kind: PhantomData, replies: Vec::new(), over: false }
    }

    async fn send(mut self) {
        // Let everybody who is about to ask join first.
        tokio::task::yield_now().await;
        while let Some(taken) = self.carrier.lane().take() {
            let items: Vec<I>;
            (items, self.replies) = taken.into_iter().map(|it| (it.item, it.answer)).unzip();
            let answers = self.carrier.carry(items).await;
            // Whoever went away does not need the answer.
            self.replies.drain(..).zip(answers).for_each(|(reply, answer)| drop(reply.send(answer)));
        }
        self.over = true;
    }
}

/// If the runtime ends half-way, those who wait hear of it and ask elsewhere.
impl<I, A, C: Carry<I, A>> Drop for Sending<I, A, C> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = locked(&self.carrier.lane().state);
        state.under_way -= 1;
        let gone = std::mem::take(&mut state.waiting);
        drop(state);
        // Not under the lock: their tasks are woken.
        drop(gone);
    }
}

impl<I, A> fmt::Debug for Lane<I, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("width", &self.width)
            .field("together", &self.together)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    /// Records what travels together, and sends nothing before it may.
    struct Probe {
        lane: Lane<u32, u32>,
        seen: mpsc::UnboundedSender<Vec<u32>>,
        may_go: Semaphore,
    }

    impl Carry<u32, u32> for Probe {
        fn lane(&self) -> &Lane<u32, u32> {
            &self.lane
        }

        async fn carry(&self, items: Vec<u32>) -> Vec<Result<u32>> {
            self.seen.send(items.clone()).unwrap();
            self.may_go.acquire().await.unwrap().forget();
            items.into_iter().map(|it| Ok(it * 10)).collect()
        }
    }

    fn probe(width: usize, together: usize) -> (Arc<Probe>, mpsc::UnboundedReceiver<Vec<u32>>) {
        let (seen, sent) = mpsc::unbounded_channel();
        (Arc::new(Probe { lane: Lane::new(width, together), seen, may_go: Semaphore::new(0) }), sent)
    }

    fn asking(probe: &Arc<Probe>, item: u32) -> tokio::task::JoinHandle<Option<Result<u32>>> {
        let probe = probe.clone();
        tokio::spawn(async move { ask(&probe, &Handle::current(), item).await })
    }

    #[tokio::test]
    async fn what_comes_while_the_lane_is_full_goes_together() {
        let (probe, mut sent) = probe(1, 3);
        let alone = asking(&probe, 1);
        assert_eq!(sent.recv().await.unwrap(), [1]);
        let mut crowd = Vec::new();
        for item in 2..=5 {
            crowd.push(asking(&probe, item));
        }
        // Each has joined once its task has run, which is before a later one's.
        tokio::task::yield_now().await;
        probe.may_go.add_permits(3);
        assert_eq!(sent.recv().await.unwrap(), [2, 3, 4]);
        assert_eq!(sent.recv().await.unwrap(), [5]);
        assert_eq!(alone.await.unwrap().unwrap().unwrap(), 10);
        for (task, answer) in crowd.into_iter().zip([20, 30, 40, 50]) {
            assert_eq!(task.await.unwrap().unwrap().unwrap(), answer);
        }
        assert_eq!(locked(&probe.lane.state).under_way, 0);
    }

    #[tokio::test]
    async fn no_more_statements_are_under_way_than_the_lane_is_wide() {
        let (probe, mut sent) = probe(2, 1);
        let tasks: Vec<_> = (1..=5).map(|it| asking(&probe, it)).collect();
        assert_eq!((sent.recv().await.unwrap(), sent.recv().await.unwrap()), (vec![1], vec![2]));
        tokio::task::yield_now().await;
        assert!(sent.try_recv().is_err(), "a third statement went");
        probe.may_go.add_permits(5);
        for task in tasks {
            task.await.unwrap().unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn whoever_went_away_is_not_sent() {
        let (probe, mut sent) = probe(1, 9);
        let one = asking(&probe, 1);
        assert_eq!(sent.recv().await.unwrap(), [1]);
        let (gone, stays) = (asking(&probe, 2), asking(&probe, 3));
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        probe.may_go.add_permits(2);
        assert_eq!(sent.recv().await.unwrap(), [3]);
        one.await.unwrap().unwrap().unwrap();
        stays.await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn whoever_sends_for_itself_holds_nobody_up_when_it_goes_away() {
        let (probe, mut sent) = probe(1, 9);
        let alone = {
            let probe = probe.clone();
            tokio::spawn(async move { ask_here(&probe, &Handle::current(), 1).await })
        };
        assert_eq!(sent.recv().await.unwrap(), [1]);
        let (one, other) = (asking(&probe, 2), asking(&probe, 3));
        tokio::task::yield_now().await;
        alone.abort();
        assert!(alone.await.is_err());
        assert_eq!(sent.recv().await.unwrap(), [2, 3], "nobody sent those who came meanwhile");
        probe.may_go.add_permits(2);
        assert_eq!(one.await.unwrap().unwrap().unwrap(), 20);
        assert_eq!(other.await.unwrap().unwrap().unwrap(), 30);
        assert_eq!(ask_here(&probe, &Handle::current(), 4).await.unwrap().unwrap(), 40);
        assert_eq!(locked(&probe.lane.state).under_way, 0);
    }

    #[tokio::test]
    async fn a_runtime_that_ends_is_told_to_all_who_wait_and_another_can_be_used() {
        let (probe, mut sent) = probe(1, 9);
        let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let asks: Vec<_> = [1, 2]
            .map(|it| {
                let (probe, there) = (probe.clone(), other.handle().clone());
                tokio::spawn(async move { ask(&probe, &there, it).await.is_none() })
            })
            .into();
        sent.recv().await.unwrap();
        other.shutdown_background();
        for it in asks {
            assert!(it.await.unwrap(), "nobody told it");
        }
        probe.may_go.add_permits(1);
        assert_eq!(asking(&probe, 3).await.unwrap().unwrap().unwrap(), 30);
    }
}
