//! Who may come in, what is there, and what every answer carries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use common::{Server, TOKEN, sqlite, until};
use lockkeeper_core::Clock;
use lockkeeper_serve::{Limits, Listen, Serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn status(server: &Server, method: &str, path: &str, host: &str, more: &str) -> (u16, Value) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n{more}\r\n"
    );
    server.raw(&request).await
}

#[tokio::test]
async fn nothing_but_health_is_told_without_the_token() {
    let server = Server::at("memory:").await;
    let host = format!("127.0.0.1:{}", server.port);
    for path in ["/v1/locks", "/v1/locks/x", "/v1/leaders/x", "/v1/nothing", "/metrics", "/"] {
        for shown in [
            String::new(),
            "Authorization: Bearer wrong-token-here\r\n".into(),
            format!("Authorization: Basic {TOKEN}\r\n"),
            format!("Authorization: {TOKEN}\r\n"),
        ] {
            let (status, refused) = status(&server, "GET", path, &host, &shown).await;
            assert_eq!((status, &refused["error"]), (401, &"no_token".into()), "{path} {shown}");
        }
    }
    assert_eq!(status(&server, "POST", "/v1/locks/x", &host, "").await.0, 401);
    assert_eq!(status(&server, "GET", "/health", &host, "").await.0, 200);
    assert_eq!(status(&server, "GET", "/openapi.json", &host, "").await.0, 200);
    server.ends().await;
}

/// So that guessing is slow. Whoever shows none is told at once that one is needed.
#[tokio::test]
async fn a_wrong_token_is_answered_late() {
    let server = Server::at("memory:").await;
    let (host, clock) = (format!("127.0.0.1:{}", server.port), Clock::boot());
    let length = |it: &str| format!("Content-Length: {}\r\n\r\n{it}", it.len());
    let wrong = "Authorization: Bearer wrong-token-here\r\nContent-Length: 0\r\n\r\n".to_owned();
    for (method, path, rest) in [("GET", "/v1/locks", wrong), ("POST", "/login", length("token=wrong"))] {
        let begun = clock.now();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{rest}");
        assert_eq!(server.raw(&request).await.0, 401, "{path}");
        let took = clock.now() - begun;
        assert!(Duration::from_millis(200) <= took, "{path} was answered after {took:?}");
    }
    server.ends().await;
}

#[tokio::test]
async fn a_foreign_host_or_origin_is_refused() {
    let server = Server::with("memory:", |it| it, |it| it.allow_locks().hosts(["locks.internal:7765"])).await;
    let port = server.port;
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    for host in ["evil.example", "127.0.0.1", "127.0.0.1:1", &format!("evil.example:{port}"), ""] {
        let (status, refused) = status(&server, "GET", "/v1/locks", host, &token).await;
        assert_eq!((status, &refused["error"]), (421, &"wrong_host".into()), "{host}");
    }
    for host in [format!("127.0.0.1:{port}"), format!("LOCALHOST:{port}"), "locks.internal:7765".into()] {
        assert_eq!(status(&server, "GET", "/v1/locks", &host, &token).await.0, 200, "{host}");
    }
    let host = format!("127.0.0.1:{port}");
    for origin in ["http://evil.example", "null", "https://127.0.0.1", &format!("http://evil.example:{port}")]
    {
        let more = format!("{token}Origin: {origin}\r\n");
        let (status, refused) = status(&server, "POST", "/v1/locks/x", &host, &more).await;
        assert_eq!((status, &refused["error"]), (403, &"wrong_origin".into()), "{origin}");
    }
    server.ends().await;
}

#[tokio::test]
async fn what_writes_is_not_there_unless_allowed() {
    let server = Server::with("memory:", |it| it, |it| it).await;
    for (method, path) in [
        ("POST", "/v1/locks/x"),
        ("POST", "/v1/tokens?name=x"),
        ("POST", "/v1/tokens/0"),
        ("DELETE", "/v1/tokens/0"),
        ("POST", "/v1/leaders/x"),
        ("PUT", "/v1/locks/x"),
    ] {
        let (status, refused) = server.ask(method, path).await;
        assert_eq!((status, &refused["error"]), (404, &"not_found".into()), "{method} {path}");
    }
    assert_eq!(server.ask("GET", "/v1/locks/x").await.0, 200);
    server.ends().await;
}

