//! The operator's view: what a majority of nodes says.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use lockkeeper_core::Key;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::node::Node;

use crate::Redlock;
use crate::quorum::{self, Say, gather, reached_by};

impl<B: Node + Inspect> Redlock<B> {
    /// Ask every node; what a majority answered counts.
    async fn ask_majority<T, F>(&self, doing: &'static str, ask: impl Fn(Arc<B>) -> F) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let asked = self.0.nodes.iter().map(|node| ask(node.clone()));
        let said = gather(&self.0.clock, self.0.options.patience(), asked).await;
        if said.iter().filter(|it| it.told().is_some()).count() < self.0.majority() {
            return Err(quorum::too_few(doing, self.0.majority(), &said));
        }
        let told = |it| if let Say::Told(it) = it { Some(it) } else { None };
        Ok(said.into_iter().filter_map(told).collect())
    }

    /// Those that a majority of nodes knows. What fewer know is an attempt that failed or is under way.
    fn agreed(&self, seen: Vec<Occupant>) -> Vec<Occupant> {
        let mut groups: Vec<Vec<Occupant>> = Vec::new();
        for occupant in seen {
            match groups.iter_mut().find(|it| it[0].label == occupant.label) {
                Some(group) => group.push(occupant),
                None => groups.push(vec![occupant]),
            }
        }
        let agree = |group: Vec<Occupant>| {
            let valid_for = reached_by(self.0.majority(), group.iter().map(|it| it.valid_for).collect())?;
            let since = group.iter().filter_map(|it| it.since).max();
            let fence = group.iter().filter_map(|it| it.fence).max();
            let first = group.into_iter().next()?;
            Some(first.since(since).fence(fence).valid_for(valid_for))
        };
        groups.into_iter().filter_map(agree).collect()
    }

    fn lock(&self, key: Key, seen: Vec<LockInfo>) -> Option<LockInfo> {
        // So many nodes that cannot be read keep everybody out.
        let blocked =
            self.0.nodes.len() - self.0.majority() < seen.iter().filter(|it| !it.foreign.is_empty()).count();
        let (mut holders, mut foreign) = (Vec::new(), Vec::new());
        for info in seen {
            holders.extend(info.holders);
            foreign.extend(info.foreign);
        }
        let mut info = LockInfo::new(key, self.agreed(holders), Vec::new());
        if blocked || !info.holders.is_empty() {
            info.foreign = foreign;
        }
        (!info.is_free()).then_some(info)
    }
}

impl<B: Node + Inspect> Inspect for Redlock<B> {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let prefix: Arc<str> = prefix.into();
        let ask = |node: Arc<B>| {
            let prefix = prefix.clone();
            async move { node.list(&prefix).await }
        };
        let mut by_key: BTreeMap<Key, Vec<LockInfo>> = BTreeMap::new();
        for info in self.ask_majority("listing the locks", ask).await?.into_iter().flatten() {
            by_key.entry(info.key.clone()).or_default().push(info);
        }
        Ok(by_key.into_iter().filter_map(|(key, seen)| self.lock(key, seen)).collect())
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let ask = |node: Arc<B>| {
            let key = key.clone();
            async move { node.show(&key).await }
        };
        let seen = self.ask_majority("looking at the lock", ask).await?;
        Ok(self.lock(key.clone(), seen.into_iter().flatten().collect()))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let ask = |node: Arc<B>| {
            let key = key.clone();
            async move { node.break_lock(&key).await }
        };
        let broken = self.ask_majority("breaking the lock", ask).await?;
        Ok(self.agreed(broken.into_iter().flatten().collect()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(self.examine().await)
    }
}
