//! ZooKeeper: against bare create, list and delete, and against the client crate's own lock.

use std::time::Duration;

use lockkeeper_core::Locker;
use lockkeeper_servers::{ZooKeeper as Server, ZooKeeperOptions};
use lockkeeper_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::{cycles, hand_off, on_several};
use crate::measure::beside_tasks;
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
    let what = "lock + unlock, beside bare create, list and delete";
    let mut rows = vec![Row::of_times(what, free(locker.clone(), client.clone()).await?, 1.2)];
    if !three {
        let times = several(url.clone(), hosts[0].clone()).await?;
        rows.push(Row::of_times("the same on `multi_thread`", times, 1.2));
    }
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

/// On several threads.
async fn several(url: String, host: String) -> Answer<(Duration, Duration)> {
    on_several(move || opened(url, host)).await
}

/// The same with connections of its own, which live on the present runtime.
async fn opened(url: String, host: String) -> Answer<(Duration, Duration)> {
    let locker = Locker::builder(ZooKeeper::connect(&url).await?).ttl(TTL).build();
    free(locker, Client::connector().with_session_timeout(TTL).connect(&host).await?).await
}

/// A free lock, and the bare requests.
async fn free(locker: Locker, client: Client) -> Answer<(Duration, Duration)> {
    locker.lock("warm").await?.release().await?;
    beside_tasks(
        |count| cycles(locker.clone(), count),
        |count| {
            let client = client.clone();
            async move {
                for _ in 0..count {
                    bare(&client).await?;
                }
                Ok(())
            }
        },
    )
    .await
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