#[tokio::test]
async fn every_answer_tells_browsers_to_keep_out() {
    let server = Server::at("memory:").await;
    for path in ["/health", "/v1/locks", "/v1/nothing"] {
        let head = server.begin("GET", path).await.head.to_lowercase();
        for wanted in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "referrer-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
        ] {
            assert_eq!(head.lines().filter(|it| *it == wanted).count(), 1, "{path} lacks {wanted}: {head}");
        }
    }
    server.ends().await;
}

#[tokio::test]
async fn metrics_are_there_where_somebody_has_them() {
    let without = Server::at("memory:").await;
    assert_eq!(without.ask("GET", "/metrics").await.0, 404);
    without.ends().await;
    let with = Server::with("memory:", |it| it, |it| it.metrics(|| "# EOF\n".into())).await;
    let answer = with.begin("GET", "/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.to_lowercase().contains("application/openmetrics-text"), "{}", answer.head);
    with.ends().await;
}

/// What the description says is there is there, and what it says about errors is true.
#[tokio::test]
async fn the_description_is_of_this_server() {
    let server = Server::with("memory:", |it| it, |it| it.allow_locks().allow_break()).await;
    let (status, described) = server.ask("GET", "/openapi.json").await;
    assert_eq!(status, 200);
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() >= 6, "{paths:?}");
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys().filter(|it| *it != "parameters") {
            let real = path.replace("{name}", "x%0A").replace("{token}", "0");
            let (status, answer) = server.ask(&method.to_uppercase(), &real).await;
            let word = &answer["error"];
            let absent = status == 404 || status == 405;
            assert!(!absent || path == "/metrics", "{method} {path}: {status} {answer}");
            let codes = methods[method]["responses"].as_object().unwrap();
            assert!(codes.contains_key(&status.to_string()) || absent, "{method} {path}: {status} {word}");
        }
    }
    server.ends().await;
}

/// Whatever is there is described.
#[test]
fn every_route_is_described() {
    let described: Value = serde_json::from_str(include_str!("../src/openapi.json")).unwrap();
    let routes = include_str!("../src/options.rs").split('"').filter(|it| it.starts_with("/v1/"));
    let routes: std::collections::BTreeSet<_> = routes.map(|it| it.replace("{*name}", "{name}")).collect();
    assert!(6 <= routes.len(), "{routes:?}");
    for route in &routes {
        assert!(described["paths"][route].is_object(), "{route} is not described");
    }
}

