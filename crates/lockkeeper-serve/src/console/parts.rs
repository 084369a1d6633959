//! Parts of pages: the frame, text made harmless, spans in words.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::state::State;
use crate::watch::Seen;

/// What may stand in a part of a path as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Text as text, wherever it stands in a page.
pub(super) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            it => out.push(it),
        }
    }
    out
}

/// Text of a stranger: whatever direction it has stays inside.
pub(super) fn foreign(text: &str) -> String {
    format!("<bdi>{}</bdi>", esc(text))
}

/// The address of a lock's page.
pub(super) fn address_of(name: &str) -> String {
    format!("/locks/{}", utf8_percent_encode(name, SEGMENT))
}

/// A span as people read it.
pub(super) fn span(ms: u64) -> String {
    let rounded = if ms < 1000 { ms } else { ms / 1000 * 1000 };
    humantime::format_duration(Duration::from_millis(rounded)).to_string()
}

/// A span that the script counts up.
pub(super) fn running(ms: u64) -> String {
    format!("<span data-for=\"{ms}\">{}</span>", span(ms))
}

/// The banner of a store that cannot be seen.
pub(super) fn trouble(seen: &Seen) -> String {
    let Some(trouble) = &seen.trouble else { return String::new() };
    format!(
        "<p class=\"banner\" role=\"alert\"><strong>The store cannot be seen.</strong> What is below is from before. {}</p>",
        foreign(trouble)
    )
}

/// A page. What is live is replaced by the script when something changed; the rest stays.
pub(super) fn page(state: &State, title: &str, here: &str, still: &str, live: &str) -> Response {
    let mut nav = String::new();
    let pages = [
        ("/", "Overview"),
        ("/locks", "Locks"),
        ("/rooms", "Roles and shared locks"),
        ("/hot", "Hot names"),
        ("/two-phase", "Two-phase"),
        ("/doctor", "Doctor"),
    ];
    for (address, name) in pages.into_iter().filter(|it| it.0 != "/two-phase" || state.doubts.is_some()) {
        let current = if address == here { " aria-current=\"page\"" } else { "" };
        let _ = write!(nav, "<a href=\"{address}\"{current}>{name}</a>");
    }
    let body = format!(
        "<header><a class=\"skip\" href=\"#main\">Skip to content</a><strong>Lockkeeper</strong><nav \
         aria-label=\"Pages\">{nav}</nav><span class=\"store\" title=\"the store\">{}</span><span id=\"link\" \
         role=\"status\"></span></header><main id=\"main\"><h1>{title}</h1>{still}<div id=\"live\">{live}</div></main>",
        foreign(&state.store)
    );
    html(StatusCode::OK, title, &body)
}

/// A whole document.
pub(super) fn html(status: StatusCode, title: &str, body: &str) -> Response {
    let text = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><title>{title} · \
         Lockkeeper</title><link rel=\"stylesheet\" href=\"/assets/style.css\"><script \
         src=\"/assets/console.js\" defer></script></head><body>{body}</body></html>"
    );
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(esc("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(address_of("a/b <é>"), "/locks/a%2Fb%20%3C%C3%A9%3E");
        assert_eq!(span(61_999), "1m 1s");
        assert_eq!(span(250), "250ms");
    }
}
