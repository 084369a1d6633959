//! One owner that asks twice at once, as futures that one task polls side by side do: what must not run twice does not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::buckets::{Buckets, Start};
use lockkeeper_core::{Error, Locker, Memory, Once, Owner};
use tokio::task::yield_now;

const HANG: Duration = Duration::from_secs(20);

/// Somebody is inside, and nobody else.
struct Alone<'a>(&'a AtomicBool);

impl<'a> Alone<'a> {
    fn goes_in(inside: &'a AtomicBool) -> Self {
        assert!(!inside.swap(true, Ordering::SeqCst), "two of one owner are inside at once");
        Alone(inside)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A store that only its locker can reach, and one that others can.
fn private_and_shared() -> [(Memory, Option<Memory>); 2] {
    let shared = Memory::default();
    [(Memory::default(), None), (shared.clone(), Some(shared))]
}

#[tokio::test]
async fn two_campaigns_of_one_owner_lead_one_after_the_other() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let (inside, terms) = (AtomicBool::new(false), AtomicU64::new(0));
        let campaign = locker.campaign("role", "here");
        let lead = || {
            campaign.run(async |leads| {
                let _alone = Alone::goes_in(&inside);
                let before = terms.swap(leads.term().get(), Ordering::SeqCst);
                assert!(before < leads.term().get(), "terms grow from leader to leader");
                for _ in 0..10 {
                    yield_now().await;
                }
                let seen = locker.leader("role").await.unwrap().expect("we lead");
                assert_eq!(seen.term, leads.term(), "another one's end is told as ours");
            })
        };
        let owner = Owner::new("x");
        let both = owner.scope(async { tokio::join!(lead(), lead()) });
        let (one, other) = tokio::time::timeout(HANG, both).await.expect("they wait for each other");
        one.and(other).unwrap();
        assert_eq!(locker.lines(), 0);
    }
}

/// Two runs of one tick: by an owner's scope, or by an owner that was named.
#[tokio::test]
async fn two_runs_of_one_owner_do_a_tick_once() {
    for (store, _others) in private_and_shared() {
        let (locker, owner) = (Locker::new(store), Owner::new("x"));
        let (inside, runs) = (AtomicBool::new(false), AtomicU32::new(0));
        let run = async |tick: &str, owner: Option<&Owner>| {
            let once = locker.once("nightly", tick);
            let once = if let Some(owner) = owner { once.owner(owner) } else { once };
            let ran = once.run(async |_| {
                let _alone = Alone::goes_in(&inside);
                yield_now().await;
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Error>(())
            });
            ran.await.unwrap()
        };
        let in_scope = owner.scope(async { tokio::join!(run("1", None), run("1", None)) });
        let outcomes = tokio::time::timeout(HANG, in_scope).await.expect("they wait for each other");
        assert!(
            matches!(outcomes, (Once::Ran(()), Once::Done) | (Once::Done, Once::Ran(()))),
            "{outcomes:?}"
        );
        let named = async { tokio::join!(run("2", Some(&owner)), run("3", Some(&owner))) };
        let outcomes = tokio::time::timeout(HANG, named).await.expect("they wait for each other");
        assert_eq!(outcomes, (Once::Ran(()), Once::Ran(())), "two ticks, one after the other");
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}

/// A job that is a locked function of the same name goes in: it is the same owner, and there is one of it.
#[tokio::test]
async fn a_job_may_take_the_lock_of_its_name_again() {
    let locker = Locker::new(Memory::default());
    let (locker, owner) = (&locker, Owner::new("x"));
    let job = owner.scope(async {
        let job = locker.once("nightly", "1").run(async |guard| {
            let again = locker.lock("nightly").await?;
            assert_eq!(again.fence(), guard.fence());
            again.release().await
        });
        job.await
    });
    let ran = tokio::time::timeout(HANG, job).await.expect("it waits for itself");
    assert_eq!(ran.unwrap(), Once::Ran(()));
    assert_eq!(locker.lines(), 0);
}

#[tokio::test]
async fn a_bucket_that_an_owner_has_is_not_free_for_it() {
    for (store, _others) in private_and_shared() {
        let locker = Locker::new(store);
        let stock = Buckets::new(&locker, "stock", 2).unwrap();
        let owner = Owner::new("x");
        let both = owner.scope(async {
            let first = stock.lock(Start::At(0), HANG).await.unwrap();
            let second = stock.lock(Start::At(0), HANG).await.unwrap();
            assert_eq!((first.index(), second.index()), (0, 1), "two of one owner sell from one bucket");
            assert!(stock.try_lock(Start::At(0)).await.unwrap().is_none());
            let mut sweep = stock.sweep(Start::At(0));
            assert!(sweep.next_free().await.unwrap().is_none());
            assert_eq!(sweep.taken(), 2, "what we have ourselves is taken, not empty");
            let (mut third, mut first) = (Box::pin(stock.lock(Start::At(0), HANG)), Some(first));
            let third = std::future::poll_fn(|cx| {
                let polled = third.as_mut().poll(cx);
                assert!(polled.is_pending() || first.is_none(), "it waits until one is given back");
                first = None;
                polled
            });
            assert_eq!(third.await.unwrap().index(), 0);
        });
        tokio::time::timeout(HANG, both).await.expect("nobody gives it back");
    }
}

#[tokio::test]
async fn an_owner_whose_permits_leave_no_room_for_more_is_refused_at_once() {
    for (store, _others) in private_and_shared() {
        let (locker, owner) = (Locker::new(store), Owner::new("x"));
        let ask = |count| locker.permits("k", count, 5).owner(&owner);
        let two = ask(2).await.unwrap();
        let four = ask(2).await.unwrap();
        let refused = tokio::time::timeout(HANG, ask(2)).await.expect("it waits for itself").unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        assert!(refused.to_string().contains("holds 4 of 5 already and would wait for itself"), "{refused}");
        // One is left, and whatever others have is waited for.
        let five = ask(1).await.unwrap();
        five.release().await.unwrap();
        four.release().await.unwrap();
        let other = locker.permits("k", 3, 5).owner(&Owner::new("y")).await.unwrap();
        let mut waits = tokio::spawn(ask(2));
        yield_now().await;
        assert!(!waits.is_finished(), "two and two fit, but for another owner's three");
        other.release().await.unwrap();
        drop(tokio::time::timeout(HANG, &mut waits).await.unwrap().unwrap().unwrap());
        // The smallest total counts.
        let refused = locker.permits("k", 2, 3).owner(&owner).await.unwrap_err();
        assert!(refused.to_string().contains("holds 2 of 5 already"), "{refused}");
        two.release().await.unwrap();
        assert_eq!(locker.lines(), 0);
    }
}
