//! A seat: our place at one node, and where it is when a verb outlasts its timeout.
//!
//! No verb is dropped half-way. One that is too slow goes on in the background with its place. Until it comes
//! home the node is asked nothing else; if nobody waits for it any more, what it may have taken is given
//! back there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Place, Result};
use lockkeeper_core::{Clock, Spawn};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::NAME;
use crate::trust::Trust;

/// A verb with its place, which comes back with the answer; `None` if the background was shut down.
pub(crate) type Verb<P, T> = Pin<Box<dyn Future<Output = (Option<P>, Result<T>)> + Send>>;

/// Our place at one node.
pub(crate) enum Seat<P> {
    /// At rest.
    Here(P),
    /// A verb is under way in the background; the place comes home when it ends.
    Away { home: oneshot::Receiver<P>, ended: oneshot::Receiver<()> },
    /// A place under an earlier id is being given up in the background.
    Orphaned(oneshot::Receiver<()>),
    /// The next round enters anew.
    Empty,
}

impl<P: Place> Seat<P> {
    /// Begin a verb, after the one that is still under way. `None` if the node is not to be asked.
    pub(crate) fn begin<T>(
        &mut self,
        verb: impl FnOnce(P) -> Verb<P, T> + Send + 'static,
    ) -> Option<Verb<P, T>>
    where
        T: Send + 'static,
    {
        match std::mem::replace(self, Seat::Empty) {
            Seat::Here(place) => Some(verb(place)),
            Seat::Away { home, .. } => Some(Box::pin(async move {
                match home.await {
                    Ok(place) => verb(place).await,
                    Err(_) => {
                        (None, Err(Fault::transient(NAME, "finishing a call", "the background has ended")))
                    }
                }
            })),
            Seat::Orphaned(ended) => {
                *self = Seat::Orphaned(ended);
                None
            }
            Seat::Empty => None,
        }
    }

    /// Whether a new place may be entered here.
    pub(crate) fn is_vacant(&mut self) -> bool {
        match self {
            Seat::Here(_) | Seat::Away { .. } => false,
            Seat::Empty => true,
            Seat::Orphaned(ended) => ended.try_recv() != Err(TryRecvError::Empty),
        }
    }
}

/// Finishes in the background what nobody waits for.
#[derive(Clone, Debug)]
pub(crate) struct Cleaner {
    pub(crate) clock: Clock,
    pub(crate) spawner: Arc<dyn Spawn>,
    /// What is remembered of each node.
    pub(crate) trust: Arc<[Trust]>,
    /// After so long a node has forgotten by itself what it last heard.
    pub(crate) forgets_after: Duration,
}

impl Cleaner {
    /// Let a verb that is late go on in the background. Its node is doubted until it ends well.
    pub(crate) fn adopt_late<P: Place, T: Send + 'static>(&self, at: usize, verb: Verb<P, T>) -> Seat<P> {
        let (clock, trust) = (self.clock.clone(), self.trust.clone());
        trust[at].note_silence(clock.now());
        self.adopt(Box::pin(async move {
            let (place, answer) = verb.await;
            trust[at].note(clock.now(), &answer);
            (place, answer)
        }))
    }

    /// Let a verb go on in the background.
    pub(crate) fn adopt<P: Place, T: Send + 'static>(&self, verb: Verb<P, T>) -> Seat<P> {
        let (bring, home) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let cleaner = self.clone();
        self.spawner.spawn(Box::pin(async move {
            let _end = end;
            if let (Some(place), _) = verb.await
                && let Err(place) = bring.send(place)
            {
                cleaner.clean(place).await;
            }
        }));
        Seat::Away { home, ended }
    }

    /// Nobody waits for this seat's place any more: give up what it has.
    pub(crate) fn abandon<P: Place>(&self, seat: &mut Seat<P>) {
        *seat = match std::mem::replace(seat, Seat::Empty) {
            Seat::Here(place) => self.clean_up(place),
            Seat::Away { mut home, ended } => {
                // Closed first, so that the place is either in here or still with the verb.
                home.close();
                home.try_recv().map_or(Seat::Orphaned(ended), |place| self.clean_up(place))
            }
            other => other,
        };
    }

    fn clean_up<P: Place>(&self, place: P) -> Seat<P> {
        let (end, ended) = oneshot::channel::<()>();
        let cleaner = self.clone();
        self.spawner.spawn(Box::pin(async move {
            let _end = end;
            cleaner.clean(place).await;
        }));
        Seat::Orphaned(ended)
    }

    /// Leave until it is confirmed, or until the node has forgotten us by itself.
    async fn clean<P: Place>(&self, mut place: P) {
        let forgotten_at = self.clock.now().after(self.forgets_after);
        let mut pause = Duration::from_millis(10);
        while place.leave().await.is_err() && self.clock.now() < forgotten_at {
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
