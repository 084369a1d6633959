//! `GET /events`: tells a page that what it shows has changed. The page then asks for itself again.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State as Of};
use axum::http::header;
use axum::response::IntoResponse as _;

use super::figures::is_news;
use super::pages::Choice;
use crate::answer::Result;
use crate::state::State;
use crate::watch::Seen;

/// Looks without a change before a sign of life.
const QUIET_LOOKS: u32 = 15;

struct Listening {
    state: Arc<State>,
    choice: Choice,
    /// What the page was told last.
    told: Option<Arc<Seen>>,
    number: u64,
}

pub(crate) async fn events(Of(state): Of<Arc<State>>, RawQuery(query): RawQuery) -> Result {
    let room = state.admit_browser()?;
    let choice = Choice::read(query.as_deref().unwrap_or_default())?;
    let listening = Listening { state, choice, told: None, number: 0 };
    let events = futures_util::stream::unfold((listening, room), |(mut it, room)| async {
        it.next().await.map(|event| (Ok::<_, std::convert::Infallible>(event), (it, room)))
    });
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

impl Listening {
    /// The next thing to tell; `None` when the server ends.
    async fn next(&mut self) -> Option<Bytes> {
        for _ in 0..QUIET_LOOKS {
            if self.told.is_some() {
                tokio::select! {
                    () = self.state.clock.sleep(self.state.watch.every) => {}
                    () = self.state.closing() => return None,
                }
            }
            let seen = self.state.watch.look().await;
            if self.is_news(&seen) {
                self.told = Some(seen);
                self.number += 1;
                return Some(format!("id: {}\nevent: changed\ndata: {{}}\n\n", self.number).into());
            }
        }
        Some(Bytes::from_static(b": still here\n\n"))
    }

    fn is_news(&self, seen: &Seen) -> bool {
        self.told.as_ref().is_none_or(|told| is_news(&self.choice, told, seen))
    }
}