/// One request for each status that a route can answer with, in a server where it does: the description has them all.
#[tokio::test]
async fn every_status_is_described() {
    let (_folder, url) = sqlite();
    let nobody_waits = |it: lockkeeper::LockerBuilder| it.waiters_max(0);
    let server = Server::with(&url, nobody_waits, |it| it.allow_locks().allow_break()).await;
    let (_held, _) = server.lock("taken?ttl=60s").await;
    let full = |it: Serve| it.allow_locks().limits(Limits::default().streams(0));
    let (reads, full) =
        (Server::with("memory:", |it| it, |it| it).await, Server::with("memory:", |it| it, full).await);
    let (json, long) = ("Content-Type: application/json\r\n", " ".repeat(20_000));
    let broken = "{\"name\":\"taken\",\"fence\":\"1\"}";
    let mut cases = vec![
        (&server, "GET", "/v1/locks", "", "", "", 200),
        (&server, "GET", "/v1/locks", "?nope=1", "", "", 400),
        (&server, "GET", "/v1/locks/x", "", "", "", 200),
        (&server, "GET", "/v1/locks/%FF", "", "", "", 400),
        (&server, "GET", "/v1/leaders/x", "", "", "", 200),
        (&server, "GET", "/v1/leaders/%FF", "", "", "", 400),
        (&server, "GET", "/v1/tokens/0", "", "", "", 410),
        (&server, "POST", "/v1/tokens/0", "", "", "", 410),
        (&server, "DELETE", "/v1/tokens/0", "", "", "", 410),
        (&server, "POST", "/v1/tokens", "?name=new", "", "", 201),
        (&server, "POST", "/v1/tokens", "?name=taken&wait=0", "", "", 409),
        (&server, "POST", "/v1/break/taken", "", "", "{}", 415),
        (&server, "POST", "/v1/break/taken", "", json, "{}", 400),
        (&server, "POST", "/v1/break/taken", "", json, broken, 409),
        (&server, "POST", "/v1/break/taken", "", json, &long, 413),
        (&server, "GET", "/health", "", "", "", 200),
        (&reads, "POST", "/v1/break/taken", "", "", "", 404),
        (&reads, "GET", "/v1/tokens/0", "", "", "", 404),
        (&reads, "POST", "/v1/tokens/0", "", "", "", 404),
        (&reads, "DELETE", "/v1/tokens/0", "", "", "", 404),
    ];
    for (path, query) in [("/v1/locks/taken", ""), ("/v1/tokens", "?name=taken"), ("/v1/leaders/taken", "")] {
        cases.push((&server, "POST", path, query, "", "", 429));
        cases.push((&server, "POST", path, "?tll=1s", "", "", 400));
        cases.push((&server, "POST", path, query, "", &long, 413));
        cases.push((&reads, "POST", path, query, "", "", 404));
        cases.push((&full, "POST", path, query, "", "", 503));
    }
    let described: Value = serde_json::from_str(include_str!("../src/openapi.json")).unwrap();
    for (server, method, path, query, headers, body, status) in cases {
        let (answered, said) = server.ask_with(method, &format!("{path}{query}"), headers, body).await;
        assert_eq!(answered, status, "{method} {path}{query}: {said}");
        let mut route = path.to_owned();
        for (before, name) in [("/v1/locks/", "{name}"), ("/v1/leaders/", "{name}"), ("/v1/break/", "{name}")]
        {
            if path.starts_with(before) {
                route = format!("{before}{name}");
            }
        }
        let route = route.replace("/v1/tokens/0", "/v1/tokens/{token}");
        let all = &described["paths"][&route][method.to_lowercase()]["responses"];
        assert!(all[status.to_string()].is_object(), "{method} {route} answers {status}, and nobody says so");
        // Whatever is asked: by a stranger, by another name, by a page of another origin.
        let host = format!("127.0.0.1:{}", server.port);
        let writes =
            if method == "GET" { None } else { Some((host.as_str(), "Origin: http://evil\r\n", 403)) };
        let open = path == "/health";
        let strange = [("evil.example", "", 421)].into_iter().chain(writes);
        for (host, more, status) in strange.chain((!open).then_some((host.as_str(), "", 401))) {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n{more}\r\n"
            );
            assert_eq!(server.raw(&request).await.0, status, "{method} {path} {host} {more}");
            assert!(
                all[status.to_string()].is_object(),
                "{method} {route} answers {status}, and nobody says so"
            );
        }
    }
    for it in [server, reads, full] {
        it.ends().await;
    }
}

