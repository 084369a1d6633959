//! Locks for clients that cannot keep a stream open: taken, renewed and given back by a token.
//!
//! What is held is kept in one table, and one task sees to it that what is not renewed is given back. So a token costs no
//! task of its own, and whoever gives a lock back does so without waking anybody but the next client.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State as Of};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use lockkeeper_core::Moment;
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::answer::{Refusal, Result, json, ok};
use crate::ask::{Ask, OF_TOKENS};
use crate::held::Held;
use crate::locks::Grant;
use crate::peer::Peer;
use crate::secret::Fresh;
use crate::state::State;

/// A client that counts from when the answer came, and not from when it asked, is late by the way of the answer. So much of
/// the ttl is left to it.
const GRACE: u32 = 10;

/// Who holds by token.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    kept: Mutex<Kept>,
    /// Something ends before everything that was there.
    sooner: Notify,
    fresh: Mutex<Fresh>,
}

#[derive(Debug, Default)]
struct Kept {
    all: HashMap<Arc<str>, Entry>,
    /// When each of them ends, the first first.
    ends: BTreeSet<(Moment, Arc<str>)>,
    /// Whether the task runs that ends what is not renewed.
    minded: bool,
}

/// What is held on behalf of a client that shows a token.
#[derive(Debug)]
struct Entry {
    held: Held,
    name: String,
    ttl: Duration,
    /// Until when the client may use it, unless it renews.
    until: Moment,
    room: OwnedSemaphorePermit,
}

impl Entry {
    /// When it is given back unless the client renews.
    fn end(&self) -> Moment {
        self.until.after(self.ttl / GRACE)
    }

    fn answer<'a>(&'a self, token: &'a str, now: Moment) -> Answer<'a> {
        let valid_for = (self.until - now).min(self.held.remaining());
        Answer { token, grant: Grant::of(&self.name, &self.held, valid_for) }
    }
}

/// What is held, as its client is told.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    token: &'a str,
    #[serde(flatten)]
    grant: Grant<'a>,
}

impl Kept {
    fn add(&mut self, token: Arc<str>, entry: Entry) {
        self.ends.insert((entry.end(), token.clone()));
        self.all.insert(token, entry);
    }

    fn remove(&mut self, token: &str) -> Option<(Arc<str>, Entry)> {
        let (token, entry) = self.all.remove_entry(token)?;
        let end = (entry.end(), token);
        self.ends.remove(&end);
        Some((end.1, entry))
    }

    /// What the token stands for, unless that was lost: then nothing is left of it.
    fn held(&mut self, token: &str) -> Option<&mut Entry> {
        if self.all.get(token)?.held.remaining().is_zero() {
            self.remove(token);
        }
        self.all.get_mut(token)
    }

    /// What has ended by now.
    fn ended(&mut self, now: Moment) -> Vec<Entry> {
        let mut over = Vec::new();
        while let Some((_, token)) = self.ends.first().filter(|it| it.0 <= now) {
            let token = token.clone();
            over.extend(self.remove(&token).map(|it| it.1));
        }
        over
    }
}

impl Tokens {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that nobody can guess.
    fn draw(&self) -> lockkeeper_core::Result<String> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).draw()
    }

    /// Keep something, and have it minded.
    fn keep(state: &Arc<State>, token: Arc<str>, entry: Entry) {
        let (tokens, end) = (&state.tokens, entry.end());
        let mut kept = tokens.kept();
        let is_first = kept.ends.first().is_none_or(|it| end < it.0);
        kept.add(token, entry);
        if !std::mem::replace(&mut kept.minded, true) {
            tokio::spawn(mind(state.clone()));
        } else if is_first {
            tokens.sooner.notify_one();
        }
    }
}

/// Give back what nobody renews, until nothing is left. At the end of the server that is everything.
async fn mind(state: Arc<State>) {
    let (clock, mut closing) = (&state.clock, std::pin::pin!(state.closing()));
    let mut is_closing = false;
    loop {
        let (over, next) = {
            let mut kept = state.tokens.kept();
            let over = kept.ended(if is_closing { Moment::NEVER } else { clock.now() });
            let next = kept.ends.first().map(|it| it.0);
            kept.minded = next.is_some() || !over.is_empty();
            (over, next)
        };
        let Some(next) = next.or_else(|| over.first().map(|_| clock.now())) else { return };
        // Each by itself: a store that is slow for one lock does not keep the others.
        for Entry { held, room, .. } in over {
            held.release_and(room);
        }
        tokio::select! {
            () = clock.sleep_until(next) => {}
            () = state.tokens.sooner.notified() => {}
            () = &mut closing, if !is_closing => is_closing = true,
        }
    }
}

pub(crate) async fn take(
    Of(state): Of<Arc<State>>,
    peer: Option<Extension<Peer>>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result {
    take_by(state, peer.map(|it| it.0), query.as_deref(), body).await
}

pub(crate) async fn take_by(
    state: Arc<State>,
    peer: Option<Peer>,
    query: Option<&str>,
    body: Body,
) -> Result {
    let mut ask = Ask::read(query, body, OF_TOKENS, &state.limits).await?;
    let name = ask.name.take().ok_or_else(|| Refusal::invalid("say `name=NAME`: which lock to take"))?;
    let room = state.admit()?;
    let held = state.waits(peer.as_ref(), Held::take(&state.locker, &name, &ask)).await?;
    let held = held?.ok_or_else(Refusal::taken)?;
    let ttl = ask.ttl.unwrap_or(state.locker.ttl());
    let (token, now) = (Arc::<str>::from(state.tokens.draw()?), state.clock.now());
    let entry = Entry { held, name, ttl, until: now.after(ttl), room };
    let answer = json(StatusCode::CREATED, &entry.answer(&token, now));
    Tokens::keep(&state, token, entry);
    Ok(answer)
}

pub(crate) async fn look(Of(state): Of<Arc<State>>, Path(token): Path<String>) -> Result {
    let mut kept = state.tokens.kept();
    let entry = kept.held(&token).ok_or_else(gone)?;
    Ok(ok(&entry.answer(&token, state.clock.now())))
}

pub(crate) async fn renew(Of(state): Of<Arc<State>>, Path(token): Path<String>) -> Result {
    let mut kept = state.tokens.kept();
    kept.held(&token).ok_or_else(gone)?;
    let (token, mut entry) = kept.remove(&token).ok_or_else(gone)?;
    let now = state.clock.now();
    entry.until = now.after(entry.ttl);
    let answer = ok(&entry.answer(&token, now));
    kept.add(token, entry);
    Ok(answer)
}

pub(crate) async fn release(Of(state): Of<Arc<State>>, Path(token): Path<String>) -> Result {
    give_back(&state, &token).await
}

pub(crate) async fn give_back(state: &State, token: &str) -> Result {
    let removed = {
        let mut kept = state.tokens.kept();
        kept.held(token).ok_or_else(gone)?;
        kept.remove(token)
    };
    let (_, Entry { held, room, .. }) = removed.ok_or_else(gone)?;
    held.release().await?;
    drop(room);
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn gone() -> Refusal {
    let text = "nothing is held by this token: it was given back, or lost because it was not renewed in time";
    Refusal::new(StatusCode::GONE, "gone", text)
}
