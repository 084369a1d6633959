//! Waiting in the server's line. Whoever asks hears the answer itself if it comes soon. If not, a task of our own runtime
//! finds out whether the place in the line is sure, and hears the answer, whoever listens.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::claimed::Told;
use super::conversation::{Conversation, Trouble as _};
use super::place::{AT_ONCE, PAUSE_MAX, TAKING};
use super::{Claimed, Lease, Leases, Store};

/// For how long whoever asks hears the answer itself, where the name is handed on. Longer than our own thread sleeps: a timer that
/// is due earlier than its others would wake it, for each wait.
const SOON: Duration = Duration::from_millis(150);

/// What a wait needs: whose it is, the session that waits, and the one that can be asked about it.
pub(super) struct Wait<W: Conversation> {
    pub(super) store: Arc<Store<W>>,
    pub(super) claimed: Arc<Claimed<W>>,
    pub(super) leases: Arc<Leases<W>>,
    pub(super) lease: Arc<Lease<W>>,
    pub(super) shared: Arc<Lease<W>>,
}

/// What comes of a wait is told by this; if it is dropped before, nobody waits.
pub(super) type Tell<W> = watch::Sender<Option<Told<<W as Conversation>::Mark>>>;

/// Begin to wait, and do so here for as long as somebody who is let in soon waits: that one has it a change of thread earlier.
pub(super) async fn begin<W: Conversation>(wait: Wait<W>, tell: Tell<W>) {
    let wait = Arc::new(wait);
    let mut answer = Box::pin(let_in(wait.clone()));
    let soon = wait.store.clock.now().after(wait.patience());
    if let Some(outcome) = wait.store.clock.within(soon, &mut answer).await {
        let _ = tell.send(Some(outcome));
        return;
    }
    let runtime = wait.leases.runtime.clone();
    runtime.spawn(async move {
        let outcome = hear(&wait, answer.as_mut(), &tell).await;
        let _ = tell.send(Some(outcome));
        wait.claimed.rung.send_modify(|it| *it = it.wrapping_add(1));
    });
}

impl<W: Conversation> Wait<W> {
    /// Whoever is likely to be let in soon need not ask whether it stands in the line: it stands there, or it has the lock.
    fn patience(&self) -> Duration {
        if self.leases.is_handed_on(&self.claimed.lock) { SOON } else { AT_ONCE }
    }
}

/// The outcome. It is told first whether we stand in the line.
async fn hear<W: Conversation>(
    wait: &Wait<W>,
    mut answer: Pin<&mut impl Future<Output = Told<W::Mark>>>,
    tell: &Tell<W>,
) -> Told<W::Mark> {
    let sure = tokio::select! {
        biased;
        outcome = answer.as_mut() => return outcome,
        sure = until_standing(wait) => sure,
    };
    let sure = sure.map_or_else(|it| Told::Unsure(it.fault(TAKING)), |()| Told::Stands);
    let _ = tell.send(Some(sure));
    answer.await
}

/// Whoever is told to wait has its place in the server's line: those who ask later come later.
async fn until_standing<W: Conversation>(wait: &Wait<W>) -> Result<(), W::Trouble> {
    let (shared, own) = (&wait.shared, &wait.lease.wire);
    let mut pause = AT_ONCE;
    while !shared.ask(shared.wire.stands(own)).await?.0 {
        wait.store.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

/// Its answer does not prove the session: it may have stood in a buffer for longer than the ttl.
async fn let_in<W: Conversation>(wait: Arc<Wait<W>>) -> Told<W::Mark> {
    let Wait { store, claimed, leases, lease, .. } = &*wait;
    let failed = |trouble: W::Trouble| {
        if lease.is_closed() { Told::Over } else { Told::Failed(trouble.fault(TAKING)) }
    };
    let (taken, sent_at) = match lease.wire.take(claimed, true).await {
        Ok((Some(taken), sent_at)) => (taken, sent_at),
        // The server gave up waiting: so may we.
        Ok((None, _)) => return failed(W::Trouble::silent()),
        Err(trouble) => return failed(trouble),
    };
    let now = store.clock.now();
    // Where somebody waited a moment ago somebody waits again, most likely, and is not known to us for a while.
    let waited = taken.waited || leases.is_contended(&claimed.lock, now);
    if taken.waited {
        leases.met(claimed.lock, true, now);
    } else {
        leases.free(&claimed.lock);
    }
    lease.granted(claimed.lock, claimed.claim.id, taken.mark, waited);
    lease.wire.stands_here(claimed, taken.counter, taken.server);
    match lease.let_in(sent_at, taken.server).await {
        Ok(Some(proven_at)) => Told::LetIn { counter: taken.counter, mark: taken.mark, waited, proven_at },
        Ok(None) => Told::Over,
        Err(fault) => Told::Failed(fault),
    }
}
