//! The front door of a server that runs: the gate, and a short way for what clients ask all day. Everything else is routed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::peer::Peer;
use crate::state::State;
use crate::{gate, locks, tokens};

/// What each connection asks.
#[derive(Clone)]
pub(crate) struct Front {
    state: Arc<State>,
    routes: TowerToHyperService<Router>,
    peer: Option<Peer>,
}

impl Front {
    /// Before these routes, which have no gate of their own.
    pub(crate) fn new(state: Arc<State>, routes: Router) -> Self {
        Front { state, routes: TowerToHyperService::new(routes), peer: None }
    }

    /// The same for one connection, and who is at its other end.
    pub(crate) fn of(&self, peer: Peer) -> Self {
        Front { peer: Some(peer), ..self.clone() }
    }

    async fn answer(self, mut request: Request) -> Response {
        if let Some(short) = Short::of(&self.state, &request) {
            return short.answer(self.state, self.peer, request).await;
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        match self.routes.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}

impl Service<hyper::Request<Incoming>> for Front {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let front = self.clone();
        Box::pin(async move {
            // Most have no body, and that needs no box.
            let request = request.map(|it| if it.is_end_stream() { Body::empty() } else { Body::new(it) });
            let state = front.state.clone();
            Ok(gate::around(&state, request, |it| front.answer(it)).await)
        })
    }
}

/// A request whose place can be read off. A router would find the same one, and do more on the way.
enum Short {
    Take,
    GiveBack(String),
    Hold(String),
}

impl Short {
    /// `None` for whatever needs a closer look: other requests, escaped names, and what is not allowed.
    fn of(state: &State, request: &Request) -> Option<Self> {
        if !state.allow_locks {
            return None;
        }
        let path = request.uri().path().strip_prefix("/v1/")?;
        let plain = |it: &str| !it.is_empty() && !it.contains('%');
        match *request.method() {
            Method::POST if path == "tokens" => Some(Short::Take),
            Method::POST => {
                path.strip_prefix("locks/").filter(|it| plain(it)).map(|it| Short::Hold(it.into()))
            }
            Method::DELETE => {
                let token = path.strip_prefix("tokens/").filter(|it| plain(it) && !it.contains('/'))?;
                Some(Short::GiveBack(token.into()))
            }
            _ => None,
        }
    }

    async fn answer(self, state: Arc<State>, peer: Option<Peer>, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let query = head.uri.query();
        let answer = match self {
            Short::Take => tokens::take_by(state, peer, query, body).await,
            Short::GiveBack(token) => tokens::give_back(&state, &token).await,
            Short::Hold(name) => locks::hold(state, peer, name, query, body).await,
        };
        answer.into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use lockkeeper_core::{Locker, Memory};

    use super::*;
    use crate::Serve;
    use crate::options::routes;

    fn front(allowed: bool) -> Front {
        let store = Memory::default();
        let serve = Serve::new(Locker::new(store.clone()), store, "a-long-secret").unwrap();
        let state = Arc::new(if allowed { serve.allow_locks() } else { serve }.state());
        Front::new(state.clone(), routes(&state))
    }

    fn request(method: &Method, path: &str) -> Request {
        Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
    }

    async fn told(answer: Response) -> (StatusCode, String) {
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_short_way_leads_where_the_router_does() {
        let front = front(true);
        let held = front.state.locker.lock("held").await.unwrap();
        for (method, path, status) in [
            (Method::POST, "/v1/tokens", StatusCode::BAD_REQUEST),
            (Method::POST, "/v1/tokens?name=held&wait=0", StatusCode::CONFLICT),
            (Method::POST, "/v1/tokens?nmae=x", StatusCode::BAD_REQUEST),
            (Method::DELETE, "/v1/tokens/0123", StatusCode::GONE),
            (Method::POST, "/v1/locks/held?wait=0", StatusCode::CONFLICT),
            (Method::POST, "/v1/locks/a/b?tll=3s", StatusCode::BAD_REQUEST),
            (Method::POST, "/v1/locks//a?tll=3s", StatusCode::BAD_REQUEST),
        ] {
            let short = Short::of(&front.state, &request(&method, path)).expect(path);
            let short = told(short.answer(front.state.clone(), None, request(&method, path)).await).await;
            let routed = told(front.routes.call(request(&method, path)).await.unwrap()).await;
            assert_eq!((short.0, &short), (status, &routed), "{method} {path}");
        }
        held.release().await.unwrap();
    }

    #[tokio::test]
    async fn whatever_needs_a_closer_look_is_routed() {
        for (method, path) in [
            (Method::GET, "/v1/tokens/0123"),
            (Method::POST, "/v1/tokens/0123"),
            (Method::DELETE, "/v1/tokens/01%32"),
            (Method::DELETE, "/v1/tokens/0/1"),
            (Method::DELETE, "/v1/tokens/"),
            (Method::POST, "/v1/locks/"),
            (Method::POST, "/v1/locks/a%2Fb"),
            (Method::GET, "/v1/locks/a"),
            (Method::POST, "/v1/leaders/a"),
            (Method::POST, "/v2/tokens"),
        ] {
            assert!(Short::of(&front(true).state, &request(&method, path)).is_none(), "{method} {path}");
        }
        for (method, path) in
            [(Method::POST, "/v1/tokens"), (Method::DELETE, "/v1/tokens/0"), (Method::POST, "/v1/locks/a")]
        {
            assert!(Short::of(&front(true).state, &request(&method, path)).is_some(), "{method} {path}");
            assert!(Short::of(&front(false).state, &request(&method, path)).is_none(), "{method} {path}");
        }
    }
}
