//! Nodes that are down, stuck, mute: minorities do not matter, majorities are told, nothing is left behind.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::time::Duration;

use common::{Cluster, Mode, Shaky, TTL, claim, held, must_wait, still_holds};
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::{Load, Locker, Memory};
use lockkeeper_redlock::{Redlock, RedlockOptions};

const BAD: [Mode; 3] = [Mode::Down, Mode::Stuck, Mode::Mute];

/// All sets of at most `most` of `nodes` nodes.
fn sets(nodes: usize, sizes: std::ops::RangeInclusive<usize>) -> Vec<Vec<usize>> {
    (0_usize..1 << nodes)
        .map(|bits| (0..nodes).filter(|it| bits >> it & 1 == 1).collect::<Vec<_>>())
        .filter(|it| sizes.contains(&it.len()))
        .collect()
}

#[test]
fn the_lock_works_with_every_minority_gone() {
    for minority in sets(5, 0..=2) {
        for mode in BAD {
            let cluster = Cluster::of(5);
            let redlock = cluster.redlock();
            cluster.set(minority.clone(), mode);
            cluster.run(async {
                let (mut one, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
                let before = held(&mut one).await;
                must_wait(&mut other).await;
                still_holds(&mut one).await;
                one.leave().await.unwrap();
                let after = held(&mut other).await;
                assert!(before.counter < after.counter, "{minority:?} {mode:?}");
                other.leave().await.unwrap();
                cluster.heal();
                cluster.all_empty().await;
            });
        }
    }
}

#[test]
fn the_lock_survives_every_minority_that_goes_while_it_is_held() {
    for minority in sets(5, 1..=2) {
        for mode in BAD {
            let cluster = Cluster::of(5);
            let redlock = cluster.redlock();
            cluster.run(async {
                let (mut one, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
                held(&mut one).await;
                cluster.set(minority.clone(), mode);
                for _ in 0..6 {
                    cluster.clock.sleep(TTL / 3).await;
                    still_holds(&mut one).await;
                    must_wait(&mut other).await;
                }
                one.leave().await.unwrap();
                held(&mut other).await;
                other.leave().await.unwrap();
                cluster.heal();
                cluster.all_empty().await;
            });
        }
    }
}

#[test]
fn without_a_majority_nobody_is_granted_and_what_arrives_late_is_given_back() {
    for majority in sets(3, 2..=3) {
        for mode in BAD {
            let cluster = Cluster::of(3);
            let redlock = cluster.redlock();
            cluster.set(majority.clone(), mode);
            cluster.run(async {
                let mut unlucky = redlock.enter(claim());
                let fault = unlucky.turn().await.unwrap_err();
                assert!(fault.is_transient(), "{fault}");
                assert!(fault.message.contains("2 of 3 nodes are needed"), "{fault}");
                // The keeper asks again and again; no node may collect calls meanwhile.
                for _ in 0..5 {
                    unlucky.turn().await.unwrap_err();
                }
                cluster.heal();
                cluster.all_empty().await;
                let mut other = redlock.enter(claim());
                held(&mut other).await;
            });
            for node in &cluster.nodes {
                assert!(node.open_max() <= 2, "{} calls under way at once to {node:?}", node.open_max());
            }
        }
    }
}

#[test]
fn a_place_dropped_in_the_middle_of_a_call_leaves_nothing() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.set(0..3, Mode::Mute);
    cluster.run(async {
        let mut place = redlock.enter(claim());
        tokio::select! {
            biased;
            _ = place.turn() => panic!("nobody answers"),
            () = cluster.clock.sleep(Duration::from_millis(1)) => {}
        }
        drop(place);
        assert!(!cluster.nodes[0].store().is_empty(), "the call was carried out");
        cluster.heal();
        cluster.all_empty().await;
    });
}

#[test]
fn a_slow_node_that_gives_the_lock_late_is_counted_from_then_on() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.set([2], Mode::Stuck);
    cluster.run(async {
        let mut place = redlock.enter(claim());
        held(&mut place).await;
        cluster.heal();
        still_holds(&mut place).await;
        cluster.set([0], Mode::Down);
        still_holds(&mut place).await;
        place.leave().await.unwrap();
    });
}

#[test]
fn a_renewal_is_unknown_without_a_majority_and_known_again_with_one() {
    for majority in sets(3, 2..=3) {
        for mode in BAD {
            let cluster = Cluster::of(3);
            let redlock = cluster.redlock();
            cluster.run(async {
                let mut place = redlock.enter(claim());
                held(&mut place).await;
                cluster.set(majority.clone(), mode);
                assert!(place.renew().await.unwrap_err().is_transient());
                cluster.heal();
                still_holds(&mut place).await;
                place.leave().await.unwrap();
                cluster.all_empty().await;
            });
        }
    }
}

