//! `/v1/leaders/NAME`: who leads, every change of it, and a stream that is the role.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State as Of};
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse as _;
use lockkeeper_core::Leaders;

use crate::answer::{Result, line, ok};
use crate::ask::{Ask, OF_CAMPAIGNS};
use crate::held::Held;
use crate::locks::{Holding, Keeping, name_in, stream};
use crate::peer::Peer;
use crate::state::State;
use crate::view::Leads;

/// A sign of life for whoever watches a role that does not change.
const EVERY: Duration = Duration::from_secs(15);
/// Before a store that failed is looked at again.
const AGAIN: Duration = Duration::from_millis(500);

pub(crate) async fn leader(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result {
    let name = name_in(path)?;
    let accepts = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/event-stream") {
        let leader = state.locker.leader(&name).await?;
        return Ok(ok(&Leads::of(&name, leader.as_ref())));
    }
    let room = state.admit()?;
    let watching = Watching { leaders: state.locker.leaders(&name)?, name, state };
    let events = futures_util::stream::unfold((watching, room), |(mut it, room)| async {
        it.next().await.map(|event| (Ok::<_, std::convert::Infallible>(event), (it, room)))
    });
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// Somebody who watches a role.
struct Watching {
    state: Arc<State>,
    leaders: Leaders,
    name: String,
}

impl Watching {
    /// The next thing to tell; `None` when the server ends.
    async fn next(&mut self) -> Option<Bytes> {
        let clock = &self.state.clock;
        let told = tokio::select! {
            seen = self.leaders.next() => seen,
            () = clock.sleep(EVERY) => return Some(Bytes::from_static(b": still here\n\n")),
            () = self.state.closing() => return None,
        };
        Some(Bytes::from(match told {
            Ok(leader) => format!("event: leader\ndata: {}\n", line(&Leads::of(&self.name, leader.as_ref()))),
            Err(error) => {
                clock.sleep(AGAIN).await;
                format!("event: unknown\ndata: {}\n", line(&error.to_string()))
            }
        }))
    }
}

/// Stand for a role: the stream begins when we lead, and whoever closes it resigns.
pub(crate) async fn campaign(
    Of(state): Of<Arc<State>>,
    path: std::result::Result<Path<String>, PathRejection>,
    peer: Option<Extension<Peer>>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result {
    let name = name_in(path)?;
    let ask = Ask::read(query.as_deref(), body, OF_CAMPAIGNS, &state.limits).await?;
    let room = state.admit()?;
    let mut campaign = state.locker.campaign(&name, ask.value.clone().unwrap_or_default());
    if let Some(ttl) = ask.ttl {
        campaign = campaign.ttl(ttl);
    }
    if let Some(wait) = ask.wait {
        campaign = campaign.wait_at_most(wait);
    }
    if let Some(note) = &ask.note {
        campaign = campaign.note(note);
    }
    let peer = peer.map(|it| it.0);
    let held = Held::Leads(state.waits(peer.as_ref(), campaign.win()).await??);
    Ok(stream(Keeping::begin(state, peer, name, ask.ttl, Holding { held, room })))
}
