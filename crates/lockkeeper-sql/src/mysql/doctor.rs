//! What about the server's settings endangers locks.

use std::collections::HashMap;

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Finding, Severity};

use super::Store;
use crate::finding::encryption;

const DOING: &str = "examining the server";

/// Look at everything that matters for locks.
pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let sql = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', \
               'log_bin', 'binlog_format', 'wsrep_on', 'read_only', 'wait_timeout', 'version', \
               'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'innodb_lock_wait_timeout', \
               'innodb_rollback_on_timeout', 'gtid_domain_id')";
    let answer = store.links.ask(DOING, sql).await?;
    let settings: HashMap<String, String> = answer
        .into_iter()
        .flatten()
        .filter_map(|it| Some((it.get_opt(0)?.ok()?, it.get_opt(1)?.ok()?)))
        .collect();
    let get = |name: &str| settings.get(name).map_or("", String::as_str);
    let mut findings = vec![durability(get)];
    if get("log_bin") == "ON" {
        findings.push(replicas(get, followed(store).await?));
    }
    findings.extend(replication(get));
    findings.extend(galera(get));
    findings.extend(sessions(get));
    findings.extend(memos(store).await?);
    let status = store.links.ask(DOING, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").await?;
    let cipher: Option<String> = status.into_iter().flatten().find_map(|it| it.get_opt(1)?.ok());
    let options = &store.links.options;
    let hosts = [options.opts.ip_or_hostname()];
    findings.push(encryption(options.tls.is_some(), cipher.as_deref().unwrap_or("unknown"), &hosts));
    Ok(findings)
}

fn durability<'a>(get: impl Fn(&str) -> &'a str) -> Finding {
    match get("innodb_flush_log_at_trx_commit") {
        "1" | "3" => {
            Finding::fine("innodb_flush_log_at_trx_commit is 1", "a grant is on disk before it is told")
        }
        other => Finding::danger(
            format!("innodb_flush_log_at_trx_commit is {other}"),
            "a crash of the server or its host forgets the last grants, and the lock may be given again while held",
            "set it to 1",
        ),
    }
}

/// Whether somebody follows the binary log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    Yes,
    No,
    /// Without the right to see others' sessions nobody can tell.
    Unseen,
}

async fn followed(store: &Store) -> Result<Followed> {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'; \
               SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS'";
    let answer = store.links.ask(DOING, sql).await?;
    let counts: Vec<u64> = answer.iter().flatten().filter_map(|it| it.get_opt(0)?.ok()).collect();
    Ok(match counts[..] {
        [dumps, _] if 0 < dumps => Followed::Yes,
        [_, rights] if 0 < rights => Followed::No,
        _ => Followed::Unseen,
    })
}

/// What a binary log means, which MySQL writes unless told otherwise.
fn replicas<'a>(get: impl Fn(&str) -> &'a str, followed: Followed) -> Finding {
    let forgotten = "if a replica is promoted, the last grants are forgotten; fences still grow, because they follow \
                     the clock";
    let semi = [get("rpl_semi_sync_master_enabled"), get("rpl_semi_sync_source_enabled")];
    if semi.contains(&"ON") {
        return Finding::fine(
            "replication is semi-synchronous",
            "a replica has each grant before it is told, as long as one answers in time",
        );
    }
    match followed {
        Followed::Yes => Finding::warning(
            "a replica follows the binary log, asynchronously",
            forgotten,
            "use semi-synchronous replication, or check fences where it matters",
        ),
        Followed::No => Finding::new(
            Severity::Fine,
            "the binary log is on, and no replica follows it",
            "nothing, until there is one",
            "use semi-synchronous replication if you attach one",
        ),
        Followed::Unseen => Finding::new(
            Severity::Fine,
            "the binary log is on; this user may not see whether a replica follows it",
            forgotten,
            "examine the server as a user with the right PROCESS",
        ),
    }
}

fn replication<'a>(get: impl Fn(&str) -> &'a str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if get("log_bin") == "ON" && get("binlog_format") == "STATEMENT" {
        findings.push(Finding::danger(
            "binlog_format is STATEMENT",
            "the server refuses our statements, which are READ COMMITTED",
            "set it to ROW or MIXED",
        ));
    }
    if get("read_only") == "ON" {
        findings.push(Finding::warning(
            "read_only is ON",
            "only users with special rights can take locks here; perhaps this is a replica",
            "connect to the primary",
        ));
    }
    findings
}

fn galera<'a>(get: impl Fn(&str) -> &'a str) -> Option<Finding> {
    (get("wsrep_on") == "ON").then(|| {
        Finding::danger("this is a node of a Galera cluster", "two nodes may each grant the lock; one of them is then told of a conflict, but tests by others have \
             seen lost updates and lost commits on such clusters", "send all locks to one node, and check fences where it matters")
    })
}

/// Whether jobs that run once, elections and latches would find their tables, or could make them.
async fn memos(store: &Store) -> Result<Option<Finding>> {
    let sql = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
               AND table_name IN ('lockkeeper_memo', 'lockkeeper_memo_version')";
    let answer = store.links.ask(DOING, sql).await?;
    let found: Option<i64> = answer.iter().flatten().find_map(|it| it.get_opt(0)?.ok());
    let lacks = found.is_some_and(|it| it < 2) && !store.links.options.common.create;
    Ok(lacks.then(|| {
        Finding::warning(
            "the tables of memos are missing, and `create=no` was chosen",
            "locks work; jobs that run once, elections and latches are refused",
            "run the second DDL in docs/backends/mysql.md if you use them",
        )
    }))
}

fn sessions<'a>(get: impl Fn(&str) -> &'a str) -> Option<Finding> {
    let seconds: u64 = get("wait_timeout").parse().unwrap_or(0);
    (0 < seconds && seconds < 30).then(|| {
        Finding::warning(format!("wait_timeout is {seconds} s"), "idle connections are closed; locks are kept, because they do not depend on a connection, but it costs \
             time to open another", "raise it for the user of the locks")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cluster_is_a_danger_and_a_single_server_is_none() {
        let found = galera(|name| if name == "wsrep_on" { "ON" } else { "" }).unwrap();
        assert_eq!(found.severity, Severity::Danger);
        assert!(galera(|_| "OFF").is_none() && galera(|_| "").is_none());
    }

    #[test]
    fn a_binary_log_by_statement_is_a_danger() {
        let settings = |name: &str| match name {
            "log_bin" => "ON",
            "binlog_format" => "STATEMENT",
            _ => "",
        };
        let severities: Vec<_> = replication(settings).iter().map(|it| it.severity).collect();
        assert_eq!(severities, [Severity::Danger]);
    }

    #[test]
    fn only_a_replica_that_may_lag_is_warned_of() {
        let severity = |semi: &'static str, followed| {
            let get = |name: &str| if name == "rpl_semi_sync_source_enabled" { semi } else { "" };
            replicas(get, followed).severity
        };
        assert_eq!(severity("OFF", Followed::Yes), Severity::Warning);
        assert_eq!(severity("ON", Followed::Yes), Severity::Fine);
        assert_eq!(severity("OFF", Followed::No), Severity::Fine);
        assert_eq!(severity("OFF", Followed::Unseen), Severity::Fine);
    }
}
