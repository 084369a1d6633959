//! Who may come in: the right host, a token, an origin of our own. And what every answer carries.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State as Of};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::answer::Refusal;
use crate::console::{is_session, login_page};
use crate::state::State;

/// After a wrong token, so that guessing is slow.
pub(crate) const AFTER_A_GUESS: Duration = Duration::from_millis(200);

/// What a browser may do with an answer of ours: nothing that we did not put into it.
static HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    // Not `no-referrer`: a browser would then call the origin of our own form `null`.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
];

/// The check before every route.
pub(crate) async fn keep(Of(state): Of<Arc<State>>, request: Request, next: Next) -> Response {
    around(&state, request, |it| next.run(it)).await
}

/// The check before whatever answers.
pub(crate) async fn around<A: Future<Output = Response>>(
    state: &State,
    request: Request,
    next: impl FnOnce(Request) -> A,
) -> Response {
    let mut answer = match check(state, &request) {
        Ok(()) => next(request).await,
        Err(refusal) => {
            if refusal.is_guess {
                state.clock.sleep(AFTER_A_GUESS).await;
            }
            // Whoever looks with a browser is asked for the token.
            let by_browser =
                refusal.lacks_token && !request.uri().path().starts_with("/v1/") && accepts_html(&request);
            if by_browser { login_page(false) } else { refusal.answer.into_response() }
        }
    };
    let headers = answer.headers_mut();
    headers.reserve(HEADERS.len());
    for (name, value) in &HEADERS {
        headers.insert(name, value.clone());
    }
    answer
}

/// A refusal, and whether it is the answer to a wrong token.
struct Turned {
    answer: Refusal,
    is_guess: bool,
    lacks_token: bool,
}

impl From<Refusal> for Turned {
    fn from(answer: Refusal) -> Self {
        Turned { answer, is_guess: false, lacks_token: false }
    }
}

fn check(state: &State, request: &Request) -> Result<(), Turned> {
    let headers = request.headers();
    if !state.on_a_socket && !is_our_host(state, headers) {
        return Err(Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong_host",
            "this server is not called by that name; use the address that it listens on, or name another with --host",
        )
        .into());
    }
    if !is_our_origin(state, headers) && !is_reading(request.method()) {
        let text = "a page of another origin may not write here";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "wrong_origin", text).into());
    }
    if is_open(request.uri().path()) || shows_token(state, headers) {
        return Ok(());
    }
    // A browser says where a page that writes comes from; one that does not is none that we gave a cookie.
    let may_write = headers.contains_key(header::ORIGIN);
    if is_session(state, headers) && (is_reading(request.method()) || may_write) {
        return Ok(());
    }
    let is_guess = headers.contains_key(header::AUTHORIZATION);
    let text = "send the header `Authorization: Bearer TOKEN` with the token of this server";
    Err(Turned {
        answer: Refusal::new(StatusCode::UNAUTHORIZED, "no_token", text),
        is_guess,
        lacks_token: true,
    })
}

fn accepts_html(request: &Request) -> bool {
    let accepts = request.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok());
    is_reading(request.method()) && accepts.is_some_and(|it| it.contains("text/html"))
}

fn is_reading(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// What tells nothing of locks.
fn is_open(path: &str) -> bool {
    matches!(path, "/health" | "/openapi.json" | "/login") || path.starts_with("/assets/")
}

/// Whether the request is for a name of ours. Another name is that of a page that found its way here by its own DNS.
fn is_our_host(state: &State, headers: &HeaderMap) -> bool {
    let named = headers.get(header::HOST).and_then(|it| it.to_str().ok()).map(str::to_lowercase);
    named.is_some_and(|it| state.hosts.contains(&it))
}

/// How a name with a port is written: also without, where the port is the usual one of HTTP.
pub(crate) fn spellings(host: &str) -> impl Iterator<Item = String> + use<> {
    let host = host.to_lowercase();
    let short = host.strip_suffix(":80").map(str::to_owned);
    short.into_iter().chain([host])
}

/// No origin is that of a program, which no stranger's page makes.
fn is_our_origin(state: &State, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|it| it.split_once("://")).map(|it| it.1.to_lowercase());
    host.is_some_and(|it| state.hosts.contains(&it))
}

fn shows_token(state: &State, headers: &HeaderMap) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let token = shown.and_then(|it| {
        let (scheme, token) = it.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    token.is_some_and(|it| state.token.is(it))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use lockkeeper_core::{Locker, Memory};

    use super::*;
    use crate::Serve;

    /// What the server says to a page of this origin that wants to write, with the right token.
    fn said_to(origin: &str) -> Option<StatusCode> {
        said_at("locks.internal:7765", "locks.internal:7765", origin)
    }

    /// The same where the server has this name, and is called by that.
    fn said_at(name: &str, host: &str, origin: &str) -> Option<StatusCode> {
        let store = Memory::default();
        let serve = Serve::new(Locker::new(store.clone()), store, "a-long-secret").unwrap();
        let state = serve.hosts([name]).state();
        let request = Request::post("/v1/locks/x")
            .header(header::HOST, host)
            .header(header::AUTHORIZATION, "Bearer a-long-secret")
            .header(header::ORIGIN, origin);
        let turned = check(&state, &request.body(Body::empty()).unwrap()).err();
        turned.map(|it| it.answer.into_response().status())
    }

    #[test]
    fn a_page_of_a_stranger_may_not_write() {
        assert_eq!(said_to("http://locks.internal:7765"), None);
        for stranger in ["http://evil.example", "http://locks.internal:80", "null", "locks.internal:7765"] {
            assert_eq!(said_to(stranger), Some(StatusCode::FORBIDDEN), "{stranger}");
        }
    }

    /// Clients leave the usual port out.
    #[test]
    fn a_server_on_the_usual_port_is_called_without_it() {
        for (host, origin) in [
            ("locks.internal", "http://locks.internal"),
            ("Locks.Internal:80", "http://locks.internal"),
            ("locks.internal", "http://locks.internal:80"),
        ] {
            assert_eq!(said_at("locks.internal:80", host, origin), None, "{host} {origin}");
        }
        let elsewhere = said_at("locks.internal:7765", "locks.internal", "http://locks.internal");
        assert_eq!(elsewhere, Some(StatusCode::MISDIRECTED_REQUEST));
        let listened: Vec<String> = spellings("[::1]:80").collect();
        assert_eq!(listened, ["[::1]", "[::1]:80"]);
    }
}
