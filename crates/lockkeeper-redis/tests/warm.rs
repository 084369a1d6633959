//! Warm locks on a real Redis: taken again without a script, recalled by a message, given back by themselves without one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{claim_of, held, within};
use lockkeeper_core::backend::{Backend, Place};
use lockkeeper_core::kit::locked;
use lockkeeper_core::observe::{CooledBy, Event, Observer};
use lockkeeper_core::{Clock, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{self as servers, RedisOptions};
use lockkeeper_testkit::warm;

/// So long that nothing is due within a test: what a holder hears, it was told.
const TTL: Duration = Duration::from_secs(3600);

async fn server() -> servers::Redis {
    servers::Redis::start(RedisOptions::default()).await.unwrap()
}

async fn process(server: &servers::Redis) -> Redis {
    Redis::connect(&server.url()).await.unwrap()
}

/// Scripts that were run so far.
async fn scripts(server: &servers::Redis) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let calls = |name: &str| {
        let line = stats.field(&format!("cmdstat_{name}")).unwrap_or_default();
        line.split(['=', ',']).nth(1).and_then(|it| it.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_taken_again_and_again_costs_no_script() {
    let server = server().await;
    let scripts = async || scripts(&server).await;
    warm::taken_again_without_a_word(&process(&server).await, TTL, scripts, |_| 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_in_one_process_is_had_by_another() {
    let server = server().await;
    warm::recalled(&process(&server).await, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_gets_what_is_idle_and_waits_for_nothing_else() {
    let server = server().await;
    warm::tried(&process(&server).await, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lock_is_told_to_its_holder_in_another_process() {
    let server = server().await;
    warm::a_break_is_told(&process(&server).await, &process(&server).await, TTL).await;
}

/// Commands of any kind that were run so far, this question not counted.
async fn commands(server: &servers::Redis) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let calls = |name: &str| {
        let line = stats.field(&format!("cmdstat_{name}")).unwrap_or_default();
        line.split(['=', ',']).nth(1).and_then(|it| it.parse::<u64>().ok()).unwrap_or(0)
    };
    [
        "evalsha",
        "eval",
        "publish",
        "subscribe",
        "unsubscribe",
        "ping",
        "hello",
        "client|setinfo",
        "script|load",
    ]
    .map(calls)
    .iter()
    .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_take_turns_cost_what_they_would_if_nothing_stayed() {
    const ROUNDS: u64 = 200;
    let server = server().await;
    let mut cost = Vec::new();
    for warm in [true, false] {
        let locker = |redis| Locker::builder(redis).ttl(TTL).warm(warm).build();
        let pair = [locker(process(&server).await), locker(process(&server).await)];
        for it in &pair {
            // What a connection does once: the scripts are known, and whoever is alone has its socket.
            for nth in 0..10 {
                it.lock(format!("first/{warm}/{nth}")).cold().await.unwrap().release().await.unwrap();
            }
        }
        for (nth, it) in pair.iter().enumerate() {
            // Who may be idle is called on a connection of its own.
            it.lock(format!("opened/{warm}/{nth}")).await.unwrap().release_fully().await.unwrap();
        }
        let before = commands(&server).await;
        for _ in 0..ROUNDS {
            for it in &pair {
                it.lock(format!("turns/{warm}")).await.unwrap().release().await.unwrap();
            }
        }
        cost.push(commands(&server).await - before);
    }
    let (warm, cold) = (cost[0], cost[1]);
    assert_eq!(cold, 2 * 2 * ROUNDS, "a take and a release each");
    // Each of them is recalled once, and learns from it: the other waits, is called, and perhaps looks once more.
    assert!(warm <= cold + 8, "{warm} commands, and {cold} where nothing stays");
}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>, &'static str);

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let what = match event {
            Event::Granted { .. } => "has it",
            Event::Cooled { by: CooledBy::Time, .. } => "gives it back by itself",
            Event::Cooled { .. } => "is asked to give it back",
            _ => return,
        };
        locked(&self.0).push(format!("{} {what}", self.1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_lock_whose_recalls_are_lost_is_given_back_in_time_all_the_same() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    // A third of it is waited for, and a sixth is left for a slow machine.
    let (told, ttl, clock) = (Told::default(), Duration::from_secs(24), Clock::boot());
    let locker = |redis: Redis, name: &'static str| {
        let observer = Told(told.0.clone(), name);
        Locker::builder(redis).ttl(ttl).warm(true).observer(observer).build()
    };
    let deaf = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let (here, there) = (locker(deaf, "here"), locker(process(&server).await, "there"));
    // The server knows the script by which something is given back: whoever is not heard cannot be told that it does not.
    let third = Locker::new(process(&server).await);
    third.lock("first").await.unwrap().release().await.unwrap();
    here.lock("k").await.unwrap().release().await.unwrap();
    let taken_by = clock.now();
    // From now on it hears nothing, and still speaks.
    proxy.set(Direction::ToClient, Rule::Drop);
    let guard = within("what is idle", async { there.lock("k").await.unwrap() }).await;
    assert_eq!(*locked(&told.0), ["here has it", "here gives it back by itself", "there has it"]);
    assert!(clock.now() - taken_by < ttl / 2, "it was given back, and did not end by itself");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_what_is_idle_says_so_again_if_nobody_heard_it() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let here = Locker::builder(far).ttl(TTL).warm(true).build();
    let there = Locker::builder(process(&server).await).ttl(Duration::from_secs(1)).build();
    here.lock("k").await.unwrap().release().await.unwrap();
    // Its message is lost, the connection is not.
    proxy.lose_message(b"lk:wake:");
    let waiting = tokio::spawn(async move { there.lock("k").await.unwrap().release().await.unwrap() });
    proxy.wait_for(|it| 0 < it.dropped).await.unwrap();
    within("what is idle", waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_by_a_process_that_hears_nothing_any_more_is_free_at_once() {
    let server = server().await;
    let there = Locker::builder(process(&server).await).ttl(TTL).build();
    // The server knows all scripts from now on.
    there.lock("first").await.unwrap().release().await.unwrap();
    // A process that may have something idle has more connections open than one that has not.
    for (name, warm) in [("warm", true), ("cold", false)] {
        let proxy = Proxy::start(server.port()).await.unwrap();
        let deaf = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
        let here = Locker::builder(deaf).ttl(TTL).warm(warm).build();
        let mut guard = Some(here.lock(name).await.unwrap());
        if warm {
            guard.take().unwrap().release().await.unwrap();
        }
        proxy.set(Direction::ToClient, Rule::Drop);
        // Nothing of it can be heard, so nothing can be opened any more: what was open must do.
        drop(guard);
        here.cool();
        within("what was given back", async { there.lock(name).await.unwrap() })
            .await
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_in_doubt_by_a_process_that_hears_nothing_is_free_at_once() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let deaf = Redis::connect(&format!("redis://{}?timeout=300ms", proxy.address())).await.unwrap();
    let here = Locker::builder(deaf).ttl(TTL).build();
    let there = Locker::builder(process(&server).await).ttl(TTL).build();
    there.lock("first").await.unwrap().release().await.unwrap();
    here.lock("first").await.unwrap().release().await.unwrap();
    // It was taken, and asked for twice: the first of the two may still be on its way.
    proxy.lose_reply(b"EVALSHA");
    let guard = within("the lock", async { here.lock("k").await.unwrap() }).await;
    assert_eq!(proxy.counters().cut, 1);
    proxy.set(Direction::ToClient, Rule::Drop);
    drop(guard);
    within("what was given back", async { there.lock("k").await.unwrap() }).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_given_back_is_not_renewed_when_a_connection_breaks() {
    const SHORT: u64 = 1_000_000;
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let redis = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let (one, other) = (claim_of("kept", TTL, 1, 1), claim_of("left", TTL, 1, 1));
    let id = other.id;
    let mut places = [redis.enter(one), redis.enter(other)];
    for place in &mut places {
        held(place).await;
    }
    let mut names = Vec::new();
    for name in server.command(&["KEYS", "*"]).await.unwrap().items().iter().map(servers::Value::text) {
        if name != "lk:mark" {
            server.command(&["PEXPIRE", &name, &SHORT.to_string()]).await.unwrap();
            names.push(name);
        }
    }
    let [kept, left] = places;
    // Its request stays on the way, and the lock is there yet.
    proxy.keep_request(id.as_bytes());
    let leaving = tokio::spawn(async move {
        let mut left = left;
        left.leave().await
    });
    proxy.wait_for(|it| it.kept == 1).await.unwrap();
    // What is held is renewed; the connection of the commands, which listens, is another and stays.
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await.unwrap();
    let renewed = async || {
        let mut long = 0;
        for name in &names {
            let lives = server.command(&["PTTL", name]).await.unwrap().int().unwrap();
            long += usize::from(i64::try_from(SHORT).unwrap() < lives);
        }
        long
    };
    within("the renewal of what is held", async {
        while renewed().await == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(renewed().await, 1, "one is held, and one is being given back");
    proxy.let_go();
    leaving.await.unwrap().unwrap();
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_idle_locks_are_given_back_in_few_scripts() {
    const MANY: u64 = 1_000;
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let redis = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let locker = Locker::builder(redis).ttl(TTL).warm(true).build();
    for nth in 0..MANY {
        locker.lock(format!("many/{nth}")).await.unwrap().release().await.unwrap();
    }
    assert_eq!(locker.lines() as u64, MANY);
    let before = scripts(&server).await;
    // What is to be said gathers while an answer is on its way. If each came at once, a busy machine would gather little.
    proxy.set(Direction::ToClient, Rule::Delay(Duration::from_millis(50)));
    locker.shutdown(common::LIMIT).await.unwrap();
    let asked = scripts(&server).await - before;
    assert!(asked < MANY / 4, "{asked} scripts for {MANY} locks");
    let left = server.command(&["KEYS", "*many*"]).await.unwrap();
    assert!(left.items().is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_idle_is_given_back_when_a_connection_breaks() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let told = Told::default();
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let here = Locker::builder(far).ttl(TTL).warm(true).observer(Told(told.0.clone(), "here")).build();
    here.lock("k").await.unwrap().release().await.unwrap();
    // From now on it would not hear that somebody wants the lock, so it must not be idle.
    proxy.cut();
    within("the end of what was idle", async {
        while locked(&told.0).len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(*locked(&told.0), ["here has it", "here is asked to give it back"]);
    let there = Locker::builder(process(&server).await).ttl(TTL).build();
    within("what was given back", async { there.lock("k").await.unwrap() }).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_no_recall_and_nobody_is_idle_without_one() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let (cut, mend) = (
        async || {
            proxy.refuse().await.unwrap();
            proxy.cut();
        },
        async || proxy.accept().await.unwrap(),
    );
    warm::idle_goes_when_the_connection_breaks(&far, &process(&server).await, TTL, cut, mend).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_idle_after_its_connection_broke_is_had_by_another() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).await.unwrap();
    let far = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let here = Locker::builder(far).ttl(TTL).warm(true).build();
    let there = Locker::builder(process(&server).await).ttl(TTL).build();
    let guard = here.lock("k").await.unwrap();
    proxy.cut();
    proxy.wait_for(|it| it.open == 0 || 0 < it.cut).await.unwrap();
    // What keeps it is there again; whether anybody can call its process is another question.
    guard.release().await.unwrap();
    within("what is idle", async { there.lock("k").await.unwrap() }).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_is_answered_while_the_application_stands_still_and_many_of_its_callers_wait() {
    let server = server().await;
    let url = server.url();
    let connect = async move || Redis::connect(&url).await.unwrap();
    warm::recalled_while_its_application_stands_still(connect, &process(&server).await, TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_readers_of_two_processes_go_for_a_writer() {
    let server = server().await;
    warm::idle_readers_go_for_a_writer(&process(&server).await, &process(&server).await, TTL).await;
}
