//! The console in a real browser: live, inert, and usable with a keyboard. One browser for all cases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/browser.rs"]
mod browser;
mod common;

use std::time::Duration;

use browser::Browser;
use common::{Server, sqlite, until};
use lockkeeper_serve::{HotNames, InDoubt, InDoubts, Serve};
use lockkeeper_servers::{Redis, RedisOptions};
use thirtyfour::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_in_a_real_browser() {
    let browser = Browser::start().await;
    what_breaks_the_policy_is_seen(&browser).await;
    locks_come_and_go(&browser).await;
    a_lock_of_another_process_is_seen_until_its_ttl(&browser).await;
    hostile_names_are_inert(&browser).await;
    a_thousand_locks_stay_usable(&browser).await;
    a_store_that_dies_and_comes_back(&browser).await;
    a_holder_is_broken_by_hand(&browser).await;
    whoever_came_after_the_one_that_was_shown_is_spared(&browser).await;
    roles_permits_hot_names_and_doubts(&browser).await;
    browser.ends().await;
}

/// What no page of ours does.
const NONE: [&str; 0] = [];

/// The other cases say that nothing breaks the policy of a page: here something does, and is blocked.
async fn what_breaks_the_policy_is_seen(browser: &Browser) {
    let server = Server::at("memory:").await;
    browser.enter(&server).await;
    assert_eq!(browser.violations().await, NONE);
    let plant = "const it = document.createElement('script'); it.textContent = 'window.planted = 1'; \
         document.body.append(it); new Image().src = 'https://elsewhere.invalid/x.png';";
    browser.js(plant).await;
    assert!(browser.js("return window.planted").await.is_null());
    assert_eq!(browser.violations().await, ["inline", "https://elsewhere.invalid/x.png"]);
    server.ends().await;
}

