//! Redis in each of its topologies.

use lockkeeper_servers::process::is_alive;
use lockkeeper_servers::{Daemon, Redis, RedisOptions, RespClient, Value};

use crate::{drop_and_check, pid};

async fn start() -> Redis {
    Redis::start(RedisOptions::default()).await.expect("redis starts")
}

#[tokio::test]
async fn two_servers_run_side_by_side_and_leave_nothing_behind() {
    let (one, two) = (start().await, start().await);
    one.command(&["SET", "key", "one"]).await.unwrap();
    assert_eq!(two.command(&["GET", "key"]).await.unwrap(), Value::Nil);
    assert_eq!(one.command(&["GET", "key"]).await.unwrap().text(), "one");
    drop_and_check((one, two), |(one, two)| vec![one, two]);
}

#[tokio::test]
async fn a_stopped_server_is_gone_and_comes_back_on_its_port() {
    let redis = start().await;
    let (port, old) = (redis.port(), pid(&redis));
    redis.stop().await.unwrap();
    assert!(!is_alive(old) && redis.pid().is_none());
    assert!(redis.command(&["PING"]).await.is_err());
    assert!(redis.kill().is_err(), "there is nothing to kill");
    redis.start().await.unwrap();
    assert_eq!(redis.port(), port);
    assert_eq!(redis.command(&["PING"]).await.unwrap().text(), "PONG");
    assert!(redis.start().await.is_err(), "it runs already");
}

#[tokio::test]
async fn an_append_only_server_keeps_its_data_through_a_kill_unless_told_to_forget() {
    let redis = Redis::start(RedisOptions::default().append_only()).await.unwrap();
    redis.command(&["SET", "key", "kept"]).await.unwrap();
    redis.kill().unwrap();
    redis.start().await.unwrap();
    assert_eq!(redis.command(&["GET", "key"]).await.unwrap().text(), "kept");
    redis.restart_empty().await.unwrap();
    assert_eq!(redis.command(&["GET", "key"]).await.unwrap(), Value::Nil);
}

#[tokio::test]
async fn a_paused_server_answers_only_after_it_was_resumed() {
    let redis = start().await;
    let mut client = redis.client().await.unwrap();
    redis.pause().unwrap();
    client.send(&["PING"]).await.unwrap();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid(&redis))).unwrap();
    assert!(state.contains(") T "), "{state}");
    redis.resume().unwrap();
    assert_eq!(client.receive().await.unwrap().text(), "PONG");
}

#[tokio::test]
async fn a_password_is_demanded_and_known_to_the_kit() {
    let redis = Redis::start(RedisOptions::default().password("s\"p a\\ce@")).await.unwrap();
    assert_eq!(redis.command(&["PING"]).await.unwrap().text(), "PONG");
    assert_eq!(redis.url(), format!("redis://:s%22p%20a%5Cce%40@{}", redis.address()));
    let mut stranger = RespClient::connect(redis.port()).await.unwrap();
    let refused = stranger.command(&["PING"]).await.unwrap_err().to_string();
    assert!(refused.contains("NOAUTH"), "{refused}");
    assert!(!format!("{redis:?}").contains("ce@"));
}

#[tokio::test]
async fn an_acl_file_rules_everybody_but_the_kit() {
    let lines = "user default off\nuser app on >app ~app:* +get";
    let redis = Redis::start(RedisOptions::default().acl(lines)).await.unwrap();
    redis.command(&["SET", "app:key", "value"]).await.unwrap();
    let mut app = RespClient::connect(redis.port()).await.unwrap();
    app.command(&["AUTH", "app", "app"]).await.unwrap();
    assert_eq!(app.command(&["GET", "app:key"]).await.unwrap().text(), "value");
    let refused = app.command(&["GET", "other"]).await.unwrap_err().to_string();
    assert!(refused.contains("NOPERM"), "{refused}");
}

