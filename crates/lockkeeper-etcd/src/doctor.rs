//! The doctor: what about this cluster endangers locks.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Severity};

use crate::connection::Connection;
use crate::fault;
use crate::wire::cluster_client::ClusterClient;
use crate::wire::maintenance_client::MaintenanceClient;
use crate::wire::{
    AlarmRequest, AlarmType, MemberListRequest, StatusRequest, StatusResponse, TxnRequest, delete,
};

const LOOKING: &str = "examining the cluster";
/// A write that takes longer than this makes keep-alives late.
const WRITE_SLOW: Duration = Duration::from_millis(100);

/// Defects of etcd 3.4 that matter to locks: the first good patch release, if we know it, and what happens before.
const DEFECTS: [(Option<u32>, &str); 4] = [
    (Some(31), "a deposed leader can revoke leases that live: their locks are given away too early"),
    (Some(38), "a keep-alive can be confirmed for a lease that was revoked (we prove each by a write)"),
    (Some(42), "reads can be stale after a node was paused (we decide by writes only)"),
    (None, "watches can miss events after a compaction (waiters look again by themselves)"),
];

fn finding(severity: Severity, what: String, consequence: &str, remedy: &str) -> Finding {
    Finding::new(severity, what, consequence, remedy)
}

pub(crate) async fn examine(connection: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut versions = Vec::new();
    for at in 0..connection.nodes() {
        let name = &connection.options.endpoints[at];
        let mut node = MaintenanceClient::new(connection.node(at));
        let status = tokio::select! {
            status = node.status(connection.request(StatusRequest {}, false)) => status.ok(),
            () = connection.clock.sleep(connection.options.timeout) => None,
        };
        match status {
            Some(status) => versions.push(about_node(name, &status.into_inner(), &mut findings)),
            None => findings.push(finding(
                Severity::Warning,
                format!("{name} does not answer"),
                "one more node lost may cost the quorum, and with it every lock after its ttl",
                "start it, or take it out of the URL",
            )),
        }
    }
    versions.sort();
    versions.dedup();
    for version in &versions {
        findings.extend(about_version(version));
    }
    findings.extend(about_members(connection).await?);
    findings.extend(about_alarms(connection).await?);
    findings.push(about_writes(connection).await?);
    Ok(findings)
}

/// What one node says of itself. Answers its version.
fn about_node(name: &str, status: &StatusResponse, findings: &mut Vec<Finding>) -> String {
    if status.leader == 0 {
        findings.push(finding(
            Severity::Danger,
            format!("{name} knows of no leader"),
            "no lock can be taken or kept through it",
            "bring a majority of the nodes together",
        ));
    }
    if status.is_learner {
        findings.push(finding(
            Severity::Warning,
            format!("{name} is a learner"),
            "it serves no locks",
            "promote it, or take it out of the URL",
        ));
    }
    for error in &status.errors {
        findings.push(finding(
            Severity::Danger,
            format!("{name} reports: {error}"),
            "writes may fail, and locks with them",
            "see the log of this node",
        ));
    }
    status.version.clone()
}

fn about_version(version: &str) -> Vec<Finding> {
    let mut parts = version.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    let (major, minor, patch) = (parts.next(), parts.next(), parts.next().unwrap_or(0));
    if (major, minor) != (Some(3), Some(4)) {
        let what = format!("etcd {version}");
        return vec![finding(Severity::Fine, what, "we know of no defect, and test with 3.4.23", "nothing")];
    }
    let present = DEFECTS.iter().filter(|it| it.0.is_none_or(|fixed| patch < fixed));
    present
        .map(|(fixed, what)| {
            let remedy = fixed.map_or("update".to_owned(), |it| format!("update to 3.4.{it} or later"));
            finding(Severity::Warning, format!("etcd {version} has a known defect"), what, &remedy)
        })
        .collect()
}

async fn about_members(connection: &Connection) -> Result<Option<Finding>> {
    let call = |channel, request| async move { ClusterClient::new(channel).member_list(request).await };
    let members = connection.call(MemberListRequest {}, call).await;
    let members = members.map_err(|it| fault::from_status(LOOKING, &it))?.members.len();
    Ok(match members {
        1 => Some(finding(
            Severity::Warning,
            "the cluster has one member".to_owned(),
            "while it is down no lock can be taken, and what is held is lost after its ttl",
            "run three or five",
        )),
        it if it % 2 == 0 => Some(finding(
            Severity::Warning,
            format!("the cluster has {it} members"),
            "an even number survives no more failures than one less",
            "run three or five",
        )),
        _ => None,
    })
}

async fn about_alarms(connection: &Connection) -> Result<Vec<Finding>> {
    let call = |channel, request| async move { MaintenanceClient::new(channel).alarm(request).await };
    let alarms = connection.call(AlarmRequest::default(), call).await;
    let alarms = alarms.map_err(|it| fault::from_status(LOOKING, &it))?.alarms;
    let alarm = |it: crate::wire::AlarmMember| match it.alarm() {
        AlarmType::Nospace => Some(finding(
            Severity::Danger,
            "the alarm NOSPACE is raised".to_owned(),
            "no lock can be taken",
            "compact, defragment, raise --quota-backend-bytes, then disarm the alarm",
        )),
        AlarmType::Corrupt => Some(finding(
            Severity::Danger,
            "the alarm CORRUPT is raised".to_owned(),
            "the members disagree: a lock can be given twice",
            "replace the corrupt member",
        )),
        AlarmType::None => None,
    };
    Ok(alarms.into_iter().filter_map(alarm).collect())
}

/// A write waits for the disks of a majority: how long that takes is what every lock pays.
async fn about_writes(connection: &Connection) -> Result<Finding> {
    let nothing = Bytes::from(format!("{}/nothing", connection.options.prefix));
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let asked_at = connection.clock.now();
        let write = TxnRequest { success: vec![delete(&nothing)], ..TxnRequest::default() };
        connection.txn(write).await.map_err(|it| fault::from_status(LOOKING, &it))?;
        slowest = slowest.max(connection.clock.now() - asked_at);
    }
    let what = format!("the slowest of five writes took {slowest:.1?}");
    Ok(if slowest <= WRITE_SLOW {
        finding(Severity::Fine, what, "locks are quick", "nothing")
    } else {
        finding(Severity::Warning, what, "locks are slow, and keep-alives may be late", "use faster disks")
    })
}
