//! A cluster: locks and wake-ups on the right shard, through failover and resharding.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim, claim_of, held, until_held, waits, within};
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Clock, Key, Locker};
use lockkeeper_redis::Redis;
use lockkeeper_servers::proxy::{Direction, Proxy, Rule};
use lockkeeper_servers::{self as servers, RedisCluster};

async fn deployment() -> (RedisCluster, Redis) {
    let servers = servers::Redis::cluster().await.unwrap();
    let redis = Redis::connect(&url(&servers)).await.unwrap();
    (servers, redis)
}

fn url(servers: &RedisCluster) -> String {
    let hosts: Vec<_> = servers.nodes().iter().map(|it| it.address()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// The key under which the only lock of this cluster is kept.
async fn only_key(servers: &RedisCluster) -> String {
    for node in &servers.nodes()[..3] {
        let keys = node.command(&["KEYS", "lk:{??}:*"]).await.unwrap();
        let mut keys = keys.items().iter().map(servers::Value::text);
        let main = keys.find(|it| it.matches(':').count() == 2 && !it.ends_with(":mark"));
        if let Some(key) = main {
            return key;
        }
    }
    panic!("no lock is kept anywhere");
}

#[tokio::test]
async fn locks_on_every_shard_are_taken_handed_on_listed_and_renewed_in_batches() {
    let (_servers, redis) = deployment().await;
    let names: Vec<_> = (0..40).map(|it| format!("lock-{it}")).collect();
    let mut places = Vec::new();
    for name in &names {
        let (mut one, mut two) = (redis.enter(claim(name)), redis.enter(claim(name)));
        held(&mut one).await;
        waits(&mut two).await;
        places.push((one, two));
    }
    assert_eq!(redis.list("lock-").await.unwrap().len(), names.len());
    let info = redis.show(&Key::new("lock-7").unwrap()).await.unwrap().unwrap();
    assert_eq!((info.holders.len(), info.waiters.len()), (1, 1));
    let renewed = futures_util::future::join_all(places.iter_mut().map(|it| it.0.renew())).await;
    for renewal in renewed {
        assert!(matches!(renewal.unwrap(), Renewal::Held { wanted: true, .. }));
    }
    for (mut one, mut two) in places {
        one.leave().await.unwrap();
        within("the sharded message", two.changed()).await;
        held(&mut two).await;
        two.leave().await.unwrap();
    }
}

#[tokio::test]
async fn the_death_of_a_shards_primary_is_survived() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_secs(60);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    let first = held(&mut one).await;
    waits(&mut two).await;
    let key = only_key(&servers).await;
    let old = servers.primary_of(&key).await.unwrap();
    let mut client = old.client().await.unwrap();
    let tag = &key[..=key.find('}').unwrap()];
    client.command(&["SET", tag, "1", "PX", "1"]).await.unwrap();
    client.command(&["WAIT", "1", "10000"]).await.unwrap();
    old.kill().unwrap();
    servers.wait_failover(&key, old).await.unwrap();
    within("renewing at the new primary", async {
        loop {
            match one.renew().await {
                Ok(renewal) => {
                    assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
                    return;
                }
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    within("leaving", async {
        while one.leave().await.is_err() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let second = until_held(&mut two).await;
    assert!(first.counter < second.counter);
    // And new locks are taken where the dead one kept its slots.
    for number in 0..20 {
        until_held(&mut redis.enter(claim(&format!("new-{number}")))).await;
    }
}

#[tokio::test]
async fn a_stopped_primary_of_a_shard_is_replaced_and_not_waited_for() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_secs(60);
    let mut one = redis.enter(claim_of("k", long, 1, 1));
    let first = held(&mut one).await;
    let key = only_key(&servers).await;
    let old = servers.primary_of(&key).await.unwrap();
    let mut client = old.client().await.unwrap();
    client.command(&["SET", &key[..=key.find('}').unwrap()], "1", "PX", "1"]).await.unwrap();
    client.command(&["WAIT", "1", "10000"]).await.unwrap();
    old.pause().unwrap();
    servers.wait_failover(&key, old).await.unwrap();
    let renewal = within("renewing at the new primary", async {
        loop {
            match one.renew().await {
                Ok(renewal) => return renewal,
                Err(fault) => assert!(fault.is_transient(), "{fault}"),
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(matches!(renewal.await, Renewal::Held { .. }), "what was copied is still held");
    // The old primary wakes up with its memory of the lock, and is not believed.
    old.resume().unwrap();
    within("leaving", async {
        while one.leave().await.is_err() {
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let mut two = redis.enter(claim_of("k", long, 1, 1));
    assert!(first.counter < until_held(&mut two).await.counter);
}

#[tokio::test]
async fn a_slot_that_moves_to_another_shard_takes_its_line_along() {
    let (servers, redis) = deployment().await;
    let long = Duration::from_secs(60);
    let (mut one, mut two) = (redis.enter(claim_of("k", long, 1, 1)), redis.enter(claim_of("k", long, 1, 1)));
    held(&mut one).await;
    waits(&mut two).await;
    let key = only_key(&servers).await;
    move_slot(&servers, &key).await;
    let renewed = one.renew().await.unwrap();
    assert!(matches!(renewed, Renewal::Held { wanted: true, .. }), "{renewed:?}");
    one.leave().await.unwrap();
    until_held(&mut two).await;
    // And the channel has moved, too: the next hand-off needs no recheck.
    let mut three = redis.enter(claim_of("k", long, 1, 1));
    waits(&mut three).await;
    two.leave().await.unwrap();
    within("the sharded message", three.changed()).await;
    held(&mut three).await;
}

/// Move the slot of `key` to another primary, as an operator's resharding does.
async fn move_slot(servers: &RedisCluster, key: &str) {
    let from = servers.primary_of(key).await.unwrap();
    let to = servers.nodes()[..3].iter().find(|it| it.port() != from.port()).unwrap();
    let slot = from.command(&["CLUSTER", "KEYSLOT", key]).await.unwrap();
    let slot = slot.int().unwrap().to_string();
    let (from_id, to_id) = (
        from.command(&["CLUSTER", "MYID"]).await.unwrap().text(),
        to.command(&["CLUSTER", "MYID"]).await.unwrap().text(),
    );
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await.unwrap();
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await.unwrap();
    let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await.unwrap();
    for key in keys.items() {
        let port = to.port().to_string();
        from.command(&["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "5000"]).await.unwrap();
    }
    for node in [to, from] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await.unwrap();
    }
}

/// A proxy before each primary, under whose address the cluster knows it.
async fn behind_proxies(servers: &RedisCluster) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for node in &servers.nodes()[..3] {
        let proxy = Proxy::start(node.port()).await.unwrap();
        let (bus, port) = ((node.port() + 10_000).to_string(), proxy.port().to_string());
        node.command(&["CONFIG", "SET", "cluster-announce-bus-port", &bus]).await.unwrap();
        node.command(&["CONFIG", "SET", "cluster-announce-port", &port]).await.unwrap();
        proxies.push(proxy);
    }
    within("all servers to know the proxies", async {
        for node in servers.nodes() {
            for proxy in &proxies {
                let known = format!("127.0.0.1:{}@", proxy.port());
                while !node.command(&["CLUSTER", "NODES"]).await.unwrap().text().contains(&known) {
                    Clock::boot().sleep(Duration::from_millis(20)).await;
                }
            }
        }
    })
    .await;
    proxies
}

/// How many scripts a server has run.
async fn scripts_of(server: &servers::Redis) -> String {
    let stats = server.command(&["INFO", "commandstats"]).await.unwrap();
    let calls = stats.field("cmdstat_evalsha").unwrap();
    calls.split(',').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_take_that_arrives_after_its_own_release_takes_nothing() {
    let servers = servers::Redis::cluster().await.unwrap();
    let proxies = behind_proxies(&servers).await;
    let hosts: Vec<_> = proxies.iter().map(Proxy::address).collect();
    let redis = Redis::connect(&format!("redis+cluster://{}?timeout=300ms", hosts.join(","))).await.unwrap();
    let long = Duration::from_secs(600);
    let mut warm_up = redis.enter(claim_of("k", long, 1, 1));
    held(&mut warm_up).await;
    let key = only_key(&servers).await;
    let mut at = 0;
    while servers.nodes()[at].command(&["KEYS", &key]).await.unwrap().items().is_empty() {
        at += 1;
    }
    warm_up.leave().await.unwrap();
    for cut in [false, true] {
        let kept = proxies[at].counters().kept;
        let mut place = redis.enter(claim_of("k", long, 1, 1));
        proxies[at].keep_request(b"EVALSHA");
        let take = async { held(&mut place).await };
        let meanwhile = async {
            proxies[at].wait_for(|it| kept < it.kept).await.unwrap();
            if cut {
                // As a server does that closes connections; what is on its way stays on its way.
                servers.nodes()[at].command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
            }
        };
        tokio::join!(take, meanwhile);
        place.leave().await.unwrap();
        let asked = scripts_of(&servers.nodes()[at]).await;
        proxies[at].let_go();
        // Where the server has closed the connection nobody is there to serve it.
        within("the late call to be served", async {
            while !cut && scripts_of(&servers.nodes()[at]).await == asked {
                Clock::boot().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let listed = Redis::connect(&url(&servers)).await.unwrap().list("").await.unwrap();
        assert!(listed.is_empty(), "it came back to life: {listed:?}");
        // Whatever arrives late is refused, or is nobody's.
        let next = Redis::connect(&url(&servers)).await.unwrap();
        within("it to be free", async {
            let mut other = next.enter(claim_of("k", long, 1, 1));
            until_held(&mut other).await;
            other.leave().await.unwrap();
        })
        .await;
        let gone = servers.nodes()[at].command(&["KEYS", "lk:*:gone"]).await.unwrap();
        assert_eq!(gone.items().len(), 1, "the first sending would be refused: {gone:?}");
        servers.nodes()[at].command(&["DEL", &gone.items()[0].text()]).await.unwrap();
    }
}

#[tokio::test]
async fn no_grant_goes_unconfirmed_when_there_is_no_replica() {
    let servers = servers::Redis::cluster().await.unwrap();
    for replica in &servers.nodes()[3..] {
        replica.kill().unwrap();
    }
    let plain = Redis::connect(&url(&servers)).await.unwrap();
    let strict = format!("{}?replicas=1&replicas_timeout=100ms", url(&servers));
    let long = Duration::from_secs(60);
    for round in 0..20 {
        // A store of its own each time: it begins to listen when it first waits.
        let strict = Redis::connect(&strict).await.unwrap();
        let name = format!("lock-{round}");
        let (mut one, mut two) =
            (plain.enter(claim_of(&name, long, 1, 1)), strict.enter(claim_of(&name, long, 1, 1)));
        held(&mut one).await;
        let key = one_key(&name);
        let take = async {
            loop {
                match two.turn().await {
                    Ok(Turn::Held(grant)) => panic!("round {round}: nobody confirmed {grant:?}"),
                    Err(fault) if fault.message.contains("0 of 1") => return,
                    Err(fault) => assert!(fault.is_transient(), "{fault}"),
                    Ok(_) => {
                        tokio::select! {
                            () = two.changed() => {}
                            () = Clock::boot().sleep(Duration::from_millis(50)) => {}
                        }
                    }
                }
            }
        };
        let free = async {
            while plain.show(&key).await.unwrap().is_none_or(|it| it.waiters.is_empty()) {}
            one.leave().await.unwrap();
        };
        Box::pin(within("a refusal", async { tokio::join!(take, free) })).await;
    }
}

fn one_key(name: &str) -> Key {
    Key::new(name).unwrap()
}

#[tokio::test]
async fn a_frozen_node_is_not_waited_for_by_newcomers_nor_by_those_who_hold() {
    let (servers, redis) = deployment().await;
    let names: Vec<_> = (0..12).map(|it| format!("lock-{it}")).collect();
    let locker = Locker::builder(redis).ttl(Duration::from_secs(9)).build();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locker.lock(name).await.unwrap());
    }
    let clock = Clock::boot();
    // Each of the six in turn; the replicas first, because a primary that is frozen is replaced by its replica.
    for at in [3, 4, 5, 0] {
        let node = &servers.nodes()[at];
        let served = slot_key(node, &servers).await;
        node.pause().unwrap();
        let began = clock.now();
        let newcomer = Redis::connect(&url(&servers)).await.unwrap();
        assert!(clock.now() - began < Duration::from_secs(2), "connecting took {:?}", clock.now() - began);
        if let Some(key) = served {
            servers.wait_failover(&key, node).await.unwrap();
        }
        for number in 0..6 {
            let mut place = newcomer.enter(claim(&format!("new-{at}-{number}")));
            until_held(&mut place).await;
        }
        for guard in &guards {
            assert!(guard.is_valid(), "node {at} is frozen, and a lock is lost");
        }
        node.resume().unwrap();
        servers.wait_whole().await.unwrap();
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// A key that this primary serves.
async fn slot_key(node: &servers::Redis, servers: &RedisCluster) -> Option<String> {
    for number in 0..64 {
        let key = format!("{{{number}}}");
        if servers.primary_of(&key).await.ok()?.port() == node.port() {
            return Some(key);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_by_a_process_that_hears_nothing_any_more_is_free_at_once() {
    let servers = servers::Redis::cluster().await.unwrap();
    let proxies = behind_proxies(&servers).await;
    let hosts: Vec<_> = proxies.iter().map(Proxy::address).collect();
    let redis = Redis::connect(&format!("redis+cluster://{}", hosts.join(","))).await.unwrap();
    let here = Locker::builder(redis).ttl(Duration::from_secs(3600)).build();
    // The server knows the scripts from then on.
    here.lock("k").await.unwrap().release().await.unwrap();
    let guard = here.lock("k").await.unwrap();
    let key = only_key(&servers).await;
    for proxy in &proxies {
        proxy.set(Direction::ToClient, Rule::Drop);
    }
    drop(guard);
    within("the end of what was given back", async {
        for keeper in &servers.nodes()[..3] {
            while !keeper.command(&["KEYS", &key]).await.unwrap().items().is_empty() {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
}
