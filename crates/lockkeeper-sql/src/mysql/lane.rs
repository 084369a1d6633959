//! What is asked for at the same time travels together: one statement under way, all who come meanwhile in the next.
//!
//! Whoever finds nobody under way goes at once, in its own task: a lone caller pays nothing for the company of others.

use std::future::Future;
use std::sync::Mutex;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::NAME;

type Waiting<I, O> = (I, oneshot::Sender<Result<O>>);

/// Those who wait for the next statement of one kind.
#[derive(Debug)]
pub(super) struct Lane<I, O>(Mutex<State<I, O>>);

#[derive(Debug)]
struct State<I, O> {
    waiting: Vec<Waiting<I, O>>,
    /// Somebody is under way and sees to those who wait.
    busy: bool,
}

/// How what waits in a lane is carried.
pub(super) trait Carry: Clone + Send + Sync + 'static {
    type Item: Send + Sync + 'static;
    type Out: Send + 'static;

    /// The most that are carried at once, so that no packet grows beyond what servers accept.
    const TOGETHER: usize = 500;

    /// Whether also the first waits until everybody who is about to ask has joined: what is in no hurry.
    const GATHERS: bool = false;

    fn lane(&self) -> &Lane<Self::Item, Self::Out>;

    /// Carry all of them; the answers come in their order.
    fn carry(&self, items: &[Self::Item]) -> impl Future<Output = Result<Vec<Self::Out>>> + Send;
}

/// Carry one, alone or together with whoever else asks now.
pub(super) async fn go<C: Carry>(carrier: C, item: C::Item) -> Result<C::Out> {
    match carrier.lane().enter(item) {
        Ok(item) if C::GATHERS => {
            let answer = carrier.lane().wait(item);
            drop(Next(carrier));
            answer.await.unwrap_or_else(|_| Err(shutting_down()))
        }
        Ok(item) => {
            let next = Next(carrier);
            let outs = next.0.carry(std::slice::from_ref(&item)).await?;
            outs.into_iter().next().ok_or_else(shutting_down)
        }
        Err(answer) => answer.await.unwrap_or_else(|_| Err(shutting_down())),
    }
}

fn shutting_down() -> Fault {
    Fault::transient(NAME, "asking the server", "the runtime is shutting down")
}

/// Whoever is under way. When it arrives, or is dropped on its way, those who wait go next.
struct Next<C: Carry>(C);

impl<C: Carry> Drop for Next<C> {
    fn drop(&mut self) {
        let lane = self.0.lane();
        if lane.rest() {
            return;
        }
        match Handle::try_current() {
            // Made here, because a runtime that is ending drops the task before it has begun.
            Ok(runtime) => drop(runtime.spawn(send(Sending(Some(self.0.clone()))))),
            Err(_) => lane.clear(),
        }
    }
}

async fn send<C: Carry>(mut sending: Sending<C>) {
    // Let everybody who is about to ask join first.
    tokio::task::yield_now().await;
    while let Some(carrier) = &sending.0 {
        let Some(waiting) = carrier.lane().take(C::TOGETHER) else {
            sending.0 = None;
            return;
        };
        let (items, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        // Whoever went away does not need the answer.
        match carrier.carry(&items).await {
            Ok(outs) => replies.into_iter().zip(outs).for_each(|(reply, it)| drop(reply.send(Ok(it)))),
            Err(fault) => replies.into_iter().for_each(|reply| drop(reply.send(Err(fault.clone())))),
        }
    }
}

/// A task that sends. If its runtime ends half-way, those who wait hear of it and the next one goes alone.
struct Sending<C: Carry>(Option<C>);

impl<C: Carry> Drop for Sending<C> {
    fn drop(&mut self) {
        if let Some(carrier) = &self.0 {
            carrier.lane().clear();
        }
    }
}

impl<I, O> State<I, O> {
    fn wait(&mut self, item: I) -> oneshot::Receiver<Result<O>> {
        let (reply, answer) = oneshot::channel();
        self.waiting.push((item, reply));
        answer
    }
}

impl<I, O> Lane<I, O> {
    pub(super) const fn new() -> Self {
        Lane(Mutex::new(State { waiting: Vec::new(), busy: false }))
    }

    /// Go at once with the item, or wait for an answer.
    fn enter(&self, item: I) -> std::result::Result<I, oneshot::Receiver<Result<O>>> {
        let mut state = locked(&self.0);
        if !std::mem::replace(&mut state.busy, true) {
            return Ok(item);
        }
        Err(state.wait(item))
    }

    /// Wait for the next statement.
    fn wait(&self, item: I) -> oneshot::Receiver<Result<O>> {
        locked(&self.0).wait(item)
    }

    /// Rest if nobody waits. `false` means that somebody does.
    fn rest(&self) -> bool {
        let mut state = locked(&self.0);
        state.busy = !state.waiting.is_empty();
        !state.busy
    }

    fn take(&self, most: usize) -> Option<Vec<Waiting<I, O>>> {
        let mut state = locked(&self.0);
        if state.waiting.is_empty() {
            state.busy = false;
            return None;
        }
        let count = state.waiting.len().min(most);
        Some(state.waiting.drain(..count).collect())
    }

    /// Nobody will send any more.
    fn clear(&self) {
        let mut state = locked(&self.0);
        state.waiting.clear();
        state.busy = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[derive(Clone)]
    struct Doubling(Arc<(Lane<u32, u32>, Semaphore, AtomicUsize)>);

    impl Carry for Doubling {
        type Item = u32;
        type Out = u32;

        fn lane(&self) -> &Lane<u32, u32> {
            &self.0.0
        }

        async fn carry(&self, items: &[u32]) -> Result<Vec<u32>> {
            self.0.2.fetch_add(1, Ordering::SeqCst);
            self.0.1.acquire().await.unwrap().forget();
            Ok(items.iter().map(|it| it * 2).collect())
        }
    }

    fn doubling() -> Doubling {
        Doubling(Arc::new((Lane::new(), Semaphore::new(0), AtomicUsize::new(0))))
    }

    #[tokio::test]
    async fn those_who_come_meanwhile_travel_together() {
        let lane = doubling();
        let asked: Vec<_> = (0..900).map(|it| tokio::spawn(go(lane.clone(), it))).collect();
        // All have asked before the first is answered.
        tokio::task::yield_now().await;
        lane.0.1.add_permits(100);
        for (at, answer) in asked.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap().unwrap() as usize, at * 2);
        }
        assert_eq!(lane.0.2.load(Ordering::SeqCst), 3, "the first alone, then five hundred, then the rest");
    }

    #[tokio::test]
    async fn one_who_is_dropped_on_its_way_does_not_hold_up_the_others() {
        let lane = doubling();
        let first = tokio::spawn(go(lane.clone(), 1));
        tokio::task::yield_now().await;
        let second = tokio::spawn(go(lane.clone(), 2));
        tokio::task::yield_now().await;
        first.abort();
        lane.0.1.add_permits(1);
        assert_eq!(second.await.unwrap().unwrap(), 4);
    }

    #[test]
    fn a_runtime_that_ends_lets_the_next_one_go() {
        let lane = doubling();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for at in 0..3 {
                tokio::spawn(go(lane.clone(), at));
            }
            tokio::task::yield_now().await;
        });
        drop(runtime);
        lane.0.1.add_permits(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(go(lane, 3)).unwrap(), 6);
    }
}
