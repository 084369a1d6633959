//! Memos on a real server: told by a watch, and cleaned away when their time is over.

use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::memos::{Memos, Swap};
use lockkeeper_servers::quorum::PATIENCE;
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::Client;

const LONG: Duration = Duration::from_secs(3600);

async fn two_processes() -> (Server, ZooKeeper, ZooKeeper) {
    let server = Server::start(ZooKeeperOptions::default()).await.unwrap();
    let (here, there) = (ZooKeeper::connect(&server.url()).await, ZooKeeper::connect(&server.url()).await);
    (server, here.unwrap(), there.unwrap())
}

async fn written(store: &ZooKeeper, name: &str, seen: Option<u64>, keep: Duration) -> u64 {
    let key = Key::new(name).unwrap();
    match store.swap(&key, seen, name.as_bytes(), keep).await.unwrap() {
        Swap::Done(version) => version,
        other => panic!("{name} was not written over {seen:?}: {other:?}"),
    }
}

#[tokio::test]
async fn nodes_of_memos_whose_time_is_over_go_and_those_of_others_stay() {
    const MANY: usize = 90;
    let (server, store, other) = two_processes().await;
    let kept = written(&store, "kept", None, LONG).await;
    for at in 0..MANY {
        written(&store, &format!("tick/{at}"), None, Duration::from_millis(1)).await;
    }
    let client = Client::connect(&server.address()).await.unwrap();
    let left = client.list_children("/lockkeeper/.memos").await.unwrap().len();
    assert!(left < MANY - 10, "{left} of {MANY} nodes are left");
    let memo = other.read(&Key::new("kept").unwrap()).await.unwrap().unwrap();
    assert_eq!((memo.version, memo.value.as_slice()), (kept, b"kept".as_slice()));
}

#[tokio::test]
async fn whoever_waits_for_a_memo_is_told_of_every_kind_of_change() {
    let (_server, here, there) = two_processes().await;
    let key = Key::new("leader").unwrap();
    let told = async |seen: Option<u64>| {
        tokio::time::timeout(PATIENCE, async {
            while there.read(&key).await.unwrap().map(|it| it.version) == seen {
                there.changed(&key, seen).await;
            }
        })
        .await
        .unwrap();
    };
    let ((), first) = tokio::join!(told(None), written(&here, "leader", None, LONG));
    let ((), second) = tokio::join!(told(Some(first)), written(&here, "leader", Some(first), LONG));
    let ((), third) =
        tokio::join!(told(Some(second)), written(&here, "leader", Some(second), Duration::ZERO));
    assert!(first < second && second < third);
    // Nobody removes what is merely over.
    let short = written(&here, "leader", None, Duration::from_millis(300)).await;
    told(Some(short)).await;
}
