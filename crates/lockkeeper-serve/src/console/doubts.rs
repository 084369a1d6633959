//! The page of two-phase commits in doubt. It shows what to type, and does nothing itself.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State as Of;
use axum::response::{IntoResponse as _, Response};

use lockkeeper_core::clock::time_of_day;

use super::parts::{foreign, page, running};
use crate::doubt::{Answer, InDoubt};
use crate::look;
use crate::state::State;
use crate::view::millis;

pub(crate) async fn doubts(Of(state): Of<Arc<State>>) -> Response {
    let Some(known) = &state.doubts else { return look::nothing().await.into_response() };
    let still = "<p class=\"quiet\">As <code>lockkeeper 2pc ls</code> says. Nothing is done from here: what can be done is \
                 shown to be copied.</p>";
    let live = match known.look().await.as_ref() {
        Err(trouble) => format!("<p class=\"banner\" role=\"alert\">{}</p>", foreign(trouble)),
        Ok(told) => {
            let mut out = String::new();
            for it in &told.troubles {
                let _ = write!(out, "<p class=\"banner\">{}</p>", foreign(it));
            }
            if told.transactions.is_empty() {
                out.push_str("<p class=\"empty\">No transaction is in doubt.</p>");
            }
            out + &told.transactions.iter().map(transaction).collect::<String>()
        }
    };
    page(&state, "Two-phase commit", "/two-phase", still, &live)
}

fn transaction(it: &InDoubt) -> String {
    let seat = if it.attended { "held: somebody alive finishes it" } else { "free: nobody works on it" };
    let mut rows = vec![("State", foreign(&it.state)), ("Seat", seat.to_owned())];
    if let Some(begun) = it.begun {
        // By the clock of whoever began it, which may be ahead of ours.
        rows.push(("Begun", running(millis(time_of_day().saturating_sub(begun))) + " ago"));
    }
    if !it.note.is_empty() {
        rows.push(("Note", foreign(&it.note)));
    }
    rows.extend(
        it.branches.iter().map(|(whose, how)| ("Branch", format!("{}: {}", foreign(whose), foreign(how)))),
    );
    let word = if it.attended { "fine" } else { "warning" };
    let mut out = format!("<section class=\"finding {word} doubt\"><h2>{}</h2><dl>", foreign(&it.id));
    for (title, value) in rows {
        let _ = write!(out, "<dt>{title}</dt><dd>{value}</dd>");
    }
    out.push_str("</dl>");
    for command in &it.commands {
        let _ = write!(out, "<p><code>{}</code></p>", foreign(command));
    }
    out + "</section>"
}

/// How many, for the overview.
pub(super) fn how_many(told: &Answer) -> String {
    match told {
        Err(_) => "<b class=\"bad\">cannot be asked</b>".into(),
        Ok(told) if told.transactions.is_empty() && told.troubles.is_empty() => {
            "<b class=\"good\">0</b>".into()
        }
        Ok(told) if told.transactions.is_empty() => "<b class=\"bad\">trouble</b>".into(),
        Ok(told) => format!("<b class=\"bad\">{}</b>", told.transactions.len()),
    }
}
