//! The doctor: what about this cluster endangers locks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::Finding;
use lockkeeper_core::kit::some_of;

use crate::connection::Connection;
use crate::fault;
use crate::lines::{Line, Lines};
use crate::store::Store;
use crate::wire::cluster_client::ClusterClient;
use crate::wire::maintenance_client::MaintenanceClient;
use crate::wire::{
    AlarmRequest, AlarmType, Answer as _, MemberListRequest, StatusRequest, StatusResponse, TxnRequest,
    delete,
};

const LOOKING: &str = "examining the cluster";
/// A write that takes longer than this makes keep-alives late.
const WRITE_SLOW: Duration = Duration::from_millis(100);

/// Defects of etcd 3.4 that matter to locks: the first good patch release (of the last we know
/// none), and what happens before.
const DEFECTS: [(u32, &str); 4] = [
    (31, "a deposed leader can revoke leases that live: their locks are given away too early"),
    (38, "a keep-alive can be confirmed for a lease that was revoked (we prove each by a write)"),
    (42, "reads can be stale after a node was paused (we decide by writes only)"),
    (u32::MAX, "watches can miss events after a compaction (waiters look again by themselves)"),
];

pub(crate) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let connection = &*store.connection;
    let (mut findings, mut versions) = (Vec::new(), BTreeSet::new());
    // What several nodes say alike is told once.
    let mut errors: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut reserved = Vec::new();
    for (at, name) in connection.options.endpoints.iter().enumerate() {
        let status = match status(connection, at).await {
            Ok(status) if !connection.cluster.admits(at, status.cluster()) => {
                findings.push(stranger(name));
                continue;
            }
            Ok(status) => status,
            // It does not say who refuses.
            Err(it) if fault::is_refusal(&it) && connection.is_strange(at).await => {
                findings.push(stranger(name));
                continue;
            }
            Err(it) if fault::is_refusal(&it) => {
                reserved.push(name.clone());
                continue;
            }
            Err(_) => {
                findings.push(Finding::warning(
                    format!("{name} does not answer"),
                    "one more node lost may cost the quorum, and with it every lock after its ttl",
                    "start it, or take it out of the URL",
                ));
                continue;
            }
        };
        findings.extend(about_node(name, &status));
        for error in &status.errors {
            errors.entry(error.clone()).or_default().push(name);
        }
        versions.insert(status.version);
    }
    if !reserved.is_empty() {
        findings.push(Finding::warning(
            format!("this user may not see the state of {}", some_of(&reserved)),
            "their versions, with what is known to be wrong with them, and their errors are not examined",
            "let the user root examine the cluster",
        ));
    }
    for (error, names) in errors {
        findings.push(Finding::danger(
            format!("{} report: {error}", names.join(", ")),
            "writes may fail, and locks with them",
            "see the logs of these nodes",
        ));
    }
    findings.extend(versions.iter().map(|it| about_version(it)));
    findings.extend(about_members(connection).await?);
    findings.extend(about_alarms(connection).await?);
    findings.extend(about_foreign_keys(store).await?);
    findings.push(about_writes(connection).await?);
    Ok(findings)
}

/// What one node says, if it does in time.
async fn status(connection: &Connection, at: usize) -> std::result::Result<StatusResponse, tonic::Status> {
    let mut node = MaintenanceClient::new(connection.node(at));
    tokio::select! {
        status = node.status(connection.request(StatusRequest {}, false)) => status.map(tonic::Response::into_inner),
        () = connection.clock.sleep(connection.options.timeout) => Err(tonic::Status::deadline_exceeded("silence")),
    }
}

fn stranger(name: &str) -> Finding {
    Finding::danger(
        format!("{name} belongs to another cluster"),
        "it is not used, and one more node lost may cost the quorum; other programs may use it",
        "let it join this cluster again, empty, or take it out of the URL",
    )
}

/// What one node says of itself.
fn about_node(name: &str, status: &StatusResponse) -> Vec<Finding> {
    let mut findings = Vec::new();
    if status.leader == 0 {
        findings.push(Finding::danger(
            format!("{name} knows of no leader"),
            "no lock can be taken or kept through it",
            "bring a majority of the nodes together",
        ));
    }
    if status.is_learner {
        findings.push(Finding::warning(
            format!("{name} is a learner"),
            "it serves no locks",
            "promote it, or take it out of the URL",
        ));
    }
    findings
}

fn about_version(version: &str) -> Finding {
    let mut parts = version.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    let (major, minor, patch) = (parts.next(), parts.next(), parts.next().unwrap_or(0));
    let present = DEFECTS.iter().filter(|it| patch < it.0);
    let present: Vec<_> = present.map(|it| it.1).collect();
    if (major, minor) != (Some(3), Some(4)) || present.is_empty() {
        return Finding::fine(
            format!("etcd {version}"),
            "we know of no defect, and test with 3.4.23 and 3.5.30",
        );
    }
    let what = format!("etcd {version} has a known defect, or several ({})", present.len());
    Finding::warning(what, present.join("; "), "update to 3.4.42 or later, or to 3.5")
}

/// Keys among our lines that we did not put there.
async fn about_foreign_keys(store: &Store) -> Result<Vec<Finding>> {
    let found = Lines::read(store, "", LOOKING).await?;
    let in_lines: Vec<_> = found.lines.values().flat_map(Line::foreign_keys).collect();
    let mut findings = Vec::new();
    if !in_lines.is_empty() {
        findings.push(Finding::danger(
            format!("keys that are no claims of ours stand in lines: {}", some_of(&in_lines)),
            "whoever waits behind one of them waits for ever",
            "delete them, and give other programs another prefix",
        ));
    }
    if !found.elsewhere.is_empty() {
        findings.push(Finding::warning(
            format!("keys that are not ours lie among the locks: {}", some_of(&found.elsewhere)),
            "they keep nobody out",
            "give other programs another prefix",
        ));
    }
    Ok(findings)
}

async fn about_members(connection: &Connection) -> Result<Option<Finding>> {
    let call = |channel, request| async move { ClusterClient::new(channel).member_list(request).await };
    let members = connection.call(MemberListRequest {}, call).await;
    let members = members.map_err(|it| fault::from_status(LOOKING, &it))?.members.len();
    Ok(match members {
        1 => Some(Finding::warning(
            "the cluster has one member".to_owned(),
            "while it is down no lock can be taken, and what is held is lost after its ttl",
            "run three or five",
        )),
        it if it % 2 == 0 => Some(Finding::warning(
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
        AlarmType::Nospace => Some(Finding::danger(
            "the alarm NOSPACE is raised".to_owned(),
            "no lock can be taken",
            "compact, defragment, raise --quota-backend-bytes, then disarm the alarm",
        )),
        AlarmType::Corrupt => Some(Finding::danger(
            "the alarm CORRUPT is raised".to_owned(),
            "the members disagree: a lock can be held by two at once",
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
        Finding::fine(what, "locks are quick")
    } else {
        Finding::warning(what, "locks are slow, and keep-alives may be late", "use faster disks")
    })
}
