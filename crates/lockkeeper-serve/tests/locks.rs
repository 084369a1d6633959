//! The stream that is the lock: options, names, clients that go away or misbehave.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Server, Streaming, fence, on_a_socket, sqlite, until, within};
use lockkeeper::Meters;
use lockkeeper_core::Clock;
use lockkeeper_serve::{Limits, Serve};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn the_stream_is_the_lock() {
    let server = Server::at("memory:").await;
    let (first, granted) = server.lock("orders%2F42?wait=3s&ttl=60s&note=import").await;
    assert_eq!(granted["name"], "orders/42");
    assert!(0 < granted["valid_for_ms"].as_u64().unwrap());
    assert!(first.head.to_lowercase().contains("content-type: application/x-ndjson"), "{}", first.head);
    let shown = server.shown("orders%2F42").await;
    assert_eq!(shown["holders"][0]["note"], "import");
    let (status, refused) = server.ask("POST", "/v1/locks/orders%2F42?wait=0s").await;
    assert_eq!((status, &refused["error"]), (409, &"not_obtained".into()));
    let (status, refused) = server.ask("POST", "/v1/locks/orders%2F42?wait=20ms").await;
    assert_eq!((status, &refused["error"]), (409, &"not_obtained".into()));
    drop(first);
    let (_second, next) = server.lock("orders%2F42").await;
    assert!(fence(&granted) < fence(&next), "{granted} {next}");
    server.ends().await;
}

#[tokio::test]
async fn locks_are_shared_counted_and_taken_together() {
    let server = Server::at("memory:").await;
    let readers = [server.lock("prices?shared=true").await, server.lock("prices?shared=true").await];
    assert_eq!(server.shown("prices").await["holders"][0]["kind"], "reader");
    assert_eq!(server.ask("POST", "/v1/locks/prices?wait=0").await.0, 409);
    drop(readers);
    let (_some, _) = server.lock("mail?permits=3/5").await;
    assert_eq!(server.ask("POST", "/v1/locks/mail?permits=3/5&wait=0").await.0, 409);
    let (_more, _) = server.lock("mail?permits=2/5").await;
    let (both, granted) = server.lock("from?also=to&also=a%2Fb").await;
    let fences = granted["fences"].as_object().unwrap();
    assert_eq!(fences.keys().collect::<Vec<_>>(), ["a/b", "from", "to"]);
    assert_eq!(server.ask("POST", "/v1/locks/a/b?wait=0").await.0, 409);
    drop(both);
    server.is_free("a/b").await;
    server.ends().await;
}

#[tokio::test]
async fn options_may_stand_in_a_json_body() {
    let server = Server::at("memory:").await;
    let body = r#"{"note":"by body","shared":true}"#;
    let head = server.head("POST", "/v1/locks/x");
    let mut stream = server.begin_with(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())).await;
    assert_eq!(stream.event().await["event"], "granted");
    let holder = &server.shown("x").await["holders"][0];
    assert_eq!((&holder["note"], &holder["kind"]), (&"by body".into(), &"reader".into()));
    drop(stream);
    server.is_free("x").await;
    server.ends().await;
}

#[tokio::test]
async fn every_name_that_a_lock_can_have_arrives_as_it_is() {
    let server = Server::at("memory:").await;
    for (path, name) in [
        ("a%20b", "a b"),
        ("a%2Fb", "a/b"),
        ("a/b/c", "a/b/c"),
        ("%C3%A9%F0%9F%94%92", "é🔒"),
        ("%2Fabsolute", "/absolute"),
        ("a%2F", "a/"),
        ("..%2F..", "../.."),
        ("%3Cscript%3E", "<script>"),
        ("100%25", "100%"),
        ("a%3Fb%23c", "a?b#c"),
        ("a+b", "a+b"),
        ("%E2%80%AEgpj", "\u{202e}gpj"),
    ] {
        let (_held, granted) = server.lock(path).await;
        assert_eq!(granted["name"], name, "{path}");
        assert_eq!(server.shown(path).await["name"], name);
    }
    let long = "x".repeat(512);
    let (_held, granted) = server.lock(&long).await;
    assert_eq!(granted["name"], long);
    server.ends().await;
}

