//! One server: what the scripts promise, beyond the conformance suite.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, impatient, until_held, waits, within};
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key};
use lockkeeper_redis::Redis;
use lockkeeper_servers::{self as servers, RedisOptions};

async fn server() -> (servers::Redis, Redis) {
    let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    (server, redis)
}

#[tokio::test]
async fn a_free_lock_costs_one_script_to_take_and_one_to_give_back() {
    let (server, redis) = server().await;
    let mut warm_up = redis.enter(claim("warm-up"));
    held(&mut warm_up).await;
    warm_up.leave().await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    for round in 0..10 {
        let mut place = redis.enter(claim(&format!("free-{round}")));
        held(&mut place).await;
        place.leave().await.unwrap();
    }
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let calls = |name: &str| {
        stats
            .field(&format!("cmdstat_{name}"))
            .and_then(|it| it.split(['=', ',']).nth(1)?.parse::<u32>().ok())
            .unwrap_or(0)
    };
    assert_eq!(calls("evalsha"), 20);
    // Two of them to take: the lock, and the mark that outlives it.
    assert_eq!((calls("time"), calls("set"), calls("get"), calls("del")), (10, 20, 10, 10));
    assert_eq!(calls("eval") + calls("publish") + calls("pexpire") + calls("rpush"), 0);
}

