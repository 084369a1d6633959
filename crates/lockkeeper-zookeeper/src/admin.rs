//! The operator's view: who holds what, who waits, and breaking a lock by hand.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::admission;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::record::{Record, key_of, segment_of};
use lockkeeper_core::{Fence, Key};
use zookeeper_client::Error;

use crate::line::in_order;
use crate::session::Session;
use crate::{ZooKeeper, doctor, fault};

const LOOKING: &str = "looking at the locks";
const BREAKING: &str = "breaking the lock";

/// One claim as it lies in the store.
struct Found {
    path: String,
    occupant: Occupant,
}

impl ZooKeeper {
    async fn children(&self, session: &Session, path: &str, doing: &'static str) -> Result<Vec<String>> {
        match self.store.in_time(doing, session.client.list_children(path)).await? {
            Ok(names) => Ok(names),
            Err(Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(fault::from_error(doing, error)),
        }
    }

    /// Those who hold and those who wait for one key.
    async fn line(
        &self,
        session: &Session,
        key: &Key,
        doing: &'static str,
    ) -> Result<(Vec<Found>, Vec<Found>)> {
        let folder = format!("{}/{}", self.options().path, segment_of(key.as_str()));
        let line = in_order(self.children(session, &folder, doing).await?);
        let loads: Vec<_> = line.iter().map(|it| it.load).collect();
        let inside = admission::inside(&loads);
        let paths: Vec<_> = line.iter().map(|it| format!("{folder}/{}", it.name)).collect();
        // All are sent at once.
        let asked: Vec<_> = paths.iter().map(|it| session.client.get_data(it)).collect();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (at, (data, path)) in asked.into_iter().zip(&paths).enumerate() {
            let (data, stat) = match self.store.in_time(doing, data).await? {
                Ok(found) => found,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(fault::from_error(doing, error)),
            };
            let Some(record) = Record::read(&data) else { continue };
            // The write that let it in was the last to its node.
            let counter = u64::try_from(stat.mzxid).unwrap_or(0);
            let occupant = Occupant::new(record.label, self.session)
                .fence((at < inside).then(|| Fence::of_grant(counter)))
                .load(record.load);
            let side = if at < inside { &mut holders } else { &mut waiters };
            side.push(Found { path: path.clone(), occupant });
        }
        Ok((holders, waiters))
    }

    async fn info(&self, session: &Session, key: Key) -> Result<Option<LockInfo>> {
        let (holders, waiters) = self.line(session, &key, LOOKING).await?;
        let people = |it: Vec<Found>| it.into_iter().map(|it| it.occupant).collect::<Vec<_>>();
        let (holders, waiters) = (people(holders), people(waiters));
        let anybody = !(holders.is_empty() && waiters.is_empty());
        Ok(anybody.then_some(LockInfo::new(key, holders, waiters)))
    }

    /// The session of this process, after it has caught up with the leader.
    async fn caught_up(&self, doing: &'static str) -> Result<Arc<Session>> {
        let session = self.store.sessions.session().await?;
        let synced = self.store.in_time(doing, session.client.sync(&self.options().path)).await?;
        synced.map_err(|it| fault::from_error(doing, it))?;
        Ok(session)
    }
}

impl Inspect for ZooKeeper {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let session = self.caught_up(LOOKING).await?;
        let names = self.children(&session, &self.options().path, LOOKING).await?;
        let mut keys: Vec<Key> = names.iter().filter_map(|it| key_of(it)).collect();
        keys.retain(|it| it.as_str().starts_with(prefix));
        keys.sort();
        let mut infos = Vec::new();
        for key in keys {
            infos.extend(self.info(&session, key).await?);
        }
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let session = self.caught_up(LOOKING).await?;
        self.info(&session, key.clone()).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let session = self.caught_up(BREAKING).await?;
        let (holders, _) = self.line(&session, key, BREAKING).await?;
        let mut broken = Vec::new();
        for holder in holders {
            match self.store.in_time(BREAKING, session.client.delete(&holder.path, None)).await? {
                Ok(()) => broken.push(holder.occupant.valid_for(Duration::ZERO)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(fault::from_error(BREAKING, error)),
            }
        }
        Ok(broken)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(doctor::examine(self).await)
    }
}
