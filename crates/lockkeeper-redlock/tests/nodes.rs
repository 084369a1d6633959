//! Who may be a node and who may vote: numbers, identities, the restart guard, fences, the operator's view.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use common::{Cluster, KEY, Mode, Shaky, TTL, claim, held, must_wait, still_holds};
use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::node::RaiseCounter;
use lockkeeper_core::{Error, Key, Locker, Memory};
use lockkeeper_redlock::{Redlock, RedlockOptions};

fn refusal(nodes: usize) -> Option<String> {
    let nodes = (0..nodes).map(|_| Memory::default()).collect();
    match Redlock::lazy(RedlockOptions::new(nodes)) {
        Ok(_) => None,
        Err(Error::Invalid { what, .. }) => Some(what),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn even_and_small_numbers_of_nodes_are_refused() {
    for nodes in [0, 1, 2, 4, 6] {
        assert!(refusal(nodes).unwrap().contains("odd number of nodes, at least 3"), "{nodes}");
    }
    for nodes in [3, 5, 7] {
        assert_eq!(refusal(nodes), None);
    }
}

#[tokio::test]
async fn a_server_named_twice_is_refused_when_connecting() {
    let (one, other) = (Memory::default(), Memory::default());
    let error = Redlock::with(RedlockOptions::new(vec![one.clone(), other, one])).await.unwrap_err();
    assert!(error.to_string().contains("nodes 1 and 3 are the same server"), "{error}");
}

#[test]
fn a_server_named_twice_that_was_silent_at_first_gives_no_lock_later() {
    let cluster = Cluster::of(2);
    cluster.set([0], Mode::Down);
    cluster.run(async {
        let mut nodes = cluster.nodes.clone();
        nodes.extend([
            cluster.nodes[0].clone(),
            Shaky::new("3", &cluster.clock),
            Shaky::new("4", &cluster.clock),
        ]);
        let redlock = Redlock::with(cluster.options_for(nodes)).await.unwrap();
        cluster.heal();
        let mut place = redlock.enter(claim());
        let fault = place.turn().await.unwrap_err();
        assert!(!fault.is_transient() && fault.message.contains("the same server"), "{fault}");
        cluster.all_empty().await;
    });
}

#[test]
fn no_lock_is_made_of_nodes_most_of_which_do_not_answer() {
    let cluster = Cluster::of(3);
    cluster.set([0, 2], Mode::Stuck);
    let error = cluster.run(Redlock::with(cluster.options())).unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("node 1: no answer in time; node 3: no answer in time"), "{error}");
}

/// One holds two of three nodes; one of the two forgets; the third was never asked.
async fn amnesia(
    cluster: &Cluster,
    redlock: &Redlock<Shaky>,
) -> [lockkeeper_redlock::RedlockPlace<Shaky>; 2] {
    let (mut one, other) = (redlock.enter(claim()), redlock.enter(claim()));
    cluster.set([2], Mode::Down);
    held(&mut one).await;
    cluster.heal();
    cluster.nodes[1].forget();
    [one, other]
}

#[test]
fn a_node_that_forgot_gives_nothing_away() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let [_one, mut other] = amnesia(&cluster, &redlock).await;
        let asked_at = cluster.clock.now();
        while cluster.clock.now() < asked_at.after(TTL) {
            assert!(!matches!(other.turn().await, Ok(Turn::Held(_))), "granted while another holds");
            cluster.clock.sleep(TTL / 20).await;
        }
        cluster.clock.sleep(TTL / 10).await;
        held(&mut other).await;
    });
}

#[test]
fn nodes_too_young_to_vote_are_named_when_they_are_missed() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut place = redlock.enter(claim());
        cluster.nodes[0].forget();
        held(&mut place).await;
        place.leave().await.unwrap();
        cluster.nodes[1].forget();
        let fault = place.turn().await.unwrap_err();
        assert!(fault.is_transient(), "{fault}");
        assert!(
            fault.message.contains("node 2: it lost its memory") && fault.message.contains("may vote in"),
            "{fault}"
        );
        cluster.all_empty().await;
        cluster.clock.sleep(TTL + TTL / 10).await;
        held(&mut place).await;
    });
}

#[test]
fn without_the_guard_a_node_that_forgot_gives_the_lock_to_a_second_holder() {
    let cluster = Cluster::of(3);
    let options = cluster.options().without_restart_guard();
    let redlock = Redlock::lazy(options).unwrap();
    cluster.run(async {
        let [_one, mut other] = amnesia(&cluster, &redlock).await;
        held(&mut other).await;
    });
}

#[test]
fn a_holder_keeps_its_lock_while_a_node_is_too_young_to_vote() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let (mut one, mut other) = (redlock.enter(claim()), redlock.enter(claim()));
        held(&mut one).await;
        cluster.nodes[1].forget();
        for _ in 0..6 {
            cluster.clock.sleep(TTL / 3).await;
            still_holds(&mut one).await;
            assert!(!matches!(other.turn().await, Ok(Turn::Held(_))), "granted while another holds");
        }
        one.leave().await.unwrap();
    });
}

#[test]
fn a_lease_longer_than_the_guard_cannot_be_had() {
    let cluster = Cluster::of(3);
    assert_eq!(cluster.redlock().profile().ttl_max, TTL);
}

