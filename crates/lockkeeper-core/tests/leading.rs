//! The role is given back only after the work has ended, however it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_core::memos::Memos;
use lockkeeper_core::{Key, Locker, Memory};

const HANG: Duration = Duration::from_secs(60);

/// A store in the process answers at once.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(it) => it,
        Poll::Pending => panic!("it waits"),
    }
}

/// Part of the work. When it ends, it looks whether the role is still ours.
struct Work<'a> {
    store: &'a Memory,
    ended: &'a AtomicU32,
    too_late: &'a AtomicBool,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let role = at_once(self.store.show(&Key::new("role").unwrap())).unwrap();
        let held = role.is_some_and(|it| !it.holders.is_empty());
        let told = at_once(Memos::read(self.store, &Key::new("leader:role").unwrap())).unwrap().is_some();
        self.too_late.fetch_or(!held || !told, Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_role_is_given_back_only_after_the_work_has_ended() {
    let store = Memory::default();
    let locker = Locker::new(store.clone());
    let (ended, too_late) = (AtomicU32::new(0), AtomicBool::new(false));
    let work = || Work { store: &store, ended: &ended, too_late: &too_late };
    let campaign = locker.campaign("role", "here");

    // It ends by itself.
    campaign
        .run(async |_| {
            let _work = work();
            tokio::task::yield_now().await;
        })
        .await
        .unwrap();
    // What the work had taken along is a part of it.
    let leads = campaign.win().await.unwrap();
    let part = work();
    let taken_along = std::future::poll_fn(move |_| {
        let _ = &part;
        Poll::Ready(())
    });
    leads.run(taken_along).await.unwrap();
    leads.resign().await.unwrap();
    // Nobody waits for it any more.
    let begun = tokio::sync::Notify::new();
    let dropped = campaign.run(async |_| {
        let _work = work();
        begun.notify_one();
        std::future::pending::<()>().await;
    });
    tokio::select! {
        _ = dropped => panic!("it never ends"),
        () = begun.notified() => {}
    }

    // It is given back all the same: another leads.
    let next = Locker::new(store.clone()).campaign("role", "there").wait_at_most(HANG).win().await.unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 3);
    assert!(!too_late.load(Ordering::SeqCst), "the role was given back, and the work went on");
    next.resign().await.unwrap();
}
