//! The doctor: what each node's own finds, and what is wrong with the nodes together.

use lockkeeper_core::inspect::{Finding, Inspect, Severity};
use lockkeeper_core::node::Node;

use crate::Redlock;
use crate::quorum::{self, Say, gather};

impl<B: Node + Inspect> Redlock<B> {
    /// Everything that endangers locks.
    pub(crate) async fn examine(&self) -> Vec<Finding> {
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
        findings
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
