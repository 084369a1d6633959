//! The operator's view: what a majority of nodes says, and what each node's doctor finds.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use lockkeeper_core::Key;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant, Severity};
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
        let holders = self.agreed(seen.into_iter().flat_map(|it| it.holders).collect());
        (!holders.is_empty()).then_some(LockInfo::new(key, holders, Vec::new()))
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
        let standings = self.standings().await;
        let mut findings: Vec<_> = self.own_findings(&standings).into_iter().collect();
        let asked = self.0.nodes.iter().map(|node| {
            let node = node.clone();
            async move { node.doctor().await }
        });
        let said = gather(&self.0.clock, self.0.options.patience(), asked).await;
        for (at, said) in said.into_iter().enumerate() {
            let Say::Told(of_node) = said else { continue };
            let named = |mut it: Finding| {
                it.what = format!("node {}: {}", at + 1, it.what);
                it
            };
            findings.extend(of_node.into_iter().map(named));
        }
        Ok(findings)
    }
}

impl<B: Node> Redlock<B> {
    /// What is wrong with the nodes together.
    fn own_findings(&self, standings: &[Say<lockkeeper_core::node::Standing>]) -> Vec<Finding> {
        let (nodes, majority) = (standings.len(), self.0.majority());
        let mut findings = Vec::new();
        let mut find = |severity, what: String, consequence: &str, remedy: &str| {
            findings.push(Finding::new(severity, what, consequence, remedy));
        };
        if let Some(what) = quorum::same_server(standings) {
            find(Severity::Danger, what, "no lock is given", "name every server once");
        }
        let silent = standings.iter().filter(|it| it.told().is_none()).count();
        if 0 < silent {
            let enough = majority <= nodes - silent;
            find(
                if enough { Severity::Warning } else { Severity::Danger },
                format!("{silent} of {nodes} nodes do not answer"),
                if enough { "locks work, with fewer nodes to spare" } else { "no lock can be taken" },
                "start the nodes, or mend the network between",
            );
        }
        let forgetful = standings.iter().filter_map(Say::told).any(|it| it.remembers.is_some());
        let Some(guard) = self.0.options.restart_guard else {
            if forgetful {
                find(
                    Severity::Danger,
                    "nodes may forget and the restart guard is off".into(),
                    "a node that restarts empty can give a held lock away",
                    "switch the restart guard on, or let the nodes write every change to disk",
                );
            }
            return findings;
        };
        for (at, standing) in standings.iter().enumerate() {
            let Some(age) = standing.told().and_then(|it| it.remembers).filter(|it| *it < guard) else {
                continue;
            };
            find(
                Severity::Warning,
                format!("node {} lost its memory {age:.1?} ago", at + 1),
                "it has no vote until the longest lease has passed",
                "wait; nothing needs to be done",
            );
        }
        findings
    }
}
