//! What the tests of this crate share: claims, servers, and waiting with a limit.
#![allow(dead_code, reason = "each test file uses its part")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Grant, Place, Turn};
use lockkeeper_core::{Claim, Clock, Key, Label, Load};

/// No test waits longer than this for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const TTL: Duration = Duration::from_secs(5);

/// A patient claim for a mutex.
pub(crate) fn claim(name: &str) -> Claim {
    claim_of(name, TTL, 1, 1)
}

pub(crate) fn claim_of(name: &str, ttl: Duration, weight: u32, capacity: u32) -> Claim {
    Claim::new(Key::new(name).unwrap(), ttl)
        .unwrap()
        .load(Load::new(weight, capacity))
        .labelled(Arc::new(Label::of_this_process().with(Some("owner"), Some("note"))))
}

pub(crate) fn impatient(name: &str) -> Claim {
    claim(name).impatient()
}

/// Fail instead of hanging.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        done = future => done,
        () = Clock::boot().sleep(LIMIT) => panic!("{what} took longer than {LIMIT:?}"),
    }
}

pub(crate) async fn held(place: &mut impl Place) -> Grant {
    match place.turn().await.unwrap() {
        Turn::Held(grant) => grant,
        Turn::Wait { recheck, ahead, .. } => panic!("must wait: {recheck:?}, {ahead:?} ahead"),
    }
}

pub(crate) async fn waits(place: &mut impl Place) -> (Duration, Option<u64>) {
    match place.turn().await.unwrap() {
        Turn::Held(grant) => panic!("holds already: {grant:?}"),
        Turn::Wait { recheck, ahead, .. } => (recheck, ahead),
    }
}

/// Wait as the keeper does: for a sign or the recheck, whichever is first.
pub(crate) async fn until_held(place: &mut impl Place) -> Grant {
    within("becoming holder", async {
        loop {
            match place.turn().await {
                Ok(Turn::Held(grant)) => return grant,
                Ok(Turn::Wait { recheck, .. }) => {
                    tokio::select! {
                        () = place.changed() => {}
                        () = Clock::boot().sleep(recheck) => {}
                    }
                }
                Err(fault) => {
                    assert!(fault.is_transient(), "{fault}");
                    Clock::boot().sleep(Duration::from_millis(20)).await;
                }
            }
        }
    })
    .await
}
