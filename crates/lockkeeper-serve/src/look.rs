//! What only reads: locks, health, metrics, and the description of this API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State as Of};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use lockkeeper_core::backend::Fault;
use lockkeeper_core::{Key, Moment};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::answer::{Refusal, Result, ok};
use crate::ask::pairs;
use crate::locks::name_in;
use crate::state::State;
use crate::view::Lock;

const OPENAPI: &str = include_str!("openapi.json");

#[derive(Serialize)]
struct List {
    locks: Vec<Lock>,
}

#[derive(Serialize)]
struct Health<'a> {
    status: &'a str,
    store: &'a str,
}

/// `GET /v1/locks[?prefix=]`: as `lockkeeper ls --json`.
pub(crate) async fn locks(Of(state): Of<Arc<State>>, RawQuery(query): RawQuery) -> Result {
    let mut prefix = String::new();
    for (name, value) in pairs(query.as_deref().unwrap_or_default())? {
        if name != "prefix" {
            return Err(Refusal::invalid("the only option here is `prefix`"));
        }
        prefix = value;
    }
    let locks = state.inspect.list(&prefix).await?.iter().map(Lock::of).collect();
    Ok(ok(&List { locks }))
}

/// `GET /v1/locks/NAME`: as `lockkeeper show --json NAME`.
pub(crate) async fn lock(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
) -> Result {
    let key = Key::new(&name_in(path)?)?;
    let found = state.inspect.show(&key).await?;
    Ok(ok(&found.as_ref().map_or_else(|| Lock::free(key.as_str()), Lock::of)))
}

/// How often the store is asked whether it answers, at most: nobody needs a token to want to know.
const STORE_EVERY: Duration = Duration::from_secs(1);

/// Whether the store answered, and when. Held while it is asked: whoever comes meanwhile gets the same answer.
pub(crate) type StoreHealth = Mutex<Option<(Moment, std::result::Result<(), Fault>)>>;

/// What the store said not longer ago than a moment.
async fn store_health(state: &State) -> std::result::Result<(), Fault> {
    let mut last = state.store_health.lock().await;
    let now = state.clock.now();
    if let Some((_, said)) = last.as_ref().filter(|it| now - it.0 < STORE_EVERY) {
        return said.clone();
    }
    let said = match Key::new("lockkeeper/health") {
        Ok(key) => state.inspect.show(&key).await.map(drop),
        Err(_) => Ok(()),
    };
    *last = Some((state.clock.now(), said.clone()));
    said
}

/// `GET /health`: this process answers; with `?store=true`, so does the store.
pub(crate) async fn health(Of(state): Of<Arc<State>>, RawQuery(query): RawQuery) -> Result {
    if query.as_deref() == Some("store=true") {
        store_health(&state).await?;
    }
    Ok(ok(&Health { status: "ok", store: state.locker.profile().name }))
}

pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// `GET /metrics`, where somebody has metrics. What two-phase commit left in doubt may be among them, so whoever knows is asked.
pub(crate) async fn metrics(Of(state): Of<Arc<State>>) -> Response {
    if let Some(doubts) = &state.doubts {
        doubts.look().await;
    }
    let text = state.metrics.as_ref().map(|it| (it.0)()).unwrap_or_default();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

pub(crate) async fn nothing() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "there is nothing here; GET /openapi.json tells what there is. Routes that write are there only if the server \
         allows them",
    )
}

/// A route that writes where writing is not allowed is not there, whatever can be read at the same address.
pub(crate) async fn not_so() -> Refusal {
    nothing().await
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Clock, Locker, Memory};

    use super::*;
    use crate::Serve;
    use crate::flickering::Flickering;

    #[tokio::test]
    async fn the_store_is_asked_for_its_health_once_in_a_while() {
        let store = Memory::default();
        let view = Flickering::of(&store);
        let mut state = Serve::new(Locker::new(store), view.clone(), "a-long-secret").unwrap().state();
        let clock = Clock::virtual_from(Duration::from_secs(1));
        state.clock = clock.clone();
        for hidden in [true, false, true] {
            view.hide(hidden);
            clock.advance_by(STORE_EVERY);
            assert_eq!(store_health(&state).await.is_err(), hidden, "asked");
            view.hide(!hidden);
            assert_eq!(store_health(&state).await.is_err(), hidden, "not asked again");
        }
    }
}
