//! The proof of a session: until when a store surely keeps it, or that it is over.

use tokio::sync::watch;

use crate::clock::Moment;

/// What is known of a session or lease on which locks hang: the store keeps it until a moment, or has ended it.
///
/// One task sends heartbeats and extends the proof; everybody else reads it. Extend it from when the confirmed heartbeat
/// was *sent*, not from its answer. A loss is final: the next session has a proof of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # use std::time::Duration;
/// use lockkeeper_core::Clock;
/// use lockkeeper_core::kit::Proof;
///
/// let (clock, ttl) = (Clock::boot(), Duration::from_secs(10));
/// let asked_at = clock.now();
/// let proof = Proof::until(asked_at.after(ttl));
/// assert!(asked_at < proof.proven_until() && !proof.is_lost());
///
/// proof.extend(clock.now().after(ttl)); // a heartbeat was confirmed
/// proof.when_proven_beyond(asked_at.after(ttl / 2)).await;
///
/// proof.lose(); // the store has ended the session
/// proof.when_lost().await;
/// # }
/// ```
#[derive(Debug)]
pub struct Proof(watch::Sender<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    proven_until: Moment,
    lost: bool,
}

impl Proof {
    /// A new session, which the store will not end before this moment.
    pub fn until(proven_until: Moment) -> Self {
        Proof(watch::Sender::new(State { proven_until, lost: false }))
    }

    /// Until when the store surely keeps it.
    pub fn proven_until(&self) -> Moment {
        self.0.borrow().proven_until
    }

    /// The store will not end it before this moment. An earlier one changes nothing: answers may overtake each other.
    pub fn extend(&self, until: Moment) {
        self.0.send_if_modified(|it| {
            let later = it.proven_until < until;
            it.proven_until = it.proven_until.max(until);
            later
        });
    }

    /// Whether the store has ended it.
    pub fn is_lost(&self) -> bool {
        self.0.borrow().lost
    }

    /// The store has ended it. Final.
    pub fn lose(&self) {
        self.0.send_modify(|it| it.lost = true);
    }

    /// Resolves when the store has ended it.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn when_lost(&self) {
        // It cannot fail: the sender is `self`, which outlives this borrow.
        let _ = self.0.subscribe().wait_for(|it| it.lost).await;
    }

    /// Resolves when it is proven beyond `moment`, or lost.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn when_proven_beyond(&self, moment: Moment) {
        let _ = self.0.subscribe().wait_for(|it| it.lost || moment < it.proven_until).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_proof_only_grows_and_tells_those_who_wait_for_it() {
        let at = Moment::from_nanos;
        let proof = Proof::until(at(10));
        let mut waiting = pin!(proof.when_proven_beyond(at(20)));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(cx).is_pending());
        proof.extend(at(20));
        assert!(waiting.as_mut().poll(cx).is_pending(), "at the moment is not beyond it");
        proof.extend(at(21));
        assert!(waiting.as_mut().poll(cx).is_ready());
        proof.extend(at(5));
        assert_eq!(proof.proven_until(), at(21));
        assert!(!proof.is_lost() && !is_ready(proof.when_lost()));
    }

    #[test]
    fn a_loss_is_final_and_ends_every_wait() {
        let proof = Proof::until(Moment::from_nanos(10));
        let (mut lost, mut beyond) = (pin!(proof.when_lost()), pin!(proof.when_proven_beyond(Moment::NEVER)));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(cx).is_pending() && beyond.as_mut().poll(cx).is_pending());
        proof.lose();
        assert!(lost.as_mut().poll(cx).is_ready() && beyond.as_mut().poll(cx).is_ready());
        proof.extend(Moment::NEVER);
        assert!(proof.is_lost() && is_ready(proof.when_lost()), "also for those who come later");
    }
}
