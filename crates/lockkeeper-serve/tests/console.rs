//! The console without a script: who gets in, what a page tells, and breaking by request.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Server, TOKEN, fence, sqlite, until, within};
use lockkeeper_core::inspect::Severity;
use lockkeeper_serve::{HotNames, InDoubt, InDoubts, Serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A request with these headers, and the whole text of its answer.
async fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
    let (port, length) = (server.port, body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    let mut answer = server.begin_with(&request).await;
    let mut text = String::new();
    within("the page", answer.reader.read_to_string(&mut text)).await.unwrap();
    (answer.status, answer.head, text)
}

/// The header with the cookie of somebody who showed the token.
async fn cookie(server: &Server) -> String {
    let (status, head, _) = ask(server, "POST", "/login", "", &format!("token={TOKEN}")).await;
    assert_eq!(status, 303);
    let set = head.lines().find_map(|it| it.strip_prefix("set-cookie: ")).unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    format!("Cookie: {}\r\n", set.split(';').next().unwrap())
}

#[tokio::test]
async fn a_browser_shows_the_token_once() {
    let server = Server::at("memory:").await;
    let html = "Accept: text/html\r\n";
    for path in ["/", "/locks", "/locks/x", "/rooms", "/hot", "/two-phase", "/doctor"] {
        let (status, _, page) = ask(&server, "GET", path, html, "").await;
        assert_eq!(status, 401, "{path}");
        assert!(page.contains("<form id=\"login\""), "{path}: {page}");
        assert_eq!(ask(&server, "GET", path, "", "").await.0, 401, "{path}");
    }
    assert_eq!(ask(&server, "GET", "/events", "", "").await.0, 401);
    assert_eq!(ask(&server, "POST", "/login", "", "token=wrong").await.0, 401);
    let evil = "Origin: http://evil.example\r\n";
    assert_eq!(ask(&server, "POST", "/login", evil, &format!("token={TOKEN}")).await.0, 403);
    let cookie = cookie(&server).await;
    for path in
        ["/", "/locks", "/locks/x", "/rooms", "/hot", "/doctor", "/assets/style.css", "/assets/console.js"]
    {
        assert_eq!(ask(&server, "GET", path, &cookie, "").await.0, 200, "{path}");
    }
    assert_eq!(ask(&server, "GET", "/two-phase", &cookie, "").await.0, 404, "nobody knows of any");
    let wrong = cookie.replace('=', "=0");
    assert_eq!(ask(&server, "GET", "/locks", &wrong, "").await.0, 401);
    // A cookie alone does not write: a browser that writes says from where.
    assert_eq!(ask(&server, "POST", "/v1/locks/x?wait=0", &cookie, "").await.0, 401);
    server.ends().await;
}

#[tokio::test]
async fn a_page_without_a_script_tells_what_the_list_tells() {
    let server = Server::at("memory:").await;
    let names = ["a", "orders%2F42", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "%E2%80%AEgpj%F0%9F%94%92"];
    let mut held = Vec::new();
    for name in names {
        held.push(server.lock(&format!("{name}?note=%3Cb%3Ebold")).await);
    }
    let cookie = cookie(&server).await;
    let (_, _, page) = ask(&server, "GET", "/locks", &cookie, "").await;
    for (_, granted) in &held {
        let name = granted["name"].as_str().unwrap();
        let text = name.replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.contains(&format!("<bdi>{text}</bdi>")), "{name}: {page}");
        assert!(page.contains(granted["fence"].as_str().unwrap()), "{name}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<b>bold"), "{page}");
    for (path, has, lacks) in [
        ("/locks?q=orders", "orders/42", "gpj"),
        ("/locks?waited=on", "No lock is held", "orders/42"),
        ("/locks/orders%2F42", "lockkeeper show -- &#39;orders/42&#39;", "gpj"),
        ("/locks/orders%2F42", "lockkeeper break --fence ", "gpj"),
        ("/locks/nobody", "This lock is <b>free</b>", "gpj"),
        ("/locks?q=%22%3E%3Cscript%3E", "value=\"&quot;&gt;&lt;script&gt;\"", "<script>"),
    ] {
        let (status, _, page) = ask(&server, "GET", path, &cookie, "").await;
        assert!(status == 200 && page.contains(has) && !page.contains(lacks), "{path}: {page}");
    }
    drop(held);
    server.ends().await;
}

#[tokio::test]
async fn a_list_is_in_the_order_that_was_asked_for_and_says_so() {
    let server = Server::at("memory:").await;
    let (_first, _) = server.lock("b-first?ttl=60s").await;
    until("it is held for a while", || async {
        server.shown("b-first").await["holders"][0]["held_for_ms"].as_u64().unwrap() >= 100
    })
    .await;
    let (_second, _) = server.lock("a-second?ttl=60s").await;
    let cookie = cookie(&server).await;
    for (query, column, order, first, second) in [
        ("", "Name", "ascending", "a-second", "b-first"),
        ("?sort=held", "Held for", "descending", "b-first", "a-second"),
    ] {
        let page = ask(&server, "GET", &format!("/locks{query}"), &cookie, "").await.2;
        let at = |name: &str| page.find(&format!("<bdi>{name}</bdi>")).unwrap();
        assert!(at(first) < at(second), "{query}: {page}");
        assert_eq!(page.matches("aria-sort").count(), 1, "{query}: {page}");
        let (_, rest) = page.split_once(&format!("aria-sort=\"{order}\">")).expect(query);
        assert!(rest.split("</th>").next().unwrap().contains(&format!(">{column}<")), "{query}: {rest}");
    }
    server.ends().await;
}

