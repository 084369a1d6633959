//! The two traits of a store without their types, so that a locker can hold any: the one place where futures are boxed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::clock::Moment;
use crate::spi::backend::{Backend, Place, Renewal, Result, Turn};
use crate::spi::claim::{Claim, Load};
use crate::spi::inspect::DynInspect;
use crate::spi::memos::DynMemos;
use tokio::sync::watch;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A place that moves into its verb and comes back with the answer, so that whoever holds the future
/// holds the place: a caller that goes away can hand both to the keeper's thread.
pub(crate) type Step<T> = BoxFuture<(Box<dyn DynPlace>, Result<T>)>;

/// A place that listens until the store has something to say, or until it is called off.
pub(crate) type Listening = BoxFuture<Box<dyn DynPlace>>;

/// [`Backend`] without its type, so that a locker can hold any.
pub(crate) trait DynBackend: fmt::Debug + Send + Sync {
    fn enter_dyn(&self, claim: Claim) -> Box<dyn DynPlace>;
    fn is_private_dyn(&self) -> bool;
    fn memos_dyn(&self) -> Option<Arc<dyn DynMemos>>;
    fn inspect_dyn(&self) -> Option<Arc<dyn DynInspect>>;
    fn alarm_dyn(&self) -> Option<watch::Receiver<u64>>;
}

/// [`Place`] without its type.
pub(crate) trait DynPlace: Send {
    fn turn_dyn(self: Box<Self>) -> Step<Turn>;
    fn changed_dyn(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn listen_dyn(self: Box<Self>, called_off: Arc<AtomicBool>) -> Listening;
    fn was_called_dyn(&self) -> bool;
    fn renew_dyn(self: Box<Self>) -> Step<Renewal>;
    fn leave_dyn(self: Box<Self>) -> Step<()>;
    fn linger_dyn(self: Box<Self>, span: Duration) -> Step<()>;
    fn lower_dyn(self: Box<Self>, load: Load) -> Step<bool>;
    fn turn_at_once_dyn(&mut self, now: Moment) -> Option<Turn>;
    fn leave_at_once_dyn(&mut self) -> bool;
}

impl<B: Backend> DynBackend for B {
    fn enter_dyn(&self, claim: Claim) -> Box<dyn DynPlace> {
        Box::new(self.enter(claim))
    }

    fn is_private_dyn(&self) -> bool {
        self.is_private()
    }

    fn memos_dyn(&self) -> Option<Arc<dyn DynMemos>> {
        self.memos()
    }

    fn inspect_dyn(&self) -> Option<Arc<dyn DynInspect>> {
        self.inspect()
    }

    fn alarm_dyn(&self) -> Option<watch::Receiver<u64>> {
        self.alarm()
    }
}

impl<P: Place> DynPlace for P {
    fn turn_dyn(mut self: Box<Self>) -> Step<Turn> {
        Box::pin(async move {
            let answer = self.turn().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn changed_dyn(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.changed())
    }

    fn listen_dyn(mut self: Box<Self>, called_off: Arc<AtomicBool>) -> Listening {
        Box::pin(async move {
            {
                let mut changed = pin!(self.changed());
                // Called off and asked by one thread: Relaxed is enough. It comes first, so that one more poll ends it.
                poll_fn(|cx| {
                    if called_off.load(Ordering::Relaxed) {
                        Poll::Ready(())
                    } else {
                        changed.as_mut().poll(cx)
                    }
                })
                .await;
            }
            self as Box<dyn DynPlace>
        })
    }

    fn was_called_dyn(&self) -> bool {
        self.was_called()
    }

    fn renew_dyn(mut self: Box<Self>) -> Step<Renewal> {
        Box::pin(async move {
            let answer = self.renew().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn leave_dyn(mut self: Box<Self>) -> Step<()> {
        Box::pin(async move {
            let answer = self.leave().await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn linger_dyn(mut self: Box<Self>, span: Duration) -> Step<()> {
        Box::pin(async move {
            let answer = self.linger(span).await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn lower_dyn(mut self: Box<Self>, load: Load) -> Step<bool> {
        Box::pin(async move {
            let answer = self.lower(load).await;
            (self as Box<dyn DynPlace>, answer)
        })
    }

    fn turn_at_once_dyn(&mut self, now: Moment) -> Option<Turn> {
        self.turn_at_once(now)
    }

    fn leave_at_once_dyn(&mut self) -> bool {
        self.leave_at_once()
    }
}