#[tokio::test]
async fn whoever_leaves_appoints_the_next_in_line_without_another_command() {
    let (server, redis) = server().await;
    let other = Redis::connect(&server.url()).await.unwrap();
    let mut warm_up = redis.enter(claim("warm-up"));
    held(&mut warm_up).await;
    warm_up.leave().await.unwrap();
    let (mut one, mut two, mut three) =
        (redis.enter(claim("k")), other.enter(claim("k")), redis.enter(claim("k")));
    let first = held(&mut one).await;
    assert_eq!(waits(&mut two).await.1, Some(1));
    assert_eq!(waits(&mut three).await.1, Some(2));
    within("being told that somebody waits", one.changed()).await;
    let renewed = one.renew().await.unwrap();
    assert!(matches!(renewed, Renewal::Held { wanted: true, .. }), "{renewed:?}");
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    one.leave().await.unwrap();
    within("the message", two.changed()).await;
    let second = held(&mut two).await;
    assert!(first.counter < second.counter && second.wanted);
    two.leave().await.unwrap();
    within("the message", three.changed()).await;
    let third = held(&mut three).await;
    assert!(second.counter < third.counter && !third.wanted);
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let evalsha = stats.field("cmdstat_evalsha").unwrap();
    assert!(evalsha.starts_with("calls=2,"), "two leaves and nothing else: {evalsha}");
    assert!(stats.field("cmdstat_lindex").is_none(), "a mutex goes on by the short way");
    three.leave().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_process_does_not_listen_is_passed_over_but_keeps_its_place() {
    let (server, redis) = server().await;
    let deaf = Redis::connect(&server.url()).await.unwrap();
    let (mut one, mut two, mut three) =
        (redis.enter(claim("k")), deaf.enter(claim("k")), redis.enter(claim("k")));
    held(&mut one).await;
    waits(&mut two).await;
    waits(&mut three).await;
    // As if the process had died: nothing listens on its channel any more.
    let channels = server.command(&["PUBSUB", "CHANNELS", "lk:wake:*"]).await.unwrap();
    assert_eq!(channels.items().len(), 2);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    let mut fresh = redis.enter(impatient("other"));
    held(&mut fresh).await;
    one.leave().await.unwrap();
    within("the message", three.changed()).await;
    until_held(&mut three).await;
    // Somebody new may not overtake the one that was passed over and is back.
    waits(&mut two).await;
    let mut four = redis.enter(claim("k"));
    waits(&mut four).await;
    three.leave().await.unwrap();
    until_held(&mut two).await;
    two.leave().await.unwrap();
    until_held(&mut four).await;
}

#[tokio::test]
async fn a_dead_holder_is_replaced_soon_after_its_ttl() {
    let (_server, redis) = server().await;
    let ttl = Duration::from_millis(300);
    let mut one = redis.enter(claim_of("k", ttl, 1, 1));
    let mut two = redis.enter(claim_of("k", Duration::from_secs(20), 1, 1));
    let first = held(&mut one).await;
    let (recheck, _) = waits(&mut two).await;
    assert!(recheck <= ttl + Duration::from_millis(10), "{recheck:?}");
    let second = until_held(&mut two).await;
    assert!(first.counter < second.counter);
    assert_eq!(one.renew().await.unwrap(), Renewal::Lost);
    one.leave().await.unwrap();
    assert!(matches!(two.renew().await.unwrap(), Renewal::Held { .. }));
}

#[tokio::test]
async fn readers_share_and_a_writer_waits_for_all_of_them() {
    let (_server, redis) = server().await;
    let reader = || redis.enter(claim_of("rw", common::TTL, 1, u32::MAX));
    let writer = || redis.enter(claim_of("rw", common::TTL, u32::MAX, u32::MAX));
    let (mut r1, mut r2, mut w, mut r3) = (reader(), reader(), writer(), reader());
    let (c1, c2) = (held(&mut r1).await.counter, held(&mut r2).await.counter);
    assert!(c1 < c2);
    waits(&mut w).await;
    // Nobody overtakes the head, though it would fit.
    waits(&mut r3).await;
    assert!(matches!(r1.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
    r1.leave().await.unwrap();
    waits(&mut w).await;
    r2.leave().await.unwrap();
    let c3 = until_held(&mut w).await.counter;
    assert!(c2 < c3);
    let mut r4 = reader();
    waits(&mut r4).await;
    w.leave().await.unwrap();
    let c4 = until_held(&mut r3).await.counter;
    let c5 = until_held(&mut r4).await.counter;
    assert!(c3 < c4 && c3 < c5 && c4 != c5);
    for place in [&mut r3, &mut r4] {
        assert!(matches!(place.renew().await.unwrap(), Renewal::Held { .. }));
        place.leave().await.unwrap();
    }
    held(&mut writer()).await;
}

#[tokio::test]
async fn permits_are_counted_and_the_smallest_capacity_counts() {
    let (_server, redis) = server().await;
    let permit = |capacity| redis.enter(claim_of("sem", common::TTL, 1, capacity));
    let (mut a, mut b, mut c) = (permit(3), permit(3), permit(3));
    held(&mut a).await;
    held(&mut b).await;
    let mut small = redis.enter(claim_of("sem", common::TTL, 1, 2).impatient());
    waits(&mut small).await;
    held(&mut c).await;
    let mut d = permit(3);
    waits(&mut d).await;
    b.leave().await.unwrap();
    until_held(&mut d).await;
    for place in [&mut a, &mut c, &mut d] {
        place.leave().await.unwrap();
    }
    held(&mut small).await;
}

#[tokio::test]
async fn counters_grow_though_the_store_forgets_everything() {
    let (server, redis) = server().await;
    let mut last = 0;
    let mut take = async |redis: &Redis| {
        let mut place = redis.enter(claim("k"));
        let counter = until_held(&mut place).await.counter;
        assert!(last < counter, "{last} then {counter}");
        last = counter;
        place
    };
    for _ in 0..200 {
        take(&redis).await.leave().await.unwrap();
    }
    take(&redis).await;
    server.command(&["FLUSHALL"]).await.unwrap();
    take(&redis).await;
    let keys = server.command(&["KEYS", "lk:*"]).await.unwrap();
    for key in keys.items() {
        server.command(&["DEL", &key.text()]).await.unwrap();
    }
    take(&redis).await;
    server.restart_empty().await.unwrap();
    let place = take(&redis).await;
    drop(place);
    assert!(last <= lockkeeper_core::fence::COUNTER_MAX);
}

#[tokio::test]
async fn nothing_stays_behind_when_everybody_is_gone() {
    let (server, redis) = server().await;
    let ttl = Duration::from_millis(200);
    let mut places: Vec<_> = (0..5).map(|_| redis.enter(claim_of("k", ttl, 1, 2))).collect();
    for place in &mut places {
        let _ = place.turn().await.unwrap();
    }
    drop(places);
    within("the keys to expire", async {
        while !server.command(&["KEYS", "lk:{*"]).await.unwrap().items().is_empty() {
            lockkeeper_core::Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// What the scripts remember of how long the keys live must be true of every key, whoever comes with whatever ttl.
#[tokio::test]
async fn every_key_of_a_lock_lives_as_long_as_its_longest_claim() {
    let (server, redis) = server().await;
    let (mut places, mut longest, clock) = (Vec::new(), Duration::ZERO, Clock::boot());
    let started = clock.now();
    for ttl in [20, 30, 25, 90, 40, 600, 30].map(Duration::from_secs) {
        let mut place = redis.enter(claim_of("k", ttl, 1, 1));
        match place.turn().await.unwrap() {
            Turn::Held(_) => assert!(places.is_empty()),
            Turn::Wait { ahead, .. } => assert_eq!(ahead, u64::try_from(places.len()).ok()),
        }
        places.push(place);
        longest = longest.max(ttl);
        for key in server.command(&["KEYS", "lk:{*"]).await.unwrap().items() {
            let left = server.command(&["PTTL", &key.text()]).await.unwrap().int().unwrap();
            let left = Duration::from_millis(u64::try_from(left).expect("every key expires"));
            assert!(longest <= left + (clock.now() - started), "{key:?} lives {left:?}, a claim {longest:?}");
        }
    }
    for mut place in places {
        place.leave().await.unwrap();
    }
}

#[tokio::test]
async fn an_operator_sees_who_holds_and_waits_and_can_break_a_lock() {
    let (_server, redis) = server().await;
    let name = "a name with {braces} and ümlauts";
    let (mut one, mut two) = (redis.enter(claim(name)), redis.enter(claim(name)));
    let grant = held(&mut one).await;
    waits(&mut two).await;
    let mut three = redis.enter(claim("b"));
    held(&mut three).await;
    let mut gone = redis.enter(claim("c"));
    held(&mut gone).await;
    gone.leave().await.unwrap();

    let all = redis.list("").await.unwrap();
    assert_eq!(all.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), [name, "b"]);
    assert_eq!(redis.list("b").await.unwrap().len(), 1);
    let info = redis.show(&Key::new(name).unwrap()).await.unwrap().unwrap();
    assert_eq!(info, redis.list("a").await.unwrap().remove(0).tap_times(&info));
    assert_eq!(info.holders[0].fence.unwrap().counter(), grant.counter);
    assert_eq!(info.holders[0].label.note.as_deref(), Some("note"));
    assert_eq!(info.waiters.len(), 1);
    assert!(redis.show(&Key::new("c").unwrap()).await.unwrap().is_none());

    let lost = redis.break_lock(&Key::new(name).unwrap()).await.unwrap();
    assert_eq!(lost.len(), 1);
    within("the message", two.changed()).await;
    let next = held(&mut two).await;
    assert!(grant.counter < next.counter);
    assert_eq!(one.renew().await.unwrap(), Renewal::Lost);
}

trait TapTimes {
    /// The same with the times of another view, which move.
    fn tap_times(self, like: &Self) -> Self;
}

impl TapTimes for lockkeeper_core::inspect::LockInfo {
    fn tap_times(mut self, like: &Self) -> Self {
        let pairs = self.holders.iter_mut().zip(&like.holders);
        for (one, other) in pairs.chain(self.waiters.iter_mut().zip(&like.waiters)) {
            one.since = other.since;
            one.valid_for = other.valid_for;
        }
        self
    }
}

#[tokio::test]
async fn a_foreign_key_in_our_place_is_a_permanent_fault_that_says_so() {
    let (server, redis) = server().await;
    let mut probe = redis.enter(claim("k"));
    held(&mut probe).await;
    let main = server.command(&["KEYS", "lk:{*"]).await.unwrap().items()[0].text();
    for foreign in [vec!["SET", &main, "something else"], vec!["SADD", &main, "x"]] {
        server.command(&["DEL", &main]).await.unwrap();
        server.command(&foreign).await.unwrap();
        let fault = redis.enter(claim("k")).turn().await.unwrap_err();
        assert!(!fault.is_transient() && fault.message.contains("prefix"), "{fault}");
        assert_eq!(probe.renew().await.unwrap(), Renewal::Lost);
    }
}

#[tokio::test]
async fn a_crowd_shares_scripts_and_everybody_gets_its_own_answer() {
    let (server, redis) = server().await;
    let mut warm_up = redis.enter(claim("warm-up"));
    held(&mut warm_up).await;
    warm_up.leave().await.unwrap();
    let mut taken = redis.enter(claim("lock-7"));
    held(&mut taken).await;
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let mut places: Vec<_> = (0..300).map(|it| redis.enter(claim(&format!("lock-{it}")))).collect();
    let turns = futures_util::future::join_all(places.iter_mut().map(Place::turn)).await;
    let held_now =
        turns.iter().filter(|it| matches!(it, Ok(lockkeeper_core::backend::Turn::Held(_)))).count();
    assert_eq!(held_now, 299, "all but the one that was taken");
    assert_eq!(redis.list("lock-").await.unwrap().len(), 300);
    let renewals = futures_util::future::join_all(places.iter_mut().map(Place::renew)).await;
    assert_eq!(renewals.iter().filter(|it| matches!(it, Ok(Renewal::Held { .. }))).count(), 299);
    let leaves = futures_util::future::join_all(places.iter_mut().map(Place::leave)).await;
    assert!(leaves.iter().all(Result::is_ok));
    assert_eq!(redis.list("lock-").await.unwrap().len(), 1, "nobody else's lock was given back");
    assert!(matches!(taken.renew().await.unwrap(), Renewal::Held { wanted: false, .. }));
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let calls = stats.field("cmdstat_evalsha").unwrap();
    let calls: u32 = calls.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    // 301 looks for the two lists, and few beside them for 300 takes, renewals and releases.
    assert!(calls < 301 + 60, "{calls}");
}

#[tokio::test]
async fn a_counter_never_falls_behind_what_this_process_has_seen() {
    let (server, redis) = server().await;
    let mut one = redis.enter(claim("k"));
    let first = held(&mut one).await;
    // As if the clock had been set back: the state says that an hour from now was the last grant.
    let main = server.command(&["KEYS", "lk:{*"]).await.unwrap().items()[0].text();
    let hour = 3600.0 * 100_000.0;
    #[expect(clippy::cast_precision_loss, reason = "counters are exact in doubles")]
    let ahead = (first.counter as f64 + hour).to_be_bytes();
    let script = "redis.call('SETRANGE', KEYS[1], 2, struct.pack('>d', ARGV[1]))";
    let ahead = f64::from_be_bytes(ahead).to_string();
    server.command(&["EVAL", script, "1", &main, &ahead]).await.unwrap();
    let raised = held(&mut one).await;
    assert!(first.counter + 359_000_000 < raised.counter);
    one.leave().await.unwrap();
    let next = held(&mut redis.enter(claim("k"))).await;
    assert!(raised.counter < next.counter);
    let other = held(&mut redis.enter(claim("another"))).await;
    assert!(raised.counter < other.counter);
}