#[tokio::test]
async fn roles_permits_hot_names_and_doubts_have_pages() {
    let (_folder, url) = sqlite();
    let hot = HotNames::default();
    let knows = || {
        let mut one = InDoubt::new("lk-<7>");
        one.state = "undecided".into();
        one.begun = Some(Duration::from_secs(1));
        one.branches = vec![("orders".into(), "prepared".into())];
        one.commands = vec!["lockkeeper 2pc recover".into()];
        std::future::ready(Ok(InDoubts::new(vec![one], vec!["damage: stock".into()])))
    };
    let observed = hot.clone();
    let server = Server::with(
        &url,
        move |it| it.observer(observed),
        move |it| it.allow_locks().hot_names(hot).two_phase(knows),
    )
    .await;
    let cookie = cookie(&server).await;
    let page = async |path: &str| ask(&server, "GET", path, &cookie, "").await.2;
    assert!(page("/rooms").await.contains("Nobody leads"));
    let mut role = server.begin("POST", "/v1/leaders/scheduler?value=10.0.0.7%3A80&ttl=60s").await;
    assert_eq!(role.event().await["event"], "granted");
    let (_permits, _) = server.lock("mail?permits=3/5&ttl=60s").await;
    let (_reader, _) = server.lock("prices?shared=true&ttl=60s").await;
    let (_one, _) = server.lock("%3Cb%3E?ttl=60s").await;
    // The pages look at the store once per interval.
    for words in ["10.0.0.7:80", "3 of 5", "prices</bdi></a></div></td><td data-title=\"Readers\"><div>1<"] {
        until(&format!("the page shows {words}"), || async { page("/rooms").await.contains(words) }).await;
    }
    let hot = page("/hot").await;
    assert!(hot.contains("<bdi>&lt;b&gt;</bdi>") && hot.contains("Asked for here"), "{hot}");
    until("it is seen to change hands", || async {
        page("/hot").await.split_once("Changing hands").unwrap().1.contains("<bdi>mail</bdi>")
    })
    .await;
    let doubts = page("/two-phase").await;
    for words in
        ["lk-&lt;7&gt;", "undecided", "nobody works on it", "lockkeeper 2pc recover", "damage: stock"]
    {
        assert!(doubts.contains(words), "{words}: {doubts}");
    }
    let overview = page("/").await;
    assert!(overview.contains("In doubt") && overview.contains("<b class=\"bad\">1</b>"), "{overview}");
    drop(role);
    server.ends().await;
}

#[tokio::test]
async fn losses_are_on_the_overview() {
    let (_folder, url) = sqlite();
    let hot = HotNames::default();
    let observed = hot.clone();
    let serve = move |it: Serve| it.allow_locks().hot_names(hot);
    let server = Server::with(&url, move |it| it.observer(observed), serve).await;
    let cookie = cookie(&server).await;
    let shows = async |number: &str| {
        let card = format!("<h2>Losses</h2><p><b class=\"{number}</b></p>");
        ask(&server, "GET", "/", &cookie, "").await.2.contains(&card)
    };
    assert!(shows("good\">0").await);
    // What is given back is no loss.
    drop(server.lock("x").await);
    server.is_free("x").await;
    assert!(shows("good\">0").await);
    let (mut held, _) = server.lock("x?max_hold=50ms").await;
    assert_eq!(held.event_of("lost").await["reason"], "max_hold");
    until("it is told", || shows("bad\">1")).await;
    server.ends().await;
}

#[tokio::test]
async fn the_doctors_page_has_what_the_doctor_found() {
    let (folder, url) = sqlite();
    let server = Server::at(&url).await;
    // A file that everybody may write is warned of.
    drop(server.lock("x").await);
    std::fs::set_permissions(folder.path().join("locks.db"), Permissions::from_mode(0o666)).unwrap();
    let findings = server.inspect.doctor().await.unwrap();
    assert!(findings.iter().any(|it| it.severity == Severity::Warning), "{findings:?}");
    let page = ask(&server, "GET", "/doctor", &cookie(&server).await, "").await.2;
    let text = |it: &str| {
        let pairs = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
        pairs.iter().fold(it.to_owned(), |text, (from, to)| text.replace(*from, to))
    };
    // What is as it should be may have other numbers by now.
    for it in findings.iter().filter(|it| it.severity != Severity::Fine) {
        assert!(page.contains(&text(&it.what)) && page.contains(&text(&it.remedy)), "{it:?}: {page}");
    }
    let sections = page.matches("<section class=\"finding").count();
    assert_eq!(sections, findings.len(), "{page}");
    server.ends().await;
}