#[tokio::test]
async fn bad_requests_are_refused_with_words() {
    let server = Server::at("memory:").await;
    let long = "x".repeat(513);
    for path in [&format!("/v1/locks/{long}"), "/v1/locks/%FF", "/v1/locks/a%0Ab", "/v1/locks/x?tll=3s"] {
        let (status, refused) = server.ask("POST", path).await;
        assert_eq!((status, &refused["error"]), (400, &"invalid".into()), "{path}");
        assert!(!refused["message"].as_str().unwrap().is_empty());
    }
    for body in ["{", "[1]", "nonsense", "{\"ttl\":1}", "\u{0}", "{\"ttl\":\"1s\""] {
        let (status, refused) = server.ask_with("POST", "/v1/locks/x", "", body).await;
        assert_eq!((status, &refused["error"]), (400, &"invalid".into()), "{body}");
    }
    let (status, refused) = server.ask_with("POST", "/v1/locks/x", "", &" ".repeat(20_000)).await;
    assert_eq!((status, &refused["error"]), (413, &"too_large".into()));
    // Beyond what any head may have.
    let (status, _) = server.ask("POST", &format!("/v1/locks/{}", "x".repeat(200_000))).await;
    assert!((400..500).contains(&status), "{status}");
    let nothing = server.ask("GET", "/v1/nothing").await;
    assert_eq!((nothing.0, &nothing.1["error"]), (404, &"not_found".into()));
    assert_eq!(server.shown("x").await["holders"], Value::Array(Vec::new()), "nothing was taken");
    server.ends().await;
}

#[tokio::test]
async fn a_full_queue_is_told() {
    let server = Server::with("memory:", |it| it.waiters_max(1), Serve::allow_locks).await;
    let (_held, _) = server.lock("x").await;
    let mut waiting = server.connect().await;
    waiting.write_all(format!("{}\r\n", server.head("POST", "/v1/locks/x")).as_bytes()).await.unwrap();
    // The second waits in this process, which nobody can see from outside but the third.
    until("the line is full", || async {
        let (status, refused) = server.ask("POST", "/v1/locks/x?wait=10ms").await;
        assert!(status == 409 || (status == 429 && refused["error"] == "queue_full"), "{status} {refused}");
        status == 429
    })
    .await;
    server.ends().await;
}

#[tokio::test]
async fn as_many_streams_as_allowed_and_no_more() {
    let limits = |it: Serve| it.allow_locks().limits(Limits::default().streams(2));
    let server = Server::with("memory:", |it| it, limits).await;
    let (one, _) = server.lock("a").await;
    let (_two, _) = server.lock("b").await;
    let (status, refused) = server.ask("POST", "/v1/locks/c").await;
    assert_eq!((status, &refused["error"]), (503, &"busy".into()));
    drop(one);
    until("there is room again", || async { server.begin("POST", "/v1/locks/c").await.status == 200 }).await;
    server.ends().await;
}

#[tokio::test]
async fn renewals_and_the_loss_are_told() {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    let (mut stream, _) = server.lock("x?ttl=9s").await;
    let renewed = stream.event_of("renewed").await;
    assert!(0 < renewed["valid_for_ms"].as_u64().unwrap(), "{renewed}");
    let broken = server.inspect.break_lock(&lockkeeper::Key::new("x").unwrap()).await.unwrap();
    assert_eq!(broken.len(), 1);
    let lost = stream.event_of("lost").await;
    assert_eq!(lost["reason"], "taken");
    assert!(stream.next().await.is_none(), "nothing comes after a loss");
    let (mut short, _) = server.lock("y?max_hold=50ms").await;
    assert_eq!(short.event_of("lost").await["reason"], "max_hold");
    server.is_free("y").await;
    server.ends().await;
}

#[tokio::test]
async fn whoever_goes_away_while_waiting_leaves_the_line() {
    let (_folder, url) = sqlite();
    let (here, there) = (Server::at(&url).await, Server::at(&url).await);
    let (held, _) = here.lock("x?ttl=60s").await;
    let mut waiting = there.connect().await;
    waiting.write_all(format!("{}\r\n", there.head("POST", "/v1/locks/x?ttl=60s")).as_bytes()).await.unwrap();
    let waiters = |count| {
        let here = &here;
        move || async move { here.shown("x").await["waiters"].as_array().unwrap().len() == count }
    };
    until("it waits", waiters(1)).await;
    drop(waiting);
    until("it has left", waiters(0)).await;
    drop(held);
    here.is_free("x").await;
    here.ends().await;
    there.ends().await;
}

#[tokio::test]
async fn half_a_connection_is_none() {
    let server = Server::at("memory:").await;
    let (mut stream, _) = server.lock("x?ttl=60s").await;
    stream.reader.get_mut().shutdown().await.unwrap();
    server.is_free("x").await;
    let mut rest = Vec::new();
    // It may end in good order or by a reset.
    let _ = within("the server closes its half, too", stream.reader.read_to_end(&mut rest)).await;
    server.ends().await;
}

#[tokio::test]
async fn half_a_connection_leaves_the_line() {
    let (_folder, url) = sqlite();
    let (here, there) = (Server::at(&url).await, Server::at(&url).await);
    let (_held, _) = here.lock("x?ttl=60s").await;
    let mut waiting = there.connect().await;
    waiting.write_all(format!("{}\r\n", there.head("POST", "/v1/locks/x?ttl=60s")).as_bytes()).await.unwrap();
    let waiters = async || here.shown("x").await["waiters"].as_array().unwrap().len();
    until("it waits", || async { waiters().await == 1 }).await;
    waiting.shutdown().await.unwrap();
    until("it has left", || async { waiters().await == 0 }).await;
    here.ends().await;
    there.ends().await;
}

