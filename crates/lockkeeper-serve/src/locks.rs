//! `POST /v1/locks/NAME`: a stream that is the lock. Whoever closes it gives the lock back.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State as Of};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use lockkeeper_core::Moment;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::alarm::Alarm;
use crate::answer::{Refusal, Result, line};
use crate::ask::{Ask, OF_LOCKS};
use crate::held::{Held, Loss, word};
use crate::peer::{Peer, ended};
use crate::state::State;
use crate::view::millis;

/// How often within a ttl the stream looks whether the lock was renewed.
const LOOKS_PER_TTL: u32 = 6;
/// How far ahead a client is told that it holds, at most. The way to its host may be cut right after that, and then its
/// connection ends, and the lock is given back: after [`DEAD_AFTER_MS`](crate::peer::DEAD_AFTER_MS), or when a proxy between
/// has seen enough. What the client was told must be over by then.
const PROMISED_MAX: Duration = Duration::from_secs(15);
/// How often a client is told anew that it holds, where it was not told all that remains.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// A deadline that moved by less was not renewed: two readings of a clock differ.
const MOVED: Duration = Duration::from_millis(5);

/// The reason that is told when the server ends.
const CLOSING: &str = "closing";

/// One line of the stream.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Granted(Grant<'a>),
    Renewed { valid_for_ms: u64 },
    Lost { reason: &'a str },
}

/// What is held. Also what is answered to those who hold by token.
#[derive(Debug, Serialize)]
pub(crate) struct Grant<'a> {
    pub(crate) name: &'a str,
    /// As text: it may exceed 2^53.
    pub(crate) fence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fences: Option<BTreeMap<String, String>>,
    pub(crate) valid_for_ms: u64,
}

impl<'a> Grant<'a> {
    pub(crate) fn of(name: &'a str, held: &Held, valid_for: Duration) -> Self {
        Grant { name, fence: held.fence(name), fences: held.fences(), valid_for_ms: millis(valid_for) }
    }
}

/// The name in a path, decoded.
pub(crate) fn name_in(path: std::result::Result<Path<String>, PathRejection>) -> Result<String> {
    path.map(|it| it.0)
        .map_err(|_| Refusal::invalid("the name in the path is not UTF-8 after percent-decoding"))
}

