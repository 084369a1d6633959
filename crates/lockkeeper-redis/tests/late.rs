//! A request that arrives after those that were sent after it: what was given up does not come back to life.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{claim_of, held, until_held, waits, within};
use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::Inspect as _;
use lockkeeper_redis::{Redis, RedisPlace};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::{self as servers, RedisOptions};

const LONG: Duration = Duration::from_secs(600);

fn enter(redis: &Redis) -> RedisPlace {
    redis.enter(claim_of("k", LONG, 1, 1))
}

struct Scene {
    server: servers::Redis,
    proxy: Proxy,
    /// Behind the proxy.
    far: Redis,
    near: Redis,
}

impl Scene {
    async fn start() -> Self {
        let server = servers::Redis::start(RedisOptions::default()).await.unwrap();
        let proxy = Proxy::start(server.port()).await.unwrap();
        let far = Redis::connect(&format!("redis://{}?timeout=300ms", proxy.address())).await.unwrap();
        let near = Redis::connect(&server.url()).await.unwrap();
        let mut warm_up = far.enter(claim_of("warm-up", LONG, 1, 1));
        held(&mut warm_up).await;
        warm_up.leave().await.unwrap();
        Scene { server, proxy, far, near }
    }

    /// A place whose `turn` is on its way and whose `leave` has overtaken it.
    async fn overtaken(&self) -> RedisPlace {
        let mut place = enter(&self.far);
        self.proxy.keep_request(b"EVALSHA");
        // No answer comes on this connection: the call is sent again on another, and answered.
        let _ = place.turn().await.unwrap();
        assert_eq!(self.proxy.counters().kept, 1);
        place.leave().await.unwrap();
        place
    }

    /// The late `turn` arrives now, and is served.
    async fn deliver(&self) {
        let asked = self.asked().await;
        self.proxy.let_go();
        within("the late call to be served", async {
            while self.asked().await == asked {
                Clock::boot().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// How many scripts the server has run.
    async fn asked(&self) -> String {
        let stats = self.server.command(&["INFO", "commandstats"]).await.unwrap();
        let calls = stats.field("cmdstat_evalsha").unwrap();
        calls.split(',').next().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_take_that_arrives_after_its_own_release_takes_nothing() {
    let scene = Scene::start().await;
    scene.overtaken().await;
    scene.deliver().await;
    assert!(scene.near.list("").await.unwrap().is_empty(), "it came back to life");
    held(&mut enter(&scene.near)).await;
}

#[tokio::test]
async fn it_takes_nothing_either_when_others_came_and_went_meanwhile() {
    let scene = Scene::start().await;
    scene.overtaken().await;
    let (mut one, mut two) = (enter(&scene.near), enter(&scene.near));
    let first = held(&mut one).await;
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: false, .. }));
    waits(&mut two).await;
    assert!(matches!(one.renew().await.unwrap(), Renewal::Held { wanted: true, .. }));
    one.leave().await.unwrap();
    assert!(first.counter < until_held(&mut two).await.counter);
    two.leave().await.unwrap();
    scene.deliver().await;
    assert!(scene.near.list("").await.unwrap().is_empty(), "it came back to life");
    held(&mut enter(&scene.near)).await;
}

#[tokio::test]
async fn it_does_not_join_a_line_of_others() {
    let scene = Scene::start().await;
    let (mut one, mut two) = (enter(&scene.near), enter(&scene.near));
    held(&mut one).await;
    scene.overtaken().await;
    scene.deliver().await;
    let info = scene.near.list("").await.unwrap().remove(0);
    assert_eq!((info.holders.len(), info.waiters.len()), (1, 0));
    waits(&mut two).await;
    let info = scene.near.list("").await.unwrap().remove(0);
    assert_eq!((info.holders.len(), info.waiters.len()), (1, 1));
    one.leave().await.unwrap();
    until_held(&mut two).await;
}

#[tokio::test]
async fn rooms_are_not_entered_late_either() {
    let scene = Scene::start().await;
    let reader = || scene.near.enter(claim_of("k", LONG, 1, 3));
    let (mut one, mut two) = (reader(), reader());
    held(&mut one).await;
    held(&mut two).await;
    let mut late = scene.far.enter(claim_of("k", LONG, 1, 3));
    scene.proxy.keep_request(b"EVALSHA");
    held(&mut late).await;
    late.leave().await.unwrap();
    scene.deliver().await;
    let info = scene.near.list("").await.unwrap().remove(0);
    assert_eq!(info.holders.len(), 2);
    assert!(matches!(two.renew().await.unwrap(), Renewal::Held { wanted: false, .. }));
    held(&mut reader()).await;
}

#[tokio::test]
async fn the_same_place_may_ask_again_under_another_name() {
    let scene = Scene::start().await;
    let mut place = scene.overtaken().await;
    let grant = held(&mut place).await;
    scene.deliver().await;
    assert_eq!(held(&mut place).await.counter, grant.counter);
    place.leave().await.unwrap();
    held(&mut enter(&scene.near)).await;
}

#[tokio::test]
async fn a_take_that_was_sent_twice_takes_nothing_the_second_time() {
    let scene = Scene::start().await;
    let mut place = enter(&scene.far);
    scene.proxy.keep_request(b"EVALSHA");
    // The server hears nothing of the first sending, and closes the connection.
    let turn = async { held(&mut place).await };
    let cut = async {
        scene.proxy.wait_for(|it| it.kept == 1).await.unwrap();
        scene.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    };
    tokio::join!(turn, cut);
    place.leave().await.unwrap();
    let gone = scene.server.command(&["KEYS", "lk:*:gone"]).await.unwrap();
    assert_eq!(gone.items().len(), 1, "the first sending would be refused: {gone:?}");
}

#[tokio::test]
async fn what_remembers_the_release_expires_by_itself_and_costs_nothing_without_doubt() {
    let scene = Scene::start().await;
    let mut place = enter(&scene.near);
    held(&mut place).await;
    place.leave().await.unwrap();
    assert!(scene.server.command(&["KEYS", "lk:{*"]).await.unwrap().items().is_empty());
    scene.overtaken().await;
    let keys = scene.server.command(&["KEYS", "lk:{*"]).await.unwrap();
    assert_eq!(keys.items().len(), 2, "{keys:?}");
    for key in keys.items() {
        let left = scene.server.command(&["PTTL", &key.text()]).await.unwrap().int().unwrap();
        assert!((1..=60_010).contains(&left), "{left}");
    }
    scene.proxy.let_go();
}