/// What it said behind its request lies unread, and hides the end of the connection until something is written to it.
#[tokio::test]
async fn a_client_that_said_more_than_it_was_asked_and_died_is_noticed() {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    let request = format!("{}\r\nnonsense", server.head("POST", "/v1/locks/x?ttl=3s"));
    let mut stream = server.begin_with(&request).await;
    assert_eq!(stream.event().await["event"], "granted");
    drop(stream);
    server.is_free("x").await;
    server.ends().await;
}

/// A client may send a request before the answer to the last one has come: they are answered in turn, and the lock that it
/// gives back is given on.
#[tokio::test]
async fn requests_in_one_go_are_answered_in_turn() {
    let server = Server::at("memory:").await;
    let head = |method: &str, path: &str| format!("{}Content-Length: 0\r\n\r\n", server.head(method, path));
    let take = head("POST", "/v1/tokens?name=x&ttl=60s");
    let mut stream = server.begin_with(&take).await;
    let mut first = 0;
    for turn in 0..3 {
        let taken = stream.event().await;
        assert!(first < fence(&taken), "{turn}: {taken}");
        first = fence(&taken);
        let give_back = head("DELETE", &format!("/v1/tokens/{}", taken["token"].as_str().unwrap()));
        let (_, refused) = server.ask("POST", "/v1/tokens?name=x&wait=0").await;
        assert_eq!(refused["error"], "not_obtained", "{turn}");
        stream.reader.get_mut().write_all(format!("{give_back}{take}").as_bytes()).await.unwrap();
        assert!(stream.line("HTTP/1.1 ").await.unwrap().contains("204"), "{turn}");
        assert!(stream.line("HTTP/1.1 ").await.unwrap().contains("201"), "{turn}");
    }
    drop(stream);
    server.ends().await;
}

#[tokio::test]
async fn malformed_json_is_refused_everywhere_and_nothing_is_taken() {
    let server = Server::with("memory:", |it| it, |it| it.allow_locks().allow_break()).await;
    for path in ["/v1/locks/x", "/v1/locks/x%20y", "/v1/tokens", "/v1/leaders/x", "/v1/break/x"] {
        for body in ["{", "[]", "{\"name\":", "{\"name\":{}}", "\u{feff}{}", "{\"ttl\":\"1s\"}}", "nul\u{0}l"]
        {
            let (status, refused) =
                server.ask_with("POST", path, "Content-Type: application/json\r\n", body).await;
            assert_eq!((status, &refused["error"]), (400, &"invalid".into()), "{path} {body}: {refused}");
        }
    }
    let (_, all) = server.ask("GET", "/v1/locks").await;
    assert_eq!(all["locks"], Value::Array(Vec::new()));
    server.ends().await;
}

#[tokio::test]
async fn clients_that_stall_disturb_nobody() {
    let limits = |it: Serve| it.allow_locks().limits(Limits::default().patience(Duration::from_millis(300)));
    let server = Server::with("memory:", |it| it, limits).await;
    let mut half_a_head = server.connect().await;
    half_a_head.write_all(b"POST /v1/locks/x HTTP/1.1\r\nHost: ").await.unwrap();
    // A body that never comes is not waited for longer than allowed, and nothing is taken before.
    let head = server.head("POST", "/v1/locks/x");
    let (status, refused) =
        server.raw(&format!("{head}Connection: close\r\nContent-Length: 10\r\n\r\n{{")).await;
    assert_eq!((status, &refused["error"]), (408, &"too_slow".into()));
    // One that holds and reads nothing holds on; its connection is alive.
    let mut deaf = server.connect().await;
    deaf.write_all(format!("{}\r\n", server.head("POST", "/v1/locks/x")).as_bytes()).await.unwrap();
    until("it holds", || async { !server.shown("x").await["holders"].as_array().unwrap().is_empty() }).await;
    drop((deaf, half_a_head));
    server.is_free("x").await;
    server.ends().await;
}

/// A client whose host has room for hardly more than the head of an answer.
fn cramped(server: &Server) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 1).unwrap();
    connect(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], server.port))).unwrap();
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

/// What the server has sent or wants to send to this client, and what its host has not taken; `None` without a connection.
fn under_way(server: &Server, client: u16) -> Option<u64> {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = format!("0100007F:{:04X} 0100007F:{client:04X} 01 ", server.port);
    let (_, rest) = all.lines().find_map(|it| it.split_once(&ends))?;
    u64::from_str_radix(rest.split(':').next()?, 16).ok()
}

