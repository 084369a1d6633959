//! A list or a watch that comes late: between the making of our node and the look at the line others come and go, or
//! between that look and the watch.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Load;
use lockkeeper_core::backend::{Backend, Grant, Place, Turn};
use lockkeeper_servers::proxy::Proxy;
use lockkeeper_servers::quorum::{Quorum, claim, soon};
use lockkeeper_zookeeper::ZooKeeper;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::Servers;

const TTL: Duration = Duration::from_secs(30);

/// What the proxy does with the requests of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    /// All pass.
    Nothing,
    /// What follows the next node that is made is kept back.
    WhatFollowsANode,
    /// It is kept back, and the node was made.
    Kept,
}

type Switch = Arc<watch::Sender<Keeping>>;

/// A proxy that knows where a request ends, so that it can keep apart two that were sent together.
async fn proxy(server: u16) -> (u16, Switch) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let switch = Switch::new(watch::Sender::new(Keeping::Nothing));
    let theirs = switch.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
            let ((from_client, mut to_client), (mut from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(requests(from_client, to_server, theirs.clone()));
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        }
    });
    (port, switch)
}

/// Forward requests until one side has gone.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, switch: Switch) -> std::io::Result<()> {
    /// The kind of request that makes a node and tells of it.
    const CREATE: [u8; 4] = 15_i32.to_be_bytes();
    loop {
        let length = from.read_u32().await?;
        let mut request = vec![0; usize::try_from(length).unwrap()];
        from.read_exact(&mut request).await?;
        switch.subscribe().wait_for(|it| *it != Keeping::Kept).await.unwrap();
        // In one go: two small writes are kept apart by the system, and the second would come late.
        to.write_all(&[&length.to_be_bytes()[..], &request].concat()).await?;
        let makes_a_node = request.get(4..8).is_some_and(|it| it == CREATE);
        if makes_a_node && *switch.borrow() == Keeping::WhatFollowsANode {
            switch.send_replace(Keeping::Kept);
        }
    }
}

fn held(turn: Turn) -> Grant {
    let Turn::Held(grant) = turn else { panic!("{turn:?}") };
    grant
}

/// One joins behind a holder and a waiter; before it looks at the line, both have held and gone. Two counters: that of
/// the waiter, and that of the one whose look was late.
async fn look_late(late: Load) -> (u64, u64) {
    let servers = Servers::start(1).await;
    let (port, switch) = proxy(servers.first().port()).await;
    let direct = ZooKeeper::connect(&servers.url_of_all(TTL)).await.unwrap();
    let url = format!("zookeeper://127.0.0.1:{port}?session=30s&tick=100ms&timeout=1m");
    let through = ZooKeeper::connect(&url).await.unwrap();
    // What is needed once is there before it begins.
    let mut first = through.enter(claim("job", TTL));
    held(first.turn().await.unwrap());
    first.leave().await.unwrap();
    soon("an answer in time", async {
        // A client leaves a server that is silent for long. Then the look was answered by another connection.
        loop {
            let (mut holder, mut waiter) = (direct.enter(claim("job", TTL)), direct.enter(claim("job", TTL)));
            held(holder.turn().await.unwrap());
            assert!(matches!(waiter.turn().await.unwrap(), Turn::Wait { .. }));
            let mut place = through.enter(claim("job", TTL).load(late));
            switch.send_replace(Keeping::WhatFollowsANode);
            let asks = tokio::spawn(async move { (place.turn().await, place) });
            switch.subscribe().wait_for(|it| *it == Keeping::Kept).await.unwrap();
            holder.leave().await.unwrap();
            soon("a wake-up", waiter.changed()).await;
            let before = held(waiter.turn().await.unwrap()).counter;
            waiter.leave().await.unwrap();
            switch.send_replace(Keeping::Nothing);
            let (answer, mut place) = asks.await.unwrap();
            place.leave().await.unwrap();
            if let Ok(turn) = answer {
                return (before, held(turn).counter);
            }
        }
    })
    .await
}

#[tokio::test]
async fn whoever_looks_late_has_a_larger_number_than_those_who_held_meanwhile() {
    for load in [Load::MUTEX, Load::READER] {
        let (before, after) = look_late(load).await;
        assert!(before < after, "{load:?}: {before} and then {after}");
    }
}

#[tokio::test]
async fn whoever_finds_that_the_one_before_it_has_left_meanwhile_enters_without_another_look() {
    // A list of the line that asks for no watch: what is asked for, the length of the path, the path.
    const LOOK: &[u8] = b"\0\0\0\x0c\0\0\0\x0f/lockkeeper/job\0";
    let servers = Servers::start(1).await;
    let proxy = Proxy::start(servers.first().port()).await.unwrap();
    let direct = ZooKeeper::connect(&servers.url_of_all(TTL)).await.unwrap();
    let url = format!("zookeeper://{}?session=30s&tick=100ms&timeout=1m", proxy.address());
    let through = ZooKeeper::connect(&url).await.unwrap();
    let mut first = through.enter(claim("job", TTL));
    held(first.turn().await.unwrap());
    first.leave().await.unwrap();

    let before = claim("job", TTL);
    let id = before.id.to_hex();
    let (mut holder, mut place) = (direct.enter(before), through.enter(claim("job", TTL)));
    let earlier = held(holder.turn().await.unwrap()).counter;
    proxy.keep_request(id.as_bytes());
    let asks = tokio::spawn(async move { (place.turn().await, place) });
    proxy.wait_for(|it| it.kept == 1).await.unwrap();
    holder.leave().await.unwrap();
    proxy.lose_request(LOOK);
    proxy.let_go();
    let (turn, mut place) = asks.await.unwrap();
    assert_eq!(proxy.counters().cut, 0, "it looked once more");
    assert!(earlier < held(turn.unwrap()).counter);
    place.leave().await.unwrap();
}
