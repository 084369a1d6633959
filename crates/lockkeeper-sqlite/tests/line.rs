//! The verbs on a real file: who enters, in which order, with which numbers.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::time::Duration;

use common::*;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key};

#[test]
fn a_free_lock_is_taken_and_given_up() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut place, grant) = hold(&backend, claim("a")).await;
        assert_eq!(grant.valid_for, 10 * SECOND);
        assert!(!grant.wanted);
        place.leave().await.unwrap();
        place.leave().await.unwrap();
        assert_eq!(fixture.claims(), 0);
    });
}

#[test]
fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, mut last) = hold(&backend, claim("a")).await;
        let mut line: Vec<_> = (0..5).map(|_| backend.enter(claim("a"))).collect();
        for (place, ahead) in line.iter_mut().zip(1..) {
            assert_eq!(waits(place.turn().await.unwrap()), ahead);
        }
        // Asking in another order changes nothing.
        for (at, place) in line.iter_mut().enumerate().rev() {
            assert_eq!(waits(place.turn().await.unwrap()), at as u64 + 1);
        }
        for mut next in line {
            holder.leave().await.unwrap();
            next.changed().await;
            let grant = held(next.turn().await.unwrap());
            assert!(last.counter < grant.counter);
            (holder, last) = (next, grant);
        }
    });
}

#[test]
fn the_leaver_lets_the_next_one_in() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, claim("a")).await;
        let mut next = backend.enter(claim("a"));
        waits(next.turn().await.unwrap());
        holder.leave().await.unwrap();
        assert_eq!(
            fixture.number("SELECT counter != 0 FROM lockkeeper_claim"),
            1,
            "it holds before it hears of it"
        );
        let grant = held(next.turn().await.unwrap());
        assert!(Duration::ZERO < grant.valid_for && grant.valid_for <= 10 * SECOND);
        let counter = grant.counter;
        assert_eq!(held(next.turn().await.unwrap()).counter, counter, "asking again gives the same");
    });
}

#[test]
fn a_holder_that_asks_again_gets_the_same_number_and_more_time() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let wish = claim("a");
        let (mut place, grant) = hold(&backend, wish.clone()).await;
        let before = fixture.number("SELECT expires FROM lockkeeper_claim");
        assert_eq!(held(place.turn().await.unwrap()).counter, grant.counter);
        assert!(before < fixture.number("SELECT expires FROM lockkeeper_claim"));
        // The same claim at another place, after a lost reply.
        let mut twin = backend.enter(wish);
        assert_eq!(held(twin.turn().await.unwrap()).counter, grant.counter);
        assert_eq!(fixture.claims(), 1);
    });
}

#[test]
fn an_impatient_claim_leaves_nothing_behind() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, grant) = hold(&backend, claim("a")).await;
        let mut hasty = backend.enter(impatient("a"));
        assert_eq!(waits(hasty.turn().await.unwrap()), 1);
        assert_eq!(fixture.claims(), 1);
        holder.leave().await.unwrap();
        assert!(grant.counter < held(hasty.turn().await.unwrap()).counter);
    });
}

#[test]
fn renewing_extends_but_never_acquires() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, claim("a")).await;
        let mut next = backend.enter(claim("a"));
        assert_eq!(next.renew().await.unwrap(), Renewal::Lost, "it is not even in line");
        waits(next.turn().await.unwrap());
        assert_eq!(next.renew().await.unwrap(), Renewal::Lost);
        let before = fixture.number("SELECT expires FROM lockkeeper_claim WHERE counter != 0");
        let called = Clock::boot().now();
        match holder.renew().await.unwrap() {
            Renewal::Held { valid_for, wanted: true, sent_at: Some(sent_at), .. } => {
                assert_eq!(valid_for, 10 * SECOND);
                assert!(called <= sent_at, "it counts from when the file was written");
            }
            other => panic!("{other:?}"),
        }
        assert!(before < fixture.number("SELECT expires FROM lockkeeper_claim WHERE counter != 0"));
        holder.leave().await.unwrap();
        assert_eq!(next.renew().await.unwrap(), Renewal::Lost, "only `turn` takes it");
        assert_eq!(holder.renew().await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn what_is_not_renewed_expires_and_stays_lost() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut dead, first) = hold(&backend, short("a", SECOND / 5)).await;
        let mut next = backend.enter(claim("a"));
        let grant = acquire(&mut next).await;
        assert!(first.counter < grant.counter);
        assert_eq!(dead.renew().await.unwrap(), Renewal::Lost);
        assert_eq!(dead.renew().await.unwrap(), Renewal::Lost);
        dead.leave().await.unwrap();
        assert_eq!(held(next.turn().await.unwrap()).counter, grant.counter, "a late leave harms nobody");
    });
}

