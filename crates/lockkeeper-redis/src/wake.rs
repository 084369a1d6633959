//! Who hears: messages of this process's wake channel ring the bell of their claim.
//!
//! A message is a hint about a claim, or says that a claim was made holder. Of the second kind only one
//! that answers the claim's latest ask is believed, see `place.rs`; so it does not matter if a message
//! is late, doubled or lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper_core::ClaimId;
use lockkeeper_core::kit::{self, locked};
use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

/// A grant that came by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) counter: u64,
    /// The number of the ask after which the claim was made holder.
    pub(crate) ask: u64,
    pub(crate) wanted: bool,
}

/// The bell of one claim, with what it has heard.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    word: Option<Word>,
    /// Somebody wants what it holds, or took it away.
    called: bool,
    /// What its claim holds, as far as we know.
    holds: Option<Holding>,
    /// It was found that the claim does not hold any more what it held.
    lost: bool,
}

/// The bells of all claims of this backend that may hear something.
pub(crate) type Bells = kit::Bells<Bell>;

/// What a claim holds: all that is needed to renew it.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) main: Arc<str>,
    pub(crate) tag: u8,
    pub(crate) id: ClaimId,
    pub(crate) ttl_ms: u64,
}

impl Bell {
    fn ring(&self, word: Option<Word>) {
        if word.is_some() {
            locked(&self.heard).word = word;
        }
        self.rung.notify_one();
    }

    /// The claim holds this from now on.
    pub(crate) fn hold(&self, holding: Holding) {
        let mut heard = locked(&self.heard);
        (heard.holds, heard.lost) = (Some(holding), false);
    }

    /// The claim gives back what it holds: nobody may renew it any more.
    pub(crate) fn give_back(&self) {
        locked(&self.heard).holds = None;
    }

    /// The claim holds this no more, and asking will tell so.
    pub(crate) fn lose(&self) {
        {
            let mut heard = locked(&self.heard);
            (heard.holds, heard.lost) = (None, true);
        }
        self.ring(None);
    }

    pub(crate) fn has_lost(&self) -> bool {
        locked(&self.heard).lost
    }

    fn holding(&self) -> Option<Holding> {
        locked(&self.heard).holds.clone()
    }

    /// Somebody wants what the claim holds.
    fn call(&self) {
        locked(&self.heard).called = true;
        self.ring(None);
    }

    /// Whether somebody has called since this was asked last.
    pub(crate) fn take_call(&self) -> bool {
        std::mem::take(&mut locked(&self.heard).called)
    }

    /// The last grant that came by message, once.
    pub(crate) fn take_word(&self) -> Option<Word> {
        locked(&self.heard).word.take()
    }

    /// Resolves once after each ring.
    pub(crate) async fn rung(&self) {
        self.rung.notified().await;
    }
}

/// Everybody should ask again: messages may have been missed.
pub(crate) fn ring_all(bells: &Bells) {
    bells.all().iter().for_each(|it| it.ring(None));
}

/// Everything that is held, as far as we know.
pub(crate) fn held(bells: &Bells) -> Vec<(Holding, Arc<Bell>)> {
    bells.all().into_iter().filter_map(|it| Some((it.holding()?, it))).collect()
}

fn deliver(bells: &Bells, message: &[u8]) {
    let Some((kind, rest)) = message.split_first() else { return };
    let Some((id, rest)) = rest.split_first_chunk::<16>() else { return };
    if let Some(bell) = bells.of(ClaimId::from_bytes(*id)) {
        if *kind == b'G' { bell.ring(word(rest)) } else { bell.call() }
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

/// Who hears what comes on a connection.
#[derive(Clone)]
pub(crate) struct Ear {
    /// Where messages go.
    pub(crate) bells: Option<Arc<Bells>>,
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
    /// Acquire and Release, as is told in `connection.rs`.
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
                if let (Some(bells), Some(Value::BulkString(message))) = (&self.ear.bells, info.data.get(1)) {
                    deliver(bells, message);
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
