//! The board of those who wait to hear: messages of this process's wake channel find their claim here.
//!
//! A message is a hint about a claim, or says that a claim was made holder. Of the second kind only one
//! that answers the claim's latest ask is believed, see `place.rs`; so it does not matter if a message
//! is late, doubled or lost.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::ClaimId;
use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};

/// A grant that came by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) counter: u64,
    /// The number of the ask after which the claim was made holder.
    pub(crate) ask: u64,
    pub(crate) wanted: bool,
}

/// What one claim has heard.
#[derive(Debug, Default)]
pub(crate) struct Seat(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    called: bool,
    word: Option<Word>,
    waker: Option<Waker>,
    /// What its claim holds, as far as we know.
    holds: Option<Holding>,
    /// It was found that the claim does not hold any more what it held.
    lost: bool,
}

/// What a claim holds: all that is needed to renew it.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) main: Arc<str>,
    pub(crate) tag: u8,
    pub(crate) id: ClaimId,
    pub(crate) ttl_ms: u64,
}

impl Seat {
    fn call(&self, word: Option<Word>) {
        let mut heard = locked(&self.0);
        heard.called = true;
        if word.is_some() {
            heard.word = word;
        }
        let waker = heard.waker.take();
        drop(heard);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The claim holds this from now on.
    pub(crate) fn hold(&self, holding: Holding) {
        let mut heard = locked(&self.0);
        (heard.holds, heard.lost) = (Some(holding), false);
    }

    /// The claim holds this no more, and asking will tell so.
    pub(crate) fn lose(&self) {
        {
            let mut heard = locked(&self.0);
            (heard.holds, heard.lost) = (None, true);
        }
        self.call(None);
    }

    pub(crate) fn has_lost(&self) -> bool {
        locked(&self.0).lost
    }

    fn holding(&self) -> Option<Holding> {
        locked(&self.0).holds.clone()
    }

    /// The last grant that came by message, once.
    pub(crate) fn take_word(&self) -> Option<Word> {
        locked(&self.0).word.take()
    }

    /// Ready once after each call.
    pub(crate) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        let mut heard = locked(&self.0);
        if std::mem::take(&mut heard.called) {
            return Poll::Ready(());
        }
        heard.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// All claims of this backend that may hear something.
#[derive(Default)]
pub(crate) struct Board {
    seats: Mutex<HashMap<ClaimId, Arc<Seat>, foldhash::fast::RandomState>>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("seats", &locked(&self.seats).len()).finish_non_exhaustive()
    }
}

impl Board {
    pub(crate) fn sit(&self, id: ClaimId) -> Arc<Seat> {
        locked(&self.seats).entry(id).or_default().clone()
    }

    pub(crate) fn stand_up(&self, id: ClaimId) {
        let mut seats = locked(&self.seats);
        seats.remove(&id);
        if seats.capacity() > 1024 && seats.len() < seats.capacity() / 8 {
            seats.shrink_to_fit();
        }
    }

    /// Everybody should ask again: messages may have been missed.
    pub(crate) fn call_all(&self) {
        let seats: Vec<_> = locked(&self.seats).values().cloned().collect();
        for seat in seats {
            seat.call(None);
        }
    }

    /// Everything that is held, as far as we know.
    pub(crate) fn held(&self) -> Vec<(Holding, Arc<Seat>)> {
        let seats = locked(&self.seats);
        seats.values().filter_map(|it| Some((it.holding()?, it.clone()))).collect()
    }

    fn deliver(&self, message: &[u8]) {
        let Some((kind, rest)) = message.split_first() else {
            return;
        };
        let Some((id, rest)) = rest.split_first_chunk::<16>() else {
            return;
        };
        let seat = locked(&self.seats).get(&ClaimId::from_bytes(*id)).cloned();
        let Some(seat) = seat else { return };
        seat.call((*kind == b'G').then(|| word(rest)).flatten());
    }
}

/// Counter and number of the ask as the script packs them: two big-endian doubles and a digit.
fn word(bytes: &[u8]) -> Option<Word> {
    let (counter, rest) = bytes.split_first_chunk::<8>()?;
    let (ask, rest) = rest.split_first_chunk::<8>()?;
    Some(Word {
        counter: crate::record::whole(*counter),
        ask: crate::record::whole(*ask),
        wanted: rest.first() == Some(&b'1'),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who hears what comes on a connection.
#[derive(Clone)]
pub(crate) struct Ear {
    /// Where messages go.
    pub(crate) board: Option<Arc<Board>>,
    /// What to subscribe to when the connection is opened.
    pub(crate) channel: Option<String>,
    /// Called when messages stop coming.
    pub(crate) deaf: Arc<dyn Fn() + Send + Sync>,
}

impl Ear {
    /// The ear of one connection, which is told when it is broken.
    pub(crate) fn tap(self, broken: Arc<AtomicBool>) -> Tap {
        Tap { ear: self, broken }
    }
}

/// What the driver of a connection speaks into.
pub(crate) struct Tap {
    ear: Ear,
    broken: Arc<AtomicBool>,
}

impl Tap {
    fn go_deaf(&self) {
        // Once: a connection that ends is first told to end and then dropped.
        if !self.broken.swap(true, Ordering::AcqRel) {
            (self.ear.deaf)();
        }
    }
}

impl AsyncPushSender for Tap {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let (Some(board), Some(Value::BulkString(message))) = (&self.ear.board, info.data.get(1)) {
                    board.deliver(message);
                }
            }
            PushKind::Disconnection | PushKind::SUnsubscribe => self.go_deaf(),
            _ => {}
        }
        Ok(())
    }
}

/// The driver went away with its runtime: whoever waits must not rely on it.
impl Drop for Tap {
    fn drop(&mut self) {
        self.go_deaf();
    }
}