#[test]
fn a_place_that_is_not_heard_of_is_forgotten() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, claim("a")).await;
        let mut dead = backend.enter(short("a", SECOND / 5));
        waits(dead.turn().await.unwrap());
        let mut next = backend.enter(claim("a"));
        assert_eq!(waits(next.turn().await.unwrap()), 2);
        holder.leave().await.unwrap();
        acquire(&mut next).await;
        assert_eq!(fixture.claims(), 1);
    });
}

#[test]
fn a_semaphore_never_holds_more_than_its_capacity_and_nobody_overtakes() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut first, _) = hold(&backend, room("s", 2, 3)).await;
        let (_second, _) = hold(&backend, room("s", 1, 3)).await;
        let mut heavy = backend.enter(room("s", 2, 3));
        assert_eq!(waits(heavy.turn().await.unwrap()), 2);
        let mut light = backend.enter(room("s", 1, 3));
        assert_eq!(waits(light.turn().await.unwrap()), 3);
        first.leave().await.unwrap();
        assert_eq!(waits(light.turn().await.unwrap()), 2, "the heavy one stands before it");
        held(heavy.turn().await.unwrap());
        heavy.leave().await.unwrap();
        held(light.turn().await.unwrap());
    });
}

#[test]
fn readers_share_and_a_writer_waits_for_all_of_them() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut one, _) = hold(&backend, room("rw", 1, u32::MAX)).await;
        let (mut two, _) = hold(&backend, room("rw", 1, u32::MAX)).await;
        let mut writer = backend.enter(room("rw", u32::MAX, u32::MAX));
        assert_eq!(waits(writer.turn().await.unwrap()), 2);
        let mut late = backend.enter(room("rw", 1, u32::MAX));
        assert_eq!(waits(late.turn().await.unwrap()), 3);
        one.leave().await.unwrap();
        waits(writer.turn().await.unwrap());
        two.leave().await.unwrap();
        held(writer.turn().await.unwrap());
        waits(late.turn().await.unwrap());
        writer.leave().await.unwrap();
        held(late.turn().await.unwrap());
    });
}

#[test]
fn a_claim_that_can_never_fit_is_refused_and_blocks_nobody() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let fault = backend.enter(room("s", 3, 2)).turn().await.unwrap_err();
        assert!(!fault.is_transient());
        assert!(fault.to_string().contains("never fits"), "{fault}");
        hold(&backend, room("s", 1, 2)).await;
    });
}

#[test]
fn counters_grow_over_release_reopening_breaking_and_cleaning() {
    run(async {
        let fixture = Fixture::new();
        let key = Key::new("a").unwrap();
        let mut last = 0;
        for _ in 0..3 {
            let backend = fixture.open().await;
            let mut place = backend.enter(claim("a"));
            let grant = acquire(&mut place).await;
            assert!(last < grant.counter);
            place.leave().await.unwrap();
            let (_broken, broken) = hold(&backend, claim("a")).await;
            assert!(grant.counter < broken.counter);
            backend.break_lock(&key).await.unwrap();
            let (_dead, dead) = hold(&backend, short("a", SECOND / 50)).await;
            assert!(broken.counter < dead.counter);
            last = acquire(&mut backend.enter(short("a", SECOND / 50))).await.counter;
            assert!(dead.counter < last);
        }
    });
}

