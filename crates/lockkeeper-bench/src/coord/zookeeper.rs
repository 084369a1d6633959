//! ZooKeeper: against bare create, list and delete, and against the client crate's own lock.

use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use super::hand_off;
use super::measure::{beside, crowd, our_crowd};
use crate::report::Row;
use crate::{Answer, Outcome};

const TTL: Duration = Duration::from_secs(30);

pub(crate) async fn run(three: bool) -> Outcome {
    let servers = if three {
        Server::ensemble().await.map(|it| (Some(it), None))?
    } else {
        Server::start(ZooKeeperOptions::default()).await.map(|it| (None, Some(it)))?
    };
    let hosts: Vec<String> = match &servers {
        (Some(ensemble), _) => ensemble.nodes().iter().map(|it| it.address()).collect(),
        (_, one) => one.iter().map(|it| it.address()).collect(),
    };
    // Both sides on the same server, which is a follower or the leader for both.
    let url = format!("zookeeper://{}?session=30s", hosts[0]);
    let locker = Locker::builder(ZooKeeper::connect(&url).await?).ttl(TTL).build();
    let client = Client::connector().with_session_timeout(TTL).connect(&hosts[0]).await?;
    let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/bare/one", &folder).await?;
    client.mkdir("/rival", &folder).await?;
    locker.lock("warm").await?.release().await?;
    let times =
        beside(async || Ok(locker.lock("one").await?.release().await?), async || bare(&client).await).await?;
    let mut rows = vec![Row::of_times("lock + unlock, beside bare create, list and delete", times, 1.2)];
    let ours = our_crowd(&locker).await;
    let theirs = crowd(move || rival(client.clone())).await;
    let what = "64 tasks of one process on one key, guards per second, beside the client crate's own lock";
    rows.push(Row::of_rates(what, (ours, theirs), 30.0));
    let process = async || {
        Ok::<_, lockkeeper_core::Error>(Locker::builder(ZooKeeper::connect(&url).await?).ttl(TTL).build())
    };
    let processes = [process().await?, process().await?];
    let first = match &servers {
        (Some(ensemble), _) => ensemble.nodes().first(),
        (_, one) => one.as_ref(),
    };
    let first = first.ok_or("there is no server")?;
    let before = first.figure("zk_packets_received").await?;
    let times = hand_off::to_and_fro(processes).await?;
    let requests = first.figure("zk_packets_received").await? - before;
    rows.push(hand_off::row(
        times,
        requests,
        5.5,
        "make, list and watch in line; enter, give back; another look if the one before left meanwhile; heartbeats among them",
    ));
    Ok(rows)
}

async fn bare(client: &Client) -> Answer<()> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create("/bare/one/n-", b"", &options).await?;
    client.list_children("/bare/one").await?;
    client.delete(&format!("/bare/one/n-{number}"), None).await?;
    Ok(())
}

async fn rival(client: Client) -> Answer<()> {
    let prefix = LockPrefix::new_curator("/rival", "latch-")?;
    let lock = client.lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await?;
    let path = lock.lock_path().to_owned();
    // Dropping it gives it back later; this gives it back now.
    client.delete(&path, None).await?;
    Ok(())
}
