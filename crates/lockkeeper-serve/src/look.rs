//! What only reads: locks, health, metrics, and the description of this API.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State as Of};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use lockkeeper_core::Key;
use serde::Serialize;

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

/// `GET /health`: this process answers; with `?store=true`, so does the store.
pub(crate) async fn health(Of(state): Of<Arc<State>>, RawQuery(query): RawQuery) -> Result {
    if query.as_deref() == Some("store=true") {
        state.inspect.show(&Key::new("lockkeeper/health")?).await?;
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