#[test]
fn a_holder_hears_that_somebody_wants_the_lock_and_that_it_lost_it() {
    run(async {
        let fixture = Fixture::new();
        let (here, there) = (fixture.open().await, fixture.open().await);
        let (mut holder, _) = hold(&here, claim("a")).await;
        let mut other = there.enter(claim("a"));
        tokio::join!(holder.changed(), async { waits(other.turn().await.unwrap()) });
        // It knows that now; what is left to hear is the loss.
        let key = Key::new("a").unwrap();
        let broken = async { there.break_lock(&key).await.unwrap() };
        tokio::join!(holder.changed(), broken);
        assert_eq!(holder.renew().await.unwrap(), Renewal::Lost);
    });
}

#[test]
fn a_dropped_wait_leaves_nothing_and_can_be_taken_up_again() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, claim("a")).await;
        let mut next = backend.enter(claim("a"));
        waits(next.turn().await.unwrap());
        for _ in 0..20 {
            tokio::select! {
                biased;
                () = next.changed() => {}
                () = Clock::boot().sleep(Duration::from_millis(1)) => {}
            }
        }
        holder.leave().await.unwrap();
        next.changed().await;
        held(next.turn().await.unwrap());
    });
}

#[test]
fn names_that_differ_never_share_a_lock() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let longest = "x".repeat(512);
        let nearly = format!("{}y", "x".repeat(511));
        let names = [
            "Order",
            "order",
            "a",
            "a ",
            " a",
            "é",
            "e\u{301}",
            "a/b",
            "..",
            "'",
            "\"",
            "''",
            "{x}",
            "*",
            "%",
            "_",
            "'; DROP TABLE lockkeeper_claim; --",
            "\u{202e}x",
            "🔒",
            "ß",
            "ss",
            "1",
            "1.0",
            "01",
            "x'00'",
            "NULL",
            longest.as_str(),
            nearly.as_str(),
        ];
        let mut places = Vec::new();
        for name in names {
            places.push(hold(&backend, claim(name)).await);
        }
        for name in names {
            assert_eq!(waits(backend.enter(impatient(name)).turn().await.unwrap()), 1, "{name:?}");
        }
        let listed = backend.list("").await.unwrap();
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        assert_eq!(listed.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), sorted);
    });
}

#[test]
fn very_long_and_very_short_ttls_work() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let profile = backend.profile();
        for ttl in [profile.ttl_min, profile.ttl_max, Duration::MAX] {
            let (mut place, grant) = hold(&backend, short("a", ttl)).await;
            assert_eq!(grant.valid_for, ttl);
            place.leave().await.unwrap();
        }
    });
}

#[test]
fn a_line_moves_on_though_nobody_can_ring() {
    let bells = |fixture: &Fixture| fixture.path().with_file_name("locks.db-bells");
    run(async {
        // In the first round the bells disappear while they are needed, in the second none can be made.
        for can_be_made in [true, false] {
            let fixture = Fixture::new();
            let (here, there) = (fixture.open().await, fixture.open().await);
            if !can_be_made {
                std::fs::write(bells(&fixture), "in the way").unwrap();
            }
            let (mut holder, _) = hold(&here, claim("a")).await;
            let mut waiters: Vec<_> = (0..3).map(|_| there.enter(claim("a"))).collect();
            let mut waiting = tokio::task::JoinSet::new();
            for mut waiter in waiters.drain(..) {
                waiting.spawn(async move {
                    acquire(&mut waiter).await;
                    waiter.leave().await.unwrap();
                });
            }
            eventually("all wait", || fixture.claims() == 4).await;
            if can_be_made {
                eventually("a bell hangs", || bells(&fixture).is_dir()).await;
                std::fs::remove_dir_all(bells(&fixture)).unwrap();
            }
            holder.leave().await.unwrap();
            while let Some(done) = waiting.join_next().await {
                done.unwrap();
            }
        }
    });
}