#[tokio::test]
async fn a_unix_socket_is_for_this_user_and_goes_with_the_server() {
    let (folder, url) = sqlite();
    let path = folder.path().join("lock.sock");
    let store = lockkeeper::open(&url).await.unwrap();
    let serve = Serve::with(store.locker.build(), store.inspect, TOKEN).unwrap().allow_locks();
    let listen = Listen::parse(&format!("unix:{}", path.display())).unwrap();
    // What a dead server left is replaced, what a living one has is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listener = listen.bind().await.unwrap();
    assert!(listen.bind().await.is_err(), "another server listens there");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(serve.run(listener, async { _ = ended.await }));
    let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
    let request = format!(
        "GET /v1/locks HTTP/1.1\r\nHost: any\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(end);
    running.await.unwrap().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_token_that_no_header_can_show_is_refused() {
    for token in ["", "with blanks in it", "with\nlines-in-it"] {
        let store = lockkeeper::spi::Memory::default();
        let made = Serve::new(lockkeeper_core::Locker::new(store.clone()), store, token);
        assert!(made.is_err(), "{token:?}");
    }
}

#[tokio::test]
async fn locks_are_held_by_token_as_long_as_they_are_renewed() {
    let server = Server::at("memory:").await;
    let (status, taken) = server.ask("POST", "/v1/tokens?name=a%2Fb&ttl=60s&wait=1s").await;
    assert_eq!((status, &taken["name"]), (201, &"a/b".into()), "{taken}");
    assert!(taken["fence"].is_string());
    let token = taken["token"].as_str().unwrap();
    assert_eq!(server.ask("POST", "/v1/tokens?name=a%2Fb&wait=0").await.0, 409);
    for method in ["GET", "POST"] {
        let (status, seen) = server.ask(method, &format!("/v1/tokens/{token}")).await;
        assert_eq!((status, &seen["fence"]), (200, &taken["fence"]), "{method}");
        assert!(0 < seen["valid_for_ms"].as_u64().unwrap());
    }
    assert_eq!(server.ask("DELETE", &format!("/v1/tokens/{token}")).await.0, 204);
    for method in ["GET", "POST", "DELETE"] {
        let (status, gone) = server.ask(method, &format!("/v1/tokens/{token}")).await;
        assert_eq!((status, &gone["error"]), (410, &"gone".into()), "{method}");
    }
    assert_eq!(server.ask("POST", "/v1/tokens").await.0, 400, "a name is needed");
    // One that is not renewed is given back by itself, and then it is gone for its client.
    let (_, taken) = server.ask("POST", "/v1/tokens?name=short&ttl=100ms").await;
    let (next, _) = server.lock("short").await;
    drop(next);
    let path = format!("/v1/tokens/{}", taken["token"].as_str().unwrap());
    until("it is gone", || async { server.ask("POST", &path).await.0 == 410 }).await;
    server.ends().await;
}

/// Who names no ttl has that of the server's settings.
#[tokio::test]
async fn a_token_without_a_ttl_lasts_as_the_settings_say() {
    let server = Server::with("memory:", |it| it.ttl(Duration::from_secs(77)), Serve::allow_locks).await;
    let (_, taken) = server.ask("POST", "/v1/tokens?name=x").await;
    let valid = taken["valid_for_ms"].as_u64().unwrap();
    assert!(60_000 < valid && valid <= 77_000, "{taken}");
    server.ends().await;
}

#[tokio::test]
async fn leaders_are_told_and_roles_are_streams() {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    assert_eq!(server.ask("GET", "/v1/leaders/a%2Fb").await.1["leader"], Value::Null);
    let head = server.head("GET", "/v1/leaders/a%2Fb");
    let mut watching = server.begin_with(&format!("{head}Accept: text/event-stream\r\n\r\n")).await;
    let first = watching.line("data: ").await.unwrap();
    assert!(first.contains("\"leader\":null"), "{first}");
    let mut role = server.begin("POST", "/v1/leaders/a%2Fb?value=10.0.0.7:80&ttl=60s").await;
    let granted = role.event().await;
    assert_eq!(granted["event"], "granted");
    let told = watching.line("data: ").await.unwrap();
    assert!(told.contains("\"value\":\"10.0.0.7:80\""), "{told}");
    let leader = server.ask("GET", "/v1/leaders/a%2Fb").await.1["leader"].clone();
    assert_eq!((&leader["value"], &leader["term"]), (&"10.0.0.7:80".into(), &granted["fence"]));
    let (status, _) = server.ask("POST", "/v1/leaders/a%2Fb?wait=10ms").await;
    assert_eq!(status, 409);
    drop(role);
    let told = watching.line("data: ").await.unwrap();
    assert!(told.contains("\"leader\":null"), "{told}");
    drop(watching);
    server.ends().await;
}