#[test]
fn a_lock_that_a_majority_forgot_is_lost_and_one_that_a_minority_forgot_is_not() {
    let cluster = Cluster::of(5);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut place = redlock.enter(claim());
        held(&mut place).await;
        cluster.nodes[0].forget();
        cluster.nodes[3].forget();
        still_holds(&mut place).await;
        cluster.nodes[4].forget();
        assert_eq!(place.renew().await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn a_node_that_forgot_is_taken_back_once_it_may_vote() {
    for nodes in [3, 5] {
        let cluster = Cluster::of(nodes);
        let redlock = cluster.redlock();
        cluster.run(async {
            let (mut place, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
            let grant = held(&mut place).await;
            // One after the other, all nodes forget: never a majority at once, in the end every one.
            for forgetful in &cluster.nodes {
                forgetful.forget();
                assert!(forgetful.store().is_empty());
                for _ in 0..5 {
                    cluster.clock.sleep(TTL / 3).await;
                    still_holds(&mut place).await;
                    must_wait(&mut other).await;
                }
                assert!(!forgetful.store().is_empty(), "it was not taken back");
            }
            place.leave().await.unwrap();
            assert!(grant.counter < held(&mut other).await.counter);
            other.leave().await.unwrap();
            cluster.all_empty().await;
        });
    }
}

#[test]
fn a_node_that_forgot_is_not_taken_back_before_it_may_vote() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut place = redlock.enter(claim());
        held(&mut place).await;
        cluster.nodes[0].forget();
        for _ in 0..2 {
            cluster.clock.sleep(TTL / 3).await;
            still_holds(&mut place).await;
        }
        assert!(cluster.nodes[0].store().is_empty());
        cluster.nodes[1].forget();
        assert_eq!(place.renew().await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn a_node_is_not_taken_back_from_somebody_else_nor_after_the_lock_was_given_back() {
    let cluster = Cluster::of(3);
    let redlock = Redlock::lazy(cluster.options().without_restart_guard()).unwrap();
    cluster.run(async {
        let (mut place, mut stranger) = (redlock.enter(claim()), cluster.nodes[0].enter(claim()));
        held(&mut place).await;
        cluster.nodes[0].forget();
        held(&mut stranger).await;
        still_holds(&mut place).await;
        still_holds(&mut place).await;
        still_holds(&mut stranger).await;
        stranger.leave().await.unwrap();
        // The node gets stuck while it is asked, and answers when the lock has been given back.
        cluster.nodes[0].before_raise(|it| it.set(Mode::Stuck));
        still_holds(&mut place).await;
        cluster.clock.sleep(TTL / 10).await;
        place.leave().await.unwrap();
        cluster.heal();
        cluster.all_empty().await;
    });
}

#[test]
fn a_node_that_is_gone_is_waited_for_once_and_not_by_every_caller() {
    for mode in BAD {
        for nodes in [3, 5] {
            let cluster = Cluster::of(nodes);
            let redlock = cluster.redlock();
            cluster.run(async {
                cluster.set([1], mode);
                let mut first = redlock.enter(claim());
                held(&mut first).await;
                first.leave().await.unwrap();
                let started = cluster.clock.now();
                for _ in 0..20 {
                    let mut place = redlock.enter(claim());
                    held(&mut place).await;
                    place.leave().await.unwrap();
                }
                assert_eq!(cluster.clock.now(), started, "{mode:?}: somebody waited");
                // Asked from time to time, it is soon found to be back.
                cluster.heal();
                cluster.clock.sleep(TTL / 5).await;
                let mut place = redlock.enter(claim());
                held(&mut place).await;
                cluster.clock.sleep(TTL / 100).await;
                place.leave().await.unwrap();
                let mut place = redlock.enter(claim());
                held(&mut place).await;
                assert!(cluster.nodes.iter().all(|it| !it.store().is_empty()), "{mode:?}: it is left out");
                place.leave().await.unwrap();
                cluster.all_empty().await;
            });
            let asked = cluster.nodes[1].open_max();
            assert!(asked <= 3, "{mode:?}: {asked} calls under way at once to a node that does not answer");
        }
    }
}

#[test]
fn a_node_that_failed_a_moment_ago_is_asked_where_its_vote_decides() {
    for mode in BAD {
        let cluster = Cluster::of(3);
        let redlock = cluster.redlock();
        cluster.run(async {
            for gone in [0, 1, 2, 1, 0, 2] {
                cluster.set([gone], mode);
                let mut place = redlock.enter(claim());
                held(&mut place).await;
                place.leave().await.unwrap();
                cluster.heal();
            }
        });
    }
}

#[test]
fn a_release_needs_a_majority_and_is_repeated_for_the_rest() {
    for mode in BAD {
        let cluster = Cluster::of(5);
        let redlock = cluster.redlock();
        cluster.run(async {
            let (mut one, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
            held(&mut one).await;
            cluster.set(0..3, mode);
            assert!(one.leave().await.unwrap_err().is_transient());
            cluster.set([0], Mode::Up);
            one.leave().await.unwrap();
            held(&mut other).await;
            other.leave().await.unwrap();
            cluster.heal();
            cluster.all_empty().await;
        });
    }
}

#[test]
fn a_grant_is_worth_less_than_its_ttl_and_never_more_than_a_majority_keeps_it() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let (mut one, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
        let asked_at = cluster.clock.now();
        let grant = held(&mut one).await;
        assert!(grant.valid_for + TTL / 100 <= TTL, "{:?}", grant.valid_for);
        while cluster.clock.now() < asked_at.after(grant.valid_for) {
            must_wait(&mut other).await;
            cluster.clock.sleep(TTL / 50).await;
        }
    });
}

#[test]
fn answers_that_come_when_the_lease_is_over_are_no_grant() {
    let cluster = Cluster::of(3);
    let options = cluster.options().node_timeout(TTL * 2);
    assert!(Redlock::lazy(options).is_err(), "the timeout is longer than any lease");
    let options = cluster.options().node_timeout(TTL / 5);
    let redlock = Redlock::lazy(options).unwrap();
    cluster.run(async {
        let mut place = redlock.enter(claim().ttl(TTL / 10));
        cluster.set(0..3, Mode::Mute);
        let late = async {
            cluster.clock.sleep(TTL / 8).await;
            cluster.heal();
        };
        let (turn, ()) = tokio::join!(place.turn(), late);
        assert!(matches!(turn, Ok(Turn::Wait { .. })), "{turn:?}");
        cluster.all_empty().await;
    });
}

#[test]
fn a_confirmation_that_comes_when_the_lease_is_over_is_no_grant() {
    let cluster = Cluster::of(3);
    let redlock = Redlock::lazy(cluster.options().node_timeout(TTL / 5)).unwrap();
    for node in &cluster.nodes {
        node.before_raise(|it| it.set(Mode::Mute));
    }
    cluster.run(async {
        let mut place = redlock.enter(claim().ttl(TTL / 10));
        let late = async {
            cluster.clock.sleep(TTL / 8).await;
            cluster.heal();
        };
        let (turn, ()) = tokio::join!(place.turn(), late);
        assert!(matches!(turn, Ok(Turn::Wait { .. })), "{turn:?}");
    });
}

#[test]
fn what_nodes_gave_and_forgot_before_they_confirmed_it_is_no_grant() {
    let cluster = Cluster::of(3);
    let options = cluster.options().without_restart_guard();
    let redlock = Redlock::lazy(options).unwrap();
    cluster.nodes[0].before_raise(Shaky::forget);
    cluster.nodes[1].before_raise(Shaky::forget);
    cluster.run(async {
        let mut place = redlock.enter(claim());
        must_wait(&mut place).await;
        cluster.all_empty().await;
    });
}

#[test]
fn a_release_of_an_earlier_attempt_that_arrives_late_takes_nothing_away() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        // A stranger has two nodes, so that the first attempt gets the third only and gives it back.
        let mut strangers = [0, 1].map(|it| cluster.nodes[it].enter(claim()));
        for stranger in &mut strangers {
            held(stranger).await;
        }
        cluster.set([2], Mode::LeavesLate);
        let mut place = redlock.enter(claim());
        must_wait(&mut place).await;
        for stranger in &mut strangers {
            stranger.leave().await.unwrap();
        }
        // The release is repeated in the background, with success.
        cluster.all_empty().await;
        // By then the node that failed is asked again.
        cluster.clock.sleep(TTL / 10).await;
        held(&mut place).await;
        cluster.nodes[2].deliver_late().await;
        let mut other = cluster.nodes[2].enter(claim());
        must_wait(&mut other).await;
    });
}

#[tokio::test]
async fn two_lockers_count_exactly_with_a_node_down() {
    let stores: Vec<_> =
        (0..3).map(|it| Shaky::new(&format!("{it}"), &lockkeeper_core::Clock::boot())).collect();
    stores[1].set(Mode::Stuck);
    let options = RedlockOptions::new(stores.clone()).without_restart_guard();
    let lockers = [(); 2].map(|()| Locker::new(Redlock::lazy(options.clone()).unwrap()));
    let count = std::sync::Arc::new(std::sync::Mutex::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (locker, count) = (lockers[task % 2].clone(), count.clone());
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = locker.lock("count").ttl(TTL).await.unwrap();
                let seen = *count.lock().unwrap();
                tokio::task::yield_now().await;
                *count.lock().unwrap() = seen + 1;
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(*count.lock().unwrap(), 40);
    stores[1].set(Mode::Up);
}

#[tokio::test]
async fn a_weighted_claim_is_refused() {
    let nodes = vec![Memory::default(), Memory::default(), Memory::default()];
    let redlock = Redlock::with(RedlockOptions::new(nodes)).await.unwrap();
    let mut place = redlock.enter(claim().load(Load::new(1, 2)));
    assert!(!place.turn().await.unwrap_err().is_transient());
}