async fn locks_come_and_go(browser: &Browser) {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    browser.enter(&server).await;
    browser.open(&server, "/locks").await;
    browser.shows("#link", "live").await;
    browser.shows("#live", "No lock is held").await;
    let (first, granted) = server.lock("orders%2F42?note=import&ttl=60s").await;
    browser.shows("table.list", "orders/42").await;
    browser.shows("table.list", granted["fence"].as_str().unwrap()).await;
    // It counts down between two answers of the server.
    let left = browser.text("[data-left]").await;
    until("it counts down", || async { browser.text("[data-left]").await != left }).await;
    // A second window is told, too.
    let one = browser.driver.window().await.unwrap();
    let other = browser.driver.new_tab().await.unwrap();
    browser.driver.switch_to_window(other).await.unwrap();
    browser.open(&server, "/").await;
    browser.shows("#live", "orders/42").await;
    drop(first);
    browser.hides("#live", "orders/42").await;
    browser.driver.close_window().await.unwrap();
    browser.driver.switch_to_window(one).await.unwrap();
    browser.hides("#live", "orders/42").await;
    // With keys alone: to the search by its key, and to the lock by its link.
    let (_held, _) = server.lock("by-keyboard?ttl=60s").await;
    browser.shows("table.list", "by-keyboard").await;
    browser.type_into("body", "/").await;
    assert_eq!(browser.js("return document.activeElement.id").await, "q");
    let search = browser.driver.find(By::Id("q")).await.unwrap();
    search.send_keys("keyb" + Key::Enter).await.unwrap();
    browser.shows("#count", "1 lock").await;
    browser.press_for("table.list td a", &Key::Enter, ("p.name", "by-keyboard")).await;
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

/// The store of the process that holds.
const HOLDER: &str = "LOCKKEEPER_TEST_HOLDER";

/// Holds a lock until it is killed, if it is started by the test below. Nothing otherwise.
#[tokio::test]
async fn a_holder_in_its_own_process() {
    let Ok(url) = std::env::var(HOLDER) else { return };
    let locker = lockkeeper::connect(&url).await.unwrap();
    let _held = locker.lock("by-child").ttl(Duration::from_secs(3)).note("a child").await.unwrap();
    // Nobody holds on after the test that started it.
    lockkeeper_core::Clock::boot().sleep(common::HANG).await;
}

/// It is shown with its process, counts down, and is gone when the process is.
async fn a_lock_of_another_process_is_seen_until_its_ttl(browser: &Browser) {
    let (_folder, url) = sqlite();
    let server = Server::at(&url).await;
    browser.enter(&server).await;
    browser.open(&server, "/locks").await;
    browser.shows("#live", "No lock is held").await;
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_holder_in_its_own_process"])
        .env(HOLDER, &url)
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    browser.shows("table.list", "by-child").await;
    browser.shows("table.list", "a child").await;
    let left = browser.text("[data-left]").await;
    until("it counts down", || async { browser.text("[data-left]").await != left }).await;
    child.kill().await.unwrap();
    browser.hides("#live", "by-child").await;
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

async fn hostile_names_are_inert(browser: &Browser) {
    let server = Server::at("memory:").await;
    let hostile = "%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E";
    let (_one, granted) =
        server.lock(&format!("{hostile}?note=%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E")).await;
    let (_two, _) = server.lock("%E2%80%AEgpj.%F0%9F%94%92").await;
    browser.enter(&server).await;
    browser.open(&server, "/locks").await;
    browser.shows("table.list", granted["name"].as_str().unwrap()).await;
    browser.shows("table.list", "\u{202e}gpj.🔒").await;
    browser.open(&server, &format!("/locks/{hostile}")).await;
    browser.shows("p.name", granted["name"].as_str().unwrap()).await;
    browser.shows("#live", "<script>window.hacked").await;
    browser.shows("#link", "live").await;
    assert!(browser.js("return window.hacked").await.is_null());
    assert_eq!(browser.js("return document.querySelectorAll('main img, main script').length").await, 0);
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

async fn a_thousand_locks_stay_usable(browser: &Browser) {
    let server = Server::at("memory:").await;
    let mut held = Vec::new();
    for number in 0..1000 {
        held.push(server.lock(&format!("many%2F{number:04}?ttl=60s&note=worker%20{}", number % 7)).await.0);
    }
    browser.enter(&server).await;
    browser.open(&server, "/locks").await;
    browser.shows("#count", "1000 locks; 500 more").await;
    assert_eq!(browser.js("return document.querySelectorAll('table.list tbody tr').length").await, 500);
    let search = browser.driver.find(By::Id("q")).await.unwrap();
    search.send_keys("0999" + Key::Enter).await.unwrap();
    browser.shows("#count", "1 lock").await;
    browser.open(&server, "/locks?sort=held").await;
    pictures(browser, "locks").await;
    browser.open(&server, "/").await;
    browser.shows("#live", "1000").await;
    pictures(browser, "overview").await;
    drop(held);
    browser.shows("#live", "Held0").await;
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

/// Light, dark, and on a phone.
async fn pictures(browser: &Browser, name: &str) {
    browser.js("document.documentElement.style.colorScheme = 'light'").await;
    browser.picture(&format!("{name}-light")).await;
    browser.js("document.documentElement.style.colorScheme = 'dark'").await;
    browser.picture(&format!("{name}-dark")).await;
    browser.driver.set_window_rect(0, 0, 390, 844).await.unwrap();
    let fits = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(browser.js(fits).await, true, "{name} is wider than a phone");
    browser.picture(&format!("{name}-phone")).await;
    browser.driver.set_window_rect(0, 0, 1280, 900).await.unwrap();
}

async fn a_store_that_dies_and_comes_back(browser: &Browser) {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let outage = |it: lockkeeper::LockerBuilder| it.outage_max(Duration::from_millis(300));
    let server = Server::with(&format!("{}?timeout=300ms", redis.url()), outage, Serve::allow_locks).await;
    browser.enter(&server).await;
    browser.shows("#live", "reachable").await;
    redis.kill().unwrap();
    browser.shows("#live .banner", "cannot be seen").await;
    browser.picture("store-gone").await;
    redis.start().await.unwrap();
    browser.shows("#live", "reachable").await;
    browser.hides("#live", "cannot be seen").await;
    browser.open(&server, "/doctor").await;
    browser.shows("h1", "Doctor").await;
    pictures(browser, "doctor").await;
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

async fn a_holder_is_broken_by_hand(browser: &Browser) {
    let (_folder, url) = sqlite();
    let server = Server::with(&url, |it| it, |it| it.allow_locks().allow_break()).await;
    let (mut held, _) = server.lock("orders%2F42?ttl=12s&note=nightly%20import").await;
    let other = Server::at(&url).await;
    let mut waiting = other.connect().await;
    let request = format!("{}\r\n", other.head("POST", "/v1/locks/orders%2F42?ttl=60s"));
    tokio::io::AsyncWriteExt::write_all(&mut waiting, request.as_bytes()).await.unwrap();
    browser.enter(&server).await;
    browser.open(&server, "/locks/orders%2F42").await;
    browser.shows("ol.line", "waiting for").await;
    pictures(browser, "lock").await;
    // From here on with keys alone.
    browser.press("button.break", &Key::Enter).await;
    let sure = "return document.querySelector('dialog button.danger').disabled";
    assert_eq!(browser.js(sure).await, true, "the name must be typed");
    assert_eq!(browser.js("return document.activeElement.id").await, "typed");
    browser.driver.active_element().await.unwrap().send_keys("orders/42").await.unwrap();
    assert_eq!(browser.js(sure).await, false);
    browser.js("document.documentElement.style.colorScheme = 'light'").await;
    browser.picture("break-light").await;
    browser.driver.active_element().await.unwrap().send_keys("" + Key::Enter).await.unwrap();
    assert_eq!(held.event_of("lost").await["reason"], "taken");
    browser.shows("#live", "Nobody waits").await;
    browser.shows("ul.changes", "no longer holds it").await;
    assert_eq!(browser.violations().await, NONE);
    drop((held, waiting));
    other.ends().await;
    server.ends().await;
}

/// The dialog is open while the lock changes hands: nothing is broken, and the dialog says so.
async fn whoever_came_after_the_one_that_was_shown_is_spared(browser: &Browser) {
    let (_folder, url) = sqlite();
    let server = Server::with(&url, |it| it, |it| it.allow_locks().allow_break()).await;
    let (first, seen) = server.lock("orders%2F42?ttl=60s").await;
    browser.enter(&server).await;
    browser.open(&server, "/locks/orders%2F42").await;
    browser.shows("dl", seen["fence"].as_str().unwrap()).await;
    browser.click("button.break").await;
    drop(first);
    let (_second, now) = server.lock("orders%2F42?ttl=60s").await;
    browser.type_into("#typed", "orders/42").await;
    browser.click("dialog button.danger").await;
    browser.shows("dialog", "nothing was broken").await;
    browser.picture("break-refused").await;
    assert_eq!(server.shown("orders%2F42").await["holders"][0]["fence"], now["fence"]);
    // Escape closes a dialog, and the page goes on.
    browser.press("#typed", &Key::Escape).await;
    until("the dialog is closed", || async {
        browser.js("return document.querySelectorAll('dialog').length").await == 0
    })
    .await;
    browser.shows("dl", now["fence"].as_str().unwrap()).await;
    assert_eq!(browser.violations().await, NONE);
    server.ends().await;
}

async fn roles_permits_hot_names_and_doubts(browser: &Browser) {
    let (_folder, url) = sqlite();
    let hot = HotNames::default();
    let observed = hot.clone();
    let serve = move |it: Serve| it.allow_locks().hot_names(hot).two_phase(|| async { Ok(in_doubt()) });
    let server = Server::with(&url, move |it| it.observer(observed), serve).await;
    let mut role = server.begin("POST", "/v1/leaders/scheduler?value=10.0.0.7%3A8080&ttl=60s").await;
    assert_eq!(role.event().await["event"], "granted");
    let mut held = Vec::new();
    for path in ["mail?permits=3/5", "mail?permits=1/5", "prices?shared=true", "orders%2F42?note=import"] {
        held.push(server.lock(&format!("{path}&ttl=60s")).await);
    }
    browser.enter(&server).await;
    browser.open(&server, "/rooms").await;
    browser.shows("#live", "10.0.0.7:8080").await;
    browser.shows("#live", "4 of 5").await;
    browser.shows("#live", "prices").await;
    pictures(browser, "rooms").await;
    browser.open(&server, "/hot").await;
    browser.shows("#live", "mail").await;
    pictures(browser, "hot").await;
    browser.open(&server, "/two-phase").await;
    browser.shows("#live", "undecided").await;
    assert_eq!(
        browser.js("return document.querySelectorAll('main button').length").await,
        0,
        "nothing to press"
    );
    pictures(browser, "two-phase").await;
    assert_eq!(browser.violations().await, NONE);
    drop((role, held));
    server.ends().await;
}

/// One that nobody works on, and one that somebody finishes.
fn in_doubt() -> InDoubts {
    let mut lost = InDoubt::new("lk1.shop.3.1789.1795000000.9f3c");
    lost.state = "undecided".into();
    lost.note = "order 42".into();
    lost.begun = lockkeeper_core::clock::time_of_day().checked_sub(Duration::from_secs(90));
    lost.branches = vec![("orders".into(), "prepared".into()), ("stock".into(), "prepared".into())];
    lost.commands =
        vec!["lockkeeper 2pc recover".into(), format!("lockkeeper 2pc resolve {} --commit|--abort", lost.id)];
    let mut attended = InDoubt::new("lk1.shop.4.1790.1795000100.77aa");
    attended.state = "commit".into();
    attended.attended = true;
    attended.branches = vec![("orders".into(), "ended".into()), ("stock".into(), "prepared".into())];
    InDoubts::new(vec![lost, attended], vec!["not asked: audit: no connection".into()])
}