#[tokio::test]
async fn a_server_with_tls_has_a_second_port_and_certificates() {
    let redis = Redis::start(RedisOptions::default().tls()).await.unwrap();
    let (tls, url) = (redis.tls().unwrap(), redis.tls_url().unwrap());
    for file in [&tls.ca, &tls.server_cert, &tls.client_cert] {
        assert!(std::fs::read_to_string(file).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    }
    let port = url.strip_prefix("rediss://127.0.0.1:").unwrap();
    assert_eq!(redis.command(&["CONFIG", "GET", "tls-port"]).await.unwrap().items()[1].text(), port);
    // A plain client gets no word out of the port with TLS.
    let mut plain = RespClient::connect(port.parse().unwrap()).await.unwrap();
    assert!(plain.command(&["PING"]).await.is_err());
}

#[tokio::test]
async fn the_client_reads_every_kind_of_value() {
    let redis = start().await;
    let mut client = redis.client().await.unwrap();
    assert!(matches!(client.command(&["HELLO", "3"]).await.unwrap(), Value::Map(pairs) if !pairs.is_empty()));
    for (kind, expected) in [
        ("STRING", "\"Hello World\""),
        ("INTEGER", "12345"),
        ("DOUBLE", "3.141"),
        ("NULL", "nil"),
        ("ARRAY", "[0, 1, 2]"),
        ("SET", "[0, 1, 2]"),
        ("MAP", "{0: false, 1: true, 2: false}"),
        ("BIGNUM", "\"1234567999999999999999999999999999999\""),
        ("TRUE", "true"),
        ("VERBATIM", "\"This is a verbatim\\nstring\""),
    ] {
        let value = client.command(&["DEBUG", "PROTOCOL", kind]).await.unwrap();
        assert_eq!(format!("{value:?}"), expected, "{kind}");
    }
    assert!(client.command(&["NOSUCHCOMMAND"]).await.is_err());
    client.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    client.command(&["SET", "key", "value"]).await.unwrap();
    let stats = client.command(&["INFO", "commandstats"]).await.unwrap();
    assert!(stats.field("cmdstat_set").unwrap().starts_with("calls=1,"));
}

#[tokio::test]
async fn five_masters_know_nothing_of_each_other() {
    let masters = Redis::masters(5).await.unwrap();
    for (index, master) in masters.iter().enumerate() {
        assert_eq!(master.command(&["INCR", "key"]).await.unwrap(), Value::Int(1), "{index}");
        assert_eq!(master.command(&["ROLE"]).await.unwrap().items()[0].text(), "master");
    }
    drop_and_check(masters, |it| it.iter().map(|it| -> &Daemon { it }).collect());
}

#[tokio::test]
async fn sentinels_replace_a_primary_that_was_killed() {
    let all = Redis::sentinel().await.unwrap();
    let old = all.primary().await.unwrap();
    assert_eq!(old.port(), all.nodes()[0].port());
    old.command(&["SET", "key", "value"]).await.unwrap();
    assert_eq!(old.command(&["WAIT", "2", "5000"]).await.unwrap(), Value::Int(2));
    old.kill().unwrap();
    let new = all.wait_failover(old).await.unwrap();
    assert_eq!(new.command(&["GET", "key"]).await.unwrap().text(), "value");
    old.start().await.unwrap();
    drop_and_check(all, |it| it.nodes().iter().chain(it.sentinels()).map(|it| -> &Daemon { it }).collect());
}

#[tokio::test]
async fn a_cluster_replaces_a_primary_that_was_killed_and_takes_it_back() {
    let cluster = Redis::cluster().await.unwrap();
    let old = cluster.primary_of("key").await.unwrap();
    old.command(&["SET", "key", "value"]).await.unwrap();
    assert_eq!(old.command(&["WAIT", "1", "5000"]).await.unwrap(), Value::Int(1));
    let elsewhere = cluster.nodes()[..3].iter().find(|it| it.port() != old.port()).unwrap();
    let moved = elsewhere.command(&["GET", "key"]).await.unwrap_err().to_string();
    assert!(moved.contains("MOVED") && moved.ends_with(&old.address()), "{moved}");
    old.kill().unwrap();
    let new = cluster.wait_failover("key", old).await.unwrap();
    assert_eq!(new.command(&["GET", "key"]).await.unwrap().text(), "value");
    old.start().await.unwrap();
    cluster.wait_whole().await.unwrap();
    drop_and_check(cluster, |it| it.nodes().iter().map(|it| -> &Daemon { it }).collect());
}

fn is_send(_: impl Send) {}

#[tokio::test]
async fn topologies_can_be_started_from_a_spawned_task() {
    let masters = tokio::spawn(Redis::masters(2)).await.unwrap().unwrap();
    assert_eq!(masters.len(), 2);
    // That these futures are `Send` is checked by the compiler; they need not run.
    is_send(Redis::sentinel());
    is_send(Redis::cluster());
}
