//! The page of hot names: what this server's clients ask for most, and what changes hands most in the store.

use std::sync::Arc;

use axum::extract::State as Of;
use axum::response::Response;

use super::parts::{address_of, esc, foreign, page, span, trouble};
use super::rooms::table;
use crate::hot::Hot;
use crate::state::State;
use crate::view::{Lock, millis};

/// Names of each list.
const SHOWN: usize = 32;

pub(crate) async fn hot(Of(state): Of<Arc<State>>) -> Response {
    let seen = state.watch.look().await;
    let mut live = trouble(&seen);
    let waiting = |name: &str| {
        let found = seen.locks.iter().find(|it| it.name == name);
        found.map_or(0, Lock::waiting).to_string()
    };
    let link = |it: &Hot| format!("<a href=\"{}\">{}</a>", address_of(&it.name), foreign(&it.name));
    if let Some(hot) = &state.hot {
        let rows: Vec<_> = hot
            .hottest()
            .iter()
            .take(SHOWN)
            .map(|it| vec![link(it), about(it), esc(&span(millis(it.waited))), waiting(&it.name)])
            .collect();
        live.push_str(
            "<h2>Asked for here</h2><p class=\"quiet\">By clients of this server, since it began.</p>",
        );
        live.push_str(&or_nothing(&["Name", "Asked for", "Waited in all", "Waiting"], &rows));
    }
    let rows: Vec<_> = state
        .watch
        .busiest()
        .iter()
        .take(SHOWN)
        .map(|it| vec![link(it), about(it), waiting(&it.name)])
        .collect();
    live.push_str(
        "<h2>Changing hands</h2><p class=\"quiet\">In the whole store, as seen once a second while somebody looked. What comes \
         and goes between two looks is not seen.</p>",
    );
    live.push_str(&or_nothing(&["Name", "New holders seen", "Waiting"], &rows));
    page(&state, "Hot names", "/hot", "", &live)
}

/// How often, and how sure that is.
fn about(it: &Hot) -> String {
    if it.surplus == 0 { it.count.to_string() } else { format!("{} to {}", it.count - it.surplus, it.count) }
}

fn or_nothing(titles: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { "<p class=\"empty\">None yet.</p>".into() } else { table(titles, rows) }
}