#[test]
fn fences_grow_over_majorities_that_share_one_node_only() {
    for shared in 0..3 {
        let cluster = Cluster::of(3);
        let redlock = cluster.redlock();
        let (first, last) = ((shared + 1) % 3, (shared + 2) % 3);
        cluster.run(async {
            // The first node is far ahead, as one with a fast clock is.
            let mut ahead = cluster.nodes[first].enter(claim());
            held(&mut ahead).await;
            assert_eq!(ahead.raise(1_000_000).await.unwrap(), Some(1_000_000));
            ahead.leave().await.unwrap();
            let mut fences = Vec::new();
            for absent in [last, first, last, first] {
                cluster.set([absent], Mode::Down);
                let mut place = redlock.enter(claim());
                fences.push(held(&mut place).await.counter);
                place.leave().await.unwrap();
                cluster.heal();
                cluster.all_empty().await;
            }
            assert!(fences[0] > 1_000_000 && fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        });
    }
}

#[test]
fn asking_again_with_another_majority_tells_the_same_fence() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut place = redlock.enter(claim());
        cluster.set([0], Mode::Down);
        let first = held(&mut place).await;
        cluster.heal();
        let again = held(&mut place).await;
        assert_eq!(first.counter, again.counter);
    });
}

#[test]
fn a_node_that_joins_late_with_a_larger_counter_does_not_change_the_fence() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut ahead = cluster.nodes[0].enter(claim());
        held(&mut ahead).await;
        assert_eq!(ahead.raise(1_000_000).await.unwrap(), Some(1_000_000));
        ahead.leave().await.unwrap();
        let (mut place, mut next) = (redlock.enter(claim()), redlock.enter(claim()));
        cluster.set([0], Mode::Down);
        let first = held(&mut place).await;
        cluster.heal();
        assert_eq!(held(&mut place).await.counter, first.counter);
        place.leave().await.unwrap();
        assert!(first.counter < held(&mut next).await.counter);
    });
}

#[test]
fn the_operator_sees_what_a_majority_knows() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        let key = Key::new(KEY).unwrap();
        let mut orphan = cluster.nodes[0].enter(claim());
        held(&mut orphan).await;
        assert_eq!(redlock.show(&key).await.unwrap(), None, "one node is no majority");
        orphan.leave().await.unwrap();
        let mut place = redlock.enter(claim());
        let grant = held(&mut place).await;
        cluster.set([0], Mode::Down);
        let seen = redlock.show(&key).await.unwrap().unwrap();
        assert_eq!(seen.holders[0].fence.unwrap().counter(), grant.counter);
        assert_eq!(redlock.list("orders/").await.unwrap(), [seen]);
        assert_eq!(redlock.break_lock(&key).await.unwrap().len(), 1);
        must_be_lost(&mut place).await;
        cluster.set([1], Mode::Down);
        assert!(redlock.show(&key).await.unwrap_err().message.contains("2 of 3 nodes are needed"));
    });
}

async fn must_be_lost(place: &mut impl Place) {
    assert_eq!(place.renew().await.unwrap(), lockkeeper_core::backend::Renewal::Lost);
}

#[test]
fn the_doctor_names_silent_young_and_doubled_nodes() {
    let cluster = Cluster::of(3);
    let redlock = cluster.redlock();
    cluster.run(async {
        assert!(redlock.doctor().await.unwrap().is_empty(), "all is well");
        cluster.nodes[2].forget();
        cluster.set([0], Mode::Down);
        let findings = redlock.doctor().await.unwrap();
        let told: Vec<_> = findings.iter().map(|it| (it.severity, it.what.as_str())).collect();
        assert_eq!(told[0], (Severity::Warning, "1 of 3 nodes do not answer"));
        assert!(told[1].1.contains("node 3 lost its memory"), "{told:?}");
        cluster.set([1], Mode::Down);
        assert_eq!(redlock.doctor().await.unwrap()[0].severity, Severity::Danger);
        cluster.heal();
        let reckless = Redlock::lazy(cluster.options().without_restart_guard()).unwrap();
        assert!(reckless.doctor().await.unwrap()[0].what.contains("restart guard is off"));
        let doubled = [0, 1, 0].map(|it| cluster.nodes[it].clone()).to_vec();
        let doubled = Redlock::lazy(cluster.options_for(doubled)).unwrap();
        assert!(doubled.doctor().await.unwrap()[0].what.contains("the same server"));
    });
}

#[test]
fn a_split_vote_is_given_back_at_once_on_every_node() {
    let cluster = Cluster::of(5);
    let redlock = cluster.redlock();
    cluster.run(async {
        let mut strangers = Vec::new();
        for node in &cluster.nodes[..3] {
            let mut stranger = node.enter(claim());
            held(&mut stranger).await;
            strangers.push(stranger);
        }
        let mut place = redlock.enter(claim());
        must_wait(&mut place).await;
        assert!(cluster.nodes[3..].iter().all(|it| it.store().is_empty()), "two nodes of five are no lock");
        strangers[0].leave().await.unwrap();
        held(&mut place).await;
    });
}

#[tokio::test]
async fn nothing_stays_where_nobody_can_be_called() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    let redlock = Redlock::with(RedlockOptions::new(nodes.clone())).await.unwrap();
    let locker = Locker::builder(redlock).warm(true).build();
    for _ in 0..3 {
        locker.lock("k").await.unwrap().release().await.unwrap();
        assert_eq!(locker.lines(), 0, "it does not hear that it must go");
    }
    locker.shutdown(TTL).await.unwrap();
    assert!(nodes.iter().all(Memory::is_empty));
}
