//! Fences grow whatever becomes of the store's data: wiped, restored, restored as another cluster.

use std::time::Duration;

use lockkeeper_core::backend::{Backend, Grant, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Fence, Key, Locker};
use lockkeeper_etcd::Etcd;
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::quorum::{Quorum, claim, soon};

use crate::admin_of::{put, restore, save, wipe};
use crate::common::Servers;

const TTL: Duration = Duration::from_secs(20);

async fn fence(locker: &Locker) -> Fence {
    let guard = soon("a grant", locker.lock("job")).await.unwrap();
    let fence = guard.fence();
    // After a wipe there may be nothing left to give back.
    let _ = guard.release().await;
    fence
}

async fn several(locker: &Locker) -> Fence {
    let mut last = fence(locker).await;
    for _ in 0..20 {
        let next = fence(locker).await;
        assert!(last < next);
        last = next;
    }
    last
}

#[tokio::test]
async fn fences_grow_after_the_store_was_wiped() {
    let servers = Servers::start(1).await;
    let living = servers.locker(TTL).await;
    let before = several(&living).await;
    wipe(servers.first()).await;
    let fresh = servers.locker(TTL).await;
    let after = fence(&fresh).await;
    assert!(before < after, "a process that has just started: {before} → {after}");
    let again = fence(&living).await;
    assert!(after < again, "a process that lived through it: {after} → {again}");
}

async fn restored(same: bool) {
    let servers = Servers::start(1).await;
    let (living, idle) = (servers.locker(TTL).await, servers.locker(TTL).await);
    let first = fence(&idle).await;
    let saved = save(servers.first()).await;
    let before = several(&living).await;
    assert!(first < before);
    restore(servers.first(), &saved, same).await;
    // It has a lease that the restored store knows, and has not seen how far the other came.
    let of_idle = fence(&idle).await;
    assert!(before < of_idle, "a process that lived through it: {before} → {of_idle}");
    let fresh = servers.locker(TTL).await;
    let of_fresh = fence(&fresh).await;
    assert!(of_idle < of_fresh, "a process that has just started: {of_idle} → {of_fresh}");
    let of_living = fence(&living).await;
    assert!(of_fresh < of_living, "a process that has seen larger ones: {of_fresh} → {of_living}");
}

#[tokio::test]
async fn fences_grow_after_a_snapshot_was_restored() {
    restored(true).await;
}

#[tokio::test]
async fn fences_grow_after_a_snapshot_was_restored_as_another_cluster() {
    restored(false).await;
}

#[tokio::test]
async fn a_fresh_process_is_first_after_a_snapshot_was_restored() {
    let servers = Servers::start(1).await;
    let living = servers.locker(TTL).await;
    fence(&living).await;
    let saved = save(servers.first()).await;
    let before = several(&living).await;
    restore(servers.first(), &saved, true).await;
    let fresh = servers.locker(TTL).await;
    let after = fence(&fresh).await;
    assert!(before < after, "{before} → {after}");
}

#[tokio::test]
async fn the_operator_sees_the_fence_of_an_old_holder_too() {
    let servers = Servers::start(1).await;
    let url = servers.url_of_all(TTL);
    let backend = Etcd::connect(&url).await.unwrap();
    let mut place = backend.enter(claim("job", TTL));
    let Turn::Held(Grant { counter, .. }) = place.turn().await.unwrap() else { panic!("it was free") };
    // Others come, and each makes sure that fences are not behind.
    let clock = Clock::boot();
    for _ in 0..2 {
        clock.sleep(Duration::from_millis(100)).await;
        fence_of_another(&url).await;
    }
    let info = Inspect::show(&backend, &Key::new("job").unwrap()).await.unwrap().unwrap();
    assert_eq!(info.holders[0].fence, Some(Fence::of_grant(counter)));
}

async fn fence_of_another(url: &str) {
    let mut other = Etcd::connect(url).await.unwrap().enter(claim("other", TTL));
    assert!(matches!(other.turn().await.unwrap(), Turn::Held(_)));
    other.leave().await.unwrap();
}

/// A holder's key came after the snapshot that is restored, its lease before; then the store comes as far as it was.
async fn a_forgotten_holder(overtaken: bool) {
    let servers = Servers::start(1).await;
    let server = servers.first();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let backend = Etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let mut warm = backend.enter(claim("warm", TTL));
    assert!(matches!(warm.turn().await.unwrap(), Turn::Held(_)));
    let saved = save(server).await;
    let mut place = backend.enter(claim("job", TTL));
    assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
    // From now on it is not looked at any more, but told.
    assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }));
    proxy.refuse().await.unwrap();
    proxy.cut();
    restore(server, &saved, true).await;
    for at in 0..if overtaken { 50 } else { 0 } {
        put(server, "other", &at.to_string()).await;
    }
    proxy.accept().await.unwrap();
    soon("the loss", async {
        while !matches!(place.renew().await, Ok(Renewal::Lost)) {
            // As the keeper does between two renewals.
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // Nothing of it is left, and it can be had again.
    place.leave().await.unwrap();
    let _ = warm.leave().await;
    let again = servers.locker(TTL).await;
    soon("the lock", again.lock("job")).await.unwrap().release().await.unwrap();
    soon("the other lock", again.lock("warm")).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_the_restored_store_does_not_know_is_told() {
    a_forgotten_holder(false).await;
}

#[tokio::test]
async fn a_holder_that_the_restored_store_does_not_know_is_told_also_when_it_has_come_as_far_again() {
    a_forgotten_holder(true).await;
}

#[tokio::test]
async fn what_was_given_back_after_the_snapshot_does_not_come_back_with_it() {
    let servers = Servers::start(1).await;
    let (here, there) = (servers.locker(TTL).await, servers.locker(TTL).await);
    let guard = here.lock("job").await.unwrap();
    let saved = save(servers.first()).await;
    guard.release().await.unwrap();
    several(&there).await;
    restore(servers.first(), &saved, true).await;
    // The claim is there again, under a lease of a process that lives.
    soon("the lock", there.lock("job")).await.unwrap().release().await.unwrap();
}
