//! ZooKeeper: against bare create, list and delete, and against the client crate's own lock.

use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::hand_off;
use crate::measure::beside_requests;
use crate::report::Row;
use crate::rival::{Ours, Rival};
use crate::{Answer, Outcome, crowd};

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
    let times = beside_requests(
        async || Ok(locker.lock("one").await?.release().await?),
        async || bare(&client).await,
    )
    .await?;
    let mut rows = vec![Row::of_times("lock + unlock, beside bare create, list and delete", times, 1.2)];
    let ours = crowd::here(vec![Ours::new(&locker)], 64, "crowd", hand_off::SPAN).await?.sound()?;
    let theirs = crowd::here(vec![CrateLock(client)], 64, "/rival", hand_off::SPAN).await?.sound()?;
    let what = "64 tasks of one process on one key, guards per second, beside the client crate's own lock";
    rows.push(Row::of_rates(what, (ours.rate(), theirs.rate()), 30.0));
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
    let handed = hand_off::to_and_fro(processes).await?;
    let requests = first.figure("zk_packets_received").await? - before;
    rows.push(hand_off::row(
        &handed,
        requests,
        4.0,
        "whoever waits needs five: make, list and watch in line; enter, give back; whoever finds it free needs three: make, list, give back; heartbeats among them; \
         what remains: decision 74",
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

/// The client crate's own lock.
#[derive(Clone)]
pub(crate) struct CrateLock(Client);

impl CrateLock {
    /// With a folder for the lock, which it does not make itself.
    pub(crate) async fn connect(address: &str, ttl: Duration, folder: &str) -> Answer<Self> {
        let client = Client::connector().with_session_timeout(ttl).connect(address).await?;
        client.mkdir(folder, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(CrateLock(client))
    }
}

impl Rival for CrateLock {
    type Taken = OwnedLockClient;

    async fn take(&mut self, key: &str) -> Answer<OwnedLockClient> {
        let prefix = LockPrefix::new_curator(key, "latch-")?;
        let lock = self.0.lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await?;
        Ok(lock.into_owned())
    }

    async fn give_back(&mut self, lock: OwnedLockClient) -> Answer<()> {
        // Dropping it gives it back later; this gives it back now.
        Ok(self.0.delete(lock.lock_path(), None).await?)
    }
}