/// It reads what it was granted and nothing after, as programs do that only want to hold. What its host has no room for is not
/// sent: the system would take the host for dead, cut the connection, and free the lock under a client that lives.
#[tokio::test]
async fn a_client_that_reads_one_line_and_no_more_holds_on() {
    let ((_folder, url), meters) = (sqlite(), Meters::new());
    let server = Server::with(&url, |it| it.observer(meters.clone()), Serve::allow_locks).await;
    let mut client = cramped(&server);
    let port = client.local_addr().unwrap().port();
    client.write_all(format!("{}\r\n", server.head("POST", "/v1/locks/x?ttl=3s")).as_bytes()).await.unwrap();
    let mut stream = Streaming::read(client).await;
    let granted = stream.event().await;
    let renewals = || meters.snapshot().sum("lockkeeper.store.duration", &[("verb", "renew")]);
    // All the room it has is for about twenty lines.
    until("it is renewed often", async || 24 <= renewals()).await;
    until("all that was sent has arrived", async || under_way(&server, port) == Some(0)).await;
    assert_eq!(server.shown("x").await["holders"][0]["fence"], granted["fence"]);
    assert_eq!(stream.event().await["event"], "renewed", "whoever reads again hears again");
    drop(stream);
    server.is_free("x").await;
    server.ends().await;
}

/// The system notices the end of a program at the other end of a socket, however full that is, so there is nothing to leave out.
#[tokio::test]
async fn a_dropped_stream_over_a_socket_frees_the_lock() {
    let (folder, url) = sqlite();
    let (server, path) = (Server::at(&url).await, folder.path().join("s"));
    let socket = on_a_socket(&url, &path).await;
    let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
    client.write_all(server.head("POST", "/v1/locks/x").as_bytes()).await.unwrap();
    client.write_all(b"\r\n").await.unwrap();
    until("it holds", || async { !server.shown("x").await["holders"].as_array().unwrap().is_empty() }).await;
    let (clock, dropped) = (Clock::boot(), Clock::boot().now());
    drop(client);
    server.is_free("x").await;
    eprintln!("free {:?} after the connection was closed", clock.now() - dropped);
    socket.abort();
    server.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_are_held_and_given_back() {
    let server = Server::at("memory:").await;
    let before = resident();
    let mut held = Vec::new();
    for number in 0..1000 {
        held.push(server.lock(&format!("many%2F{number}?ttl=60s")).await.0);
    }
    let (status, all) = server.ask("GET", "/v1/locks?prefix=many%2F").await;
    assert_eq!((status, all["locks"].as_array().unwrap().len()), (200, 1000));
    if let (Some(before), Some(after)) = (before, resident()) {
        // Both ends of each connection are in this process.
        eprintln!("1,000 streams: {} KiB each, client and server", (after.saturating_sub(before)) / 1000);
    }
    drop(held);
    until("all are given back", || async {
        server.ask("GET", "/v1/locks?prefix=many%2F").await.1["locks"].as_array().unwrap().is_empty()
    })
    .await;
    server.ends().await;
}

/// Resident memory of this process in KiB.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[tokio::test]
async fn the_end_of_the_server_is_told_before_locks_are_given_back() {
    let (_folder, url) = sqlite();
    let patient = |it: Serve| it.allow_locks().limits(Limits::default().patience(common::HANG));
    let mut server = Server::with(&url, |it| it, patient).await;
    let store = server.inspect.clone();
    let key = lockkeeper::Key::new("x").unwrap();
    let (mut held, _) = server.lock("x?ttl=60s").await;
    server.tell_to_end();
    assert_eq!(held.event_of("lost").await["reason"], "closing");
    assert!(store.show(&key).await.unwrap().is_some(), "it is ours until we have let go");
    drop(held);
    within("the server ends", server.ends()).await;
    assert!(store.show(&key).await.unwrap().is_none());
}

#[tokio::test]
async fn whoever_waits_is_told_that_the_server_ends() {
    let (_folder, url) = sqlite();
    let (here, mut there) = (Server::at(&url).await, Server::at(&url).await);
    let (_held, _) = here.lock("x?ttl=60s").await;
    for what in ["/v1/locks/x", "/v1/tokens?name=x", "/v1/leaders/x?value=me"] {
        let mut waiting = there.connect().await;
        waiting.write_all(format!("{}\r\n", there.head("POST", what)).as_bytes()).await.unwrap();
        until("it waits", || async { !here.shown("x").await["waiters"].as_array().unwrap().is_empty() })
            .await;
        there.tell_to_end();
        let mut refused = Streaming::read(waiting).await;
        assert_eq!((refused.status, &refused.event().await["error"]), (503, &"closing".into()), "{what}");
        there.ends().await;
        there = Server::at(&url).await;
    }
    here.ends().await;
    there.ends().await;
}
