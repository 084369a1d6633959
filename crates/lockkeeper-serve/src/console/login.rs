//! The way in for browsers: the token once, then a cookie that no script can read.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State as Of;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::parts::html;
use crate::ask::{pairs, whole};
use crate::gate::AFTER_A_GUESS;
use crate::state::State;

/// The page for whoever has not shown the token. The script takes it from the address, where it stands behind a `#` and
/// reaches no log.
pub(crate) fn login_page(wrong: bool) -> Response {
    let told = if wrong { "<p class=\"banner\" role=\"alert\">That is not the token.</p>" } else { "" };
    html(
        StatusCode::UNAUTHORIZED,
        "Token",
        &format!(
            "<main id=\"main\" class=\"login\"><h1>Lockkeeper</h1>{told}<form id=\"login\" method=\"post\" \
             action=\"/login\"><label for=\"token\">Token</label><input id=\"token\" name=\"token\" type=\"password\" \
             autocomplete=\"current-password\" required autofocus><button>Open</button></form><p class=\"quiet\">It was \
             told on standard error when <code>lockkeeper serve</code> began, or is in the file that \
             <code>--token-file</code> names.</p></main>"
        ),
    )
}

/// `POST /login`.
pub(crate) async fn enter(Of(state): Of<Arc<State>>, body: Body) -> Response {
    let bytes = match whole(body, &state.limits).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal.into_response(),
    };
    let fields = pairs(&String::from_utf8_lossy(&bytes)).unwrap_or_default();
    if !fields.iter().any(|(name, value)| name == "token" && state.token.is(value.trim())) {
        state.clock.sleep(AFTER_A_GUESS).await;
        return login_page(true);
    }
    let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", state.cookie, state.session.shown());
    (StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_owned()), (header::SET_COOKIE, cookie)])
        .into_response()
}

/// Whether a browser shows the cookie.
pub(crate) fn is_session(state: &State, headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut shown = all.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    shown.any(|(name, value)| name == state.cookie && state.session.is(value))
}
