//! How often the store is asked for what a page shows, however many browsers ask for the page.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Server, TOKEN, within};
use lockkeeper_core::backend::{Backend, Profile, Result};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::memory::MemoryPlace;
use lockkeeper_core::memos::{DynMemos, Memo, Memos, Swap};
use lockkeeper_core::{Claim, Key, Locker, Memory};
use lockkeeper_serve::Serve;
use tokio::io::AsyncReadExt as _;

/// A store that counts lists and readings of memos.
#[derive(Clone, Debug, Default)]
struct Counted {
    store: Memory,
    lists: Arc<AtomicU64>,
    readings: Arc<AtomicU64>,
}

impl Counted {
    fn asked(&self) -> (u64, u64) {
        (self.lists.load(Ordering::SeqCst), self.readings.load(Ordering::SeqCst))
    }
}

impl Backend for Counted {
    type Place = MemoryPlace;

    fn profile(&self) -> Profile {
        self.store.profile()
    }

    fn enter(&self, claim: Claim) -> MemoryPlace {
        self.store.enter(claim)
    }

    fn memos(&self) -> Option<Arc<dyn DynMemos>> {
        Some(Arc::new(self.clone()))
    }
}

impl Memos for Counted {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        self.readings.fetch_add(1, Ordering::SeqCst);
        Memos::read(&self.store, key).await
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        Memos::swap(&self.store, key, seen, value, keep).await
    }
}

impl Inspect for Counted {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        Inspect::list(&self.store, prefix).await
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        Inspect::show(&self.store, key).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        Inspect::break_lock(&self.store, key).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Inspect::doctor(&self.store).await
    }
}

async fn page(server: &Server, path: &str) -> String {
    let request = format!("{}Connection: close\r\n\r\n", server.head("GET", path));
    let (mut answer, mut text) = (server.begin_with(&request).await, String::new());
    assert_eq!(answer.status, 200, "{path}");
    within("the page", answer.reader.read_to_string(&mut text)).await.unwrap();
    text
}

#[tokio::test]
async fn the_page_of_a_role_asks_who_leads_once_for_each_look() {
    let store = Counted::default();
    let serve = Serve::new(Locker::new(store.clone()), store.clone(), TOKEN).unwrap().allow_locks();
    let server = Server::running(serve, Arc::new(store.clone())).await;
    let mut role = server.begin("POST", "/v1/leaders/scheduler?value=one&ttl=600s").await;
    assert_eq!(role.event().await["event"], "granted");
    let before = store.asked();
    for _ in 0..100 {
        assert!(page(&server, "/locks/scheduler").await.contains("<bdi>one</bdi>"));
        assert!(!page(&server, "/locks/another").await.contains("Leads"));
    }
    let after = store.asked();
    let (looks, readings) = (after.0 - before.0, after.1 - before.1);
    // Two names, each of which is asked about.
    assert!(2 <= readings && readings <= 2 * looks, "{readings} readings, {looks} looks");
    for _ in 0..100 {
        assert!(page(&server, "/rooms").await.contains("<bdi>one</bdi>"));
    }
    let (looks, readings) = (store.asked().0 - before.0, store.asked().1 - after.1);
    // One lock is held, and it is asked of that one.
    assert!(1 <= readings && readings <= looks, "{readings} readings, {looks} looks");
    drop(role);
    server.ends().await;
}
