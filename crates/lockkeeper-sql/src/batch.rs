//! Renewals that are asked for at the same time travel as one statement.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_core::Claim;
use lockkeeper_core::backend::{Fault, Renewal, Result};
use tokio::sync::oneshot;

use crate::name::NameHash;

/// The most claims in one statement, so that no packet grows beyond what servers accept.
const TOGETHER_MAX: usize = 500;

/// One claim to be renewed.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) lock: NameHash,
    pub(crate) claim: Arc<Claim>,
}

type Waiting = (Due, oneshot::Sender<Result<Renewal>>);

/// Those who wait for the next statement.
#[derive(Debug, Default)]
pub(crate) struct Batch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Somebody is sending and will send what waits, too.
    sending: bool,
}

/// Renew many claims at once; the answers come in the order of the claims.
pub(crate) trait RenewAll: Send + Sync + 'static {
    fn batch(&self) -> &Batch;
    fn renew_all(&self, dues: &[Due]) -> impl Future<Output = Result<Vec<Renewal>>> + Send;
}

/// Renew one claim together with whoever else asks now.
pub(crate) async fn renew<S: RenewAll>(store: &Arc<S>, due: Due) -> Result<Renewal> {
    let (sender, answer) = oneshot::channel();
    if store.batch().join((due, sender)) {
        // A task of its own: whoever asked first may go away while the others wait.
        tokio::spawn(send(store.clone()));
    }
    answer
        .await
        .unwrap_or_else(|_| Err(Fault::transient("sql", "renewing the lock", "the runtime is shutting down")))
}

async fn send<S: RenewAll>(store: Arc<S>) {
    let sending = Sending(&*store);
    // Let everybody who is about to ask join first.
    tokio::task::yield_now().await;
    while let Some(waiting) = store.batch().take() {
        let (dues, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        match store.renew_all(&dues).await {
            Ok(renewals) => {
                // Whoever went away does not need the answer.
                replies.into_iter().zip(renewals).for_each(|(reply, it)| drop(reply.send(Ok(it))));
            }
            Err(fault) => replies.into_iter().for_each(|reply| drop(reply.send(Err(fault.clone())))),
        }
    }
    // `take` found nobody and said so under its lock; somebody else may be sending by now.
    std::mem::forget(sending);
}

/// Whoever sends. If its runtime ends half-way, those who wait hear of it and the next one sends.
struct Sending<'a, S: RenewAll>(&'a S);

impl<S: RenewAll> Drop for Sending<'_, S> {
    fn drop(&mut self) {
        let mut state = self.0.batch().0.lock().unwrap_or_else(PoisonError::into_inner);
        state.sending = false;
        state.waiting.clear();
    }
}

impl Batch {
    /// Stand with the others. `true` means that nobody is sending yet.
    fn join(&self, waiting: Waiting) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(waiting);
        !std::mem::replace(&mut state.sending, true)
    }

    fn take(&self) -> Option<Vec<Waiting>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.waiting.is_empty() {
            state.sending = false;
            return None;
        }
        let count = state.waiting.len().min(TOGETHER_MAX);
        Some(state.waiting.drain(..count).collect())
    }
}
