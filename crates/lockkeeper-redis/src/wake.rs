//! The board of those who wait to hear: messages of this process's wake channel find their claim here.
//!
//! A message is a hint about a claim, or says that a claim was made holder. Of the second kind only one
//! that answers the claim's latest ask is believed, see `place.rs`; so it does not matter if a message
//! is late, doubled or lost.

use std::collections::HashMap;
use std::fmt;
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
pub(crate) struct Board {
    /// Our name in wake channels: 16 characters.
    pub(crate) process: String,
    seats: Mutex<HashMap<ClaimId, Arc<Seat>, foldhash::fast::RandomState>>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("seats", &locked(&self.seats).len()).finish_non_exhaustive()
    }
}

impl Board {
    pub(crate) fn new(process: String) -> Self {
        Board { process, seats: Mutex::default() }
    }

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

/// What the driver of a subscribed connection speaks into.
pub(crate) struct Tap {
    board: Arc<Board>,
    /// Called when messages stop coming on this connection.
    deaf: Box<dyn Fn() + Send + Sync>,
}

impl Tap {
    pub(crate) fn new(board: Arc<Board>, deaf: impl Fn() + Send + Sync + 'static) -> Self {
        Tap { board, deaf: Box::new(deaf) }
    }
}

impl AsyncPushSender for Tap {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1) {
                    self.board.deliver(message);
                }
            }
            PushKind::Disconnection | PushKind::SUnsubscribe => {
                (self.deaf)();
                self.board.call_all();
            }
            _ => {}
        }
        Ok(())
    }
}

/// The driver went away with its runtime: whoever waits must not rely on it.
impl Drop for Tap {
    fn drop(&mut self) {
        (self.deaf)();
        self.board.call_all();
    }
}
