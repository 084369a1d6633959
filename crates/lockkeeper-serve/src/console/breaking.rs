//! `POST /v1/break/NAME`: take a lock from the holder that was shown, and from nobody else.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State as Of};
use axum::http::{HeaderMap, StatusCode, header};
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::inspect::Broken;
use lockkeeper_core::{Fence, Key};
use serde::{Deserialize, Serialize};

use crate::answer::{Refusal, Result, ok};
use crate::ask::whole;
use crate::locks::name_in;
use crate::peer::Peer;
use crate::state::State;
use crate::view::Holder;
use crate::watch::who;

/// What must be said to break a lock.
#[derive(Deserialize)]
struct Meant {
    /// The name once more, typed by whoever breaks it.
    name: String,
    /// The fence of the holder that was shown.
    fence: String,
}

#[derive(Serialize)]
struct Done {
    name: String,
    broken: Holder,
}

pub(crate) async fn break_holder(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Result {
    let key = Key::new(&name_in(path)?)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_none_or(|it| it.trim() != "application/json") {
        let text = "send JSON: {\"name\":NAME,\"fence\":FENCE}, with the content type application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no_json", text));
    }
    let meant: Meant = serde_json::from_slice(&whole(body, &state.limits).await?).map_err(|it| {
        Refusal::invalid(format!("the body must be {{\"name\":NAME,\"fence\":FENCE}}: {it}"))
    })?;
    if meant.name != key.as_str() {
        return Err(Refusal::invalid(
            "the name in the body is not the name of this lock; nothing was broken",
        ));
    }
    let fence = meant.fence.parse().map_err(|_| Refusal::invalid("the fence is a whole number, as text"))?;
    match state.inspect.break_holder(&key, Fence::from_u64(fence)).await? {
        Broken::Lost(occupant) => {
            let broken = Holder::of(&occupant);
            // Where the router is mounted elsewhere, nobody here knows where a request comes from.
            let peer = peer.map_or_else(|| "somebody".into(), |it| it.0.shown());
            let now = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + time_of_day());
            let holder = who(&broken.who);
            state.tell(&format!(
                "broke `{key}`, fence {fence}, held by {holder}, asked for by {peer} at {now}"
            ));
            Ok(ok(&Done { name: key.to_string(), broken }))
        }
        Broken::Changed => Err(Refusal::new(
            StatusCode::CONFLICT,
            "changed",
            "that holder is gone, and whoever came after it keeps the lock; nothing was broken",
        )),
        _ => Err(Refusal::new(
            StatusCode::NOT_IMPLEMENTED,
            "unsupported",
            "this store cannot break one holder and spare the next; use `lockkeeper break` and be sure who holds",
        )),
    }
}