/// Clients of one server wait in its own line: the store, and so the list, knows nothing of them.
#[tokio::test]
async fn who_waits_in_this_servers_line_is_shown() {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    let cookie = cookie(&server).await;
    let (held, _) = server.lock("x").await;
    let mut waiting = Vec::new();
    let shows = async |path: &str, words: &str| {
        until(&format!("{path} shows {words}"), async || {
            ask(&server, "GET", path, &cookie, "").await.2.contains(words)
        })
        .await;
    };
    for words in
        ["1 client of this server waits in its own line", "2 clients of this server wait in its own line"]
    {
        let mut client = server.connect().await;
        client.write_all(format!("{}\r\n", server.head("POST", "/v1/locks/x")).as_bytes()).await.unwrap();
        waiting.push(client);
        shows("/locks/x", words).await;
    }
    assert!(server.shown("x").await["waiters"].as_array().unwrap().is_empty(), "the store does not know");
    shows("/locks?waited=on", "<td data-title=\"Waiting\"><div>2</div></td>").await;
    shows("/", "<h2>Waiting</h2><p><b>2</b></p>").await;
    drop(waiting);
    shows("/locks/x", "Nobody waits.").await;
    drop(held);
    server.ends().await;
}

#[tokio::test]
async fn so_many_browsers_listen_and_no_more() {
    let server = Server::at("memory:").await;
    let mut browsers = Vec::new();
    for _ in 0..32 {
        let mut browser = server.begin("GET", "/events").await;
        assert_eq!(browser.status, 200);
        assert!(browser.line("event: changed").await.is_some(), "each is told what there is");
        browsers.push(browser);
    }
    let (status, refused) = server.ask("GET", "/events").await;
    assert_eq!((status, &refused["error"]), (503, &"busy".into()));
    let mut last = browsers.pop().unwrap();
    drop(browsers);
    until("there is room again", || async { server.begin("GET", "/events").await.status == 200 }).await;
    let (_held, _) = server.lock("x").await;
    assert!(last.line("event: changed").await.is_some(), "those who stay hear of changes");
    server.ends().await;
    assert!(last.line("event: ").await.is_none(), "the end of the server ends what they hear");
}

#[tokio::test]
async fn only_the_holder_that_was_shown_can_be_broken() {
    let (_folder, url) = sqlite();
    let told = Arc::<Mutex<Vec<String>>>::default();
    let hears = told.clone();
    let serve = move |it: Serve| {
        it.allow_locks().allow_break().on_break(move |line| hears.lock().unwrap().push(line.to_owned()))
    };
    let server = Server::with(&url, |it| it, serve).await;
    let cookie = cookie(&server).await;
    let json = "Content-Type: application/json\r\n";
    let ours = format!("Origin: http://127.0.0.1:{}\r\n", server.port);
    let attempt = async |headers: &str, name: &str, fence: &str| {
        let body = format!("{{\"name\":{name:?},\"fence\":{fence:?}}}");
        let (status, _, text) = ask(&server, "POST", "/v1/break/x", headers, &body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    };
    let (first, seen) = server.lock("x?ttl=60s").await;
    drop(first);
    let (second, now) = server.lock("x?ttl=60s").await;
    let (seen, now) = (fence(&seen).to_string(), fence(&now).to_string());
    let right = format!("{cookie}{ours}{json}");
    for (headers, name, fence, status) in [
        (format!("{ours}{json}"), "x", &now, 401),
        (format!("{cookie}{json}"), "x", &now, 401),
        (format!("{cookie}{json}Origin: http://evil.example\r\n"), "x", &now, 403),
        (format!("{cookie}{ours}Content-Type: application/x-www-form-urlencoded\r\n"), "x", &now, 415),
        (right.clone(), "y", &now, 400),
        (right.clone(), "x", &"no number".to_owned(), 400),
        (right.clone(), "x", &seen, 409),
    ] {
        let answer = attempt(&headers, name, fence).await;
        assert_eq!(answer.0, status, "{headers} {name} {fence}: {}", answer.1);
        assert_eq!(server.shown("x").await["holders"].as_array().unwrap().len(), 1, "nothing was broken");
    }
    assert!(told.lock().unwrap().is_empty(), "nothing was broken, so nothing is told: {told:?}");
    let (status, done) = attempt(&right, "x", &now).await;
    assert_eq!((status, &done["broken"]["fence"]), (200, &now.as_str().into()), "{done}");
    let told = told.lock().unwrap().join("\n");
    let (line, peer) = told.split_once(", asked for by 127.0.0.1:").unwrap();
    assert!(line.starts_with(&format!("broke `x`, fence {now}, held by ")), "{told}");
    let (port, time) = peer.split_once(" at ").unwrap();
    assert!(port.parse::<u16>().is_ok() && time.ends_with('Z') && time.starts_with('2'), "{told}");
    assert!(server.shown("x").await["holders"].as_array().unwrap().is_empty());
    drop(second);
    server.ends().await;
    let reading = Server::with("memory:", |it| it, Serve::allow_locks).await;
    assert_eq!(reading.ask_with("POST", "/v1/break/x", json, "{}").await.0, 404);
    reading.ends().await;
}