pub(crate) async fn lock(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
    peer: Option<Extension<Peer>>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result {
    hold(state, peer.map(|it| it.0), name_in(path)?, query.as_deref(), body).await
}

pub(crate) async fn hold(
    state: Arc<State>,
    peer: Option<Peer>,
    name: String,
    query: Option<&str>,
    body: Body,
) -> Result {
    let ask = Ask::read(query, body, OF_LOCKS, &state.limits).await?;
    let room = state.admit()?;
    let held = state.waits(peer.as_ref(), Held::take(&state.locker, &name, &ask)).await?;
    let held = held?.ok_or_else(Refusal::taken)?;
    Ok(stream(Keeping::begin(state, peer, name, ask.ttl, Holding { held, room })))
}

/// The answer that lasts as long as what is held.
pub(crate) fn stream(keeping: Keeping) -> Response {
    let lines = futures_util::stream::unfold(keeping, |mut it| async {
        it.next().await.map(|line| (Ok::<_, std::convert::Infallible>(line), it))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Something held on behalf of a client. It lives in the answer: whoever closes the connection drops it, and then it is
/// given back, without a task that must hear of it first.
pub(crate) struct Keeping {
    state: Arc<State>,
    /// Who is at the other end, if that is known.
    peer: Option<Peer>,
    name: String,
    ttl: Duration,
    holding: Option<Holding>,
    phase: Phase,
}

/// What is held, and the room that it takes here.
pub(crate) struct Holding {
    pub(crate) held: Held,
    pub(crate) room: OwnedSemaphorePermit,
}

enum Phase {
    Fresh,
    /// Until when the client knows that it holds, and what tells of a loss.
    Told(Moment, Loss),
    /// The client was told that the server ends, and has so long to let go.
    Closing(Moment),
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(Holding { held, room }) = self.holding.take() {
            held.release_and(room);
        }
    }
}

impl Keeping {
    pub(crate) fn begin(
        state: Arc<State>,
        peer: Option<Peer>,
        name: String,
        ttl: Option<Duration>,
        holding: Holding,
    ) -> Self {
        let ttl = ttl.unwrap_or(state.locker.ttl());
        Keeping { state, peer, name, ttl, holding: Some(holding), phase: Phase::Fresh }
    }

    /// The next line; `None` when the answer is over, also because its client is gone.
    async fn next(&mut self) -> Option<Bytes> {
        let held = &self.holding.as_ref()?.held;
        let (clock, remaining) = (&self.state.clock, held.remaining().min(PROMISED_MAX));
        match &mut self.phase {
            Phase::Fresh => {
                let said = line(&Line::Granted(Grant::of(&self.name, held, remaining)));
                self.phase = Phase::Told(clock.now().after(remaining), held.lost());
                Some(said.into())
            }
            Phase::Told(told, lost) => {
                let mut closing = pin!(self.state.closing());
                let mut ended = pin!(ended(self.peer.as_ref()));
                let every = (self.ttl / LOOKS_PER_TTL).clamp(Duration::from_millis(10), TOLD_EVERY);
                let lost = loop {
                    let due = clock.now().after(every);
                    tokio::select! {
                        biased;
                        reason = &mut *lost => break word(reason),
                        () = &mut closing => break CLOSING,
                        () = &mut ended => return None,
                        () = Alarm::at(&self.state, due) => {}
                    }
                    let remaining = held.remaining().min(PROMISED_MAX);
                    let until = clock.now().after(remaining);
                    // What is not told as a whole moves with every look.
                    let moved = if remaining < PROMISED_MAX { MOVED } else { TOLD_EVERY / 2 };
                    // Whoever does not read is not told of renewals, and holds on.
                    if told.after(moved) < until && self.peer.as_ref().is_none_or(Peer::has_room) {
                        *told = until;
                        return Some(line(&Line::Renewed { valid_for_ms: millis(remaining) }).into());
                    }
                };
                if lost == CLOSING {
                    // Told first, and given back when the client has let go, as a loss is always told.
                    let patience = self.state.limits.patience.min(held.remaining());
                    self.phase = Phase::Closing(clock.now().after(patience));
                } else {
                    self.holding = None;
                }
                Some(line(&Line::Lost { reason: lost }).into())
            }
            Phase::Closing(until) => {
                tokio::select! {
                    () = clock.sleep_until(*until) => {}
                    () = ended(self.peer.as_ref()) => {}
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::HttpBody as _;
    use std::task::{Context, Poll, Waker};

    use lockkeeper_core::inspect::Inspect as _;
    use lockkeeper_core::{Clock, Key, Locker, Memory};

    use super::*;
    use crate::Serve;

    #[tokio::test]
    async fn who_drops_the_answer_gives_the_lock_back() {
        let (store, key) = (Memory::default(), Key::new("x").unwrap());
        let locker = Locker::new(store.clone());
        let serve = Serve::new(locker, store.clone(), "a-long-secret").unwrap();
        let state = Arc::new(serve.allow_locks().state());
        let held = Held::take(&state.locker, "x", &Ask::default()).await.unwrap().unwrap();
        let room = state.admit().unwrap();
        let holding = Holding { held, room };
        let mut body = stream(Keeping::begin(state.clone(), None, "x".into(), None, holding)).into_body();
        let first = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await;
        let first = first.unwrap().unwrap().into_data().unwrap();
        assert!(first.starts_with(b"{\"event\":\"granted\",\"name\":\"x\",\"fence\":"), "{first:?}");
        assert_eq!(store.show(&key).await.unwrap().unwrap().holders.len(), 1);
        drop(body);
        assert!(state.locker.try_lock("x").await.unwrap().is_some(), "the lock was kept");
        state.emptied().await;
    }

    /// However long the ttl is, what was told is over before a host that vanished is given up, and it is told anew long before
    /// it is over.
    #[tokio::test]
    async fn nobody_is_told_more_than_is_kept_for_a_host_that_vanishes() {
        let store = Memory::default();
        let locker = Locker::builder(store.clone()).ttl(Duration::from_secs(60)).build();
        let mut state = Serve::new(locker, store, "a-long-secret").unwrap().allow_locks().state();
        let clock = Clock::virtual_from(Duration::from_secs(1));
        state.clock = clock.clone();
        let state = Arc::new(state);
        let held = Held::take(&state.locker, "x", &Ask::default()).await.unwrap().unwrap();
        let holding = Holding { held, room: state.admit().unwrap() };
        let mut keeping = Keeping::begin(state.clone(), None, "x".into(), None, holding);
        let mut last = clock.now();
        for turn in 0..4 {
            let said = {
                let mut next = pin!(keeping.next());
                let mut here = Context::from_waker(Waker::noop());
                loop {
                    if let Poll::Ready(said) = next.as_mut().poll(&mut here) {
                        break said.unwrap();
                    }
                    clock.advance_by(Duration::from_secs(1));
                }
            };
            let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
            let promised = Duration::from_millis(said["valid_for_ms"].as_u64().unwrap());
            let given_up = Duration::from_millis(crate::peer::DEAD_AFTER_MS.into());
            // The line may come late: as late as the next one is due.
            assert!(promised + TOLD_EVERY <= given_up, "turn {turn}: promised for {promised:?}");
            assert!(clock.now() - last <= promised / 2, "turn {turn}: told after {:?}", clock.now() - last);
            last = clock.now();
        }
    }
}
