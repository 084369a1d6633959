//! What about the server and its settings endangers session locks. What they cannot promise anywhere comes first.

use std::collections::HashMap;

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::Finding;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::Store;
use crate::finding::encryption;

const DOING: &str = "examining the server";

/// Of the server's room for connections, so much may be used before it is told.
const FULL: f64 = 0.8;

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'max_connections', \
    'innodb_flush_log_at_trx_commit', 'log_bin', 'max_user_connections')";
const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'";
const CIPHER: &str = "SHOW SESSION STATUS LIKE 'Ssl_cipher'";

/// Look at everything that matters for session locks.
pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let mut conn = store.operator(DOING).await?;
    let asked = store.in_time(ask(&mut conn)).await.map_err(|it| it.fault(DOING))?;
    let _ = conn.disconnect().await;
    let get = |name: &str| asked.get(name).map_or("", String::as_str);
    let mut findings = vec![cut_on_one_side(), whole_seconds(get("version"))];
    let number = |name: &str| get(name).parse().unwrap_or(0);
    findings.push(fullness(number("Threads_connected"), number("max_connections")));
    if !["1", "3"].contains(&get("innodb_flush_log_at_trx_commit")) {
        findings.push(Finding::danger(
            format!("innodb_flush_log_at_trx_commit is {}", get("innodb_flush_log_at_trx_commit")),
            "after a crash the server may have forgotten for how long nobody must be let in, and which fences were given",
            "set it to 1",
        ));
    }
    if get("log_bin") == "ON" {
        findings.push(Finding::warning(
            "the server writes a binary log, perhaps for replicas",
            "a replica that is promoted may not know of sessions that began shortly before, and lets others in too early; \
             fences still grow",
            "use semi-synchronous replication if there are replicas, or check fences where it matters",
        ));
    }
    let hosts = [store.options.opts.ip_or_hostname()];
    findings.push(encryption(store.options.tls.is_some(), get("Ssl_cipher"), &hosts));
    Ok(findings)
}

async fn ask(conn: &mut Conn) -> super::super::fault::Result<HashMap<String, String>> {
    let mut found = HashMap::new();
    for sql in [VARIABLES, STATUS, CIPHER] {
        found.extend(conn.query::<(String, String), _>(sql).await?);
    }
    Ok(found)
}

/// The cell that a session lock cannot promise.
fn cut_on_one_side() -> Finding {
    Finding::warning(
        "locks are session locks (`mode=session`)",
        "a connection that is cut on the server's side only gives its locks away at once, while their holder believes in \
         them until it asks and hears nothing: at worst for all of the ttl",
        "check fences where it matters, or use durable locks: docs/guides/sql-durable-or-session.md",
    )
}

fn whole_seconds(version: &str) -> Finding {
    Finding::fine(
        format!(
            "the server ({version}) ends a session that is silent for its ttl, rounded up to whole seconds"
        ),
        "a holder that died, stopped or is cut off is replaced after its ttl; with a ttl of 1.5 s, after 2 s",
    )
}

fn fullness(used: u32, room: u32) -> Finding {
    let what = format!("{used} of {room} connections are in use");
    let consequence = "each contended name needs a connection for each process that waits; without one it is not waited for";
    if f64::from(used) / f64::from(room.max(1)) < FULL {
        return Finding::fine(what, consequence);
    }
    Finding::warning(what, consequence, "raise max_connections, or lower `waiting_max`")
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::inspect::Severity;

    use super::*;

    #[test]
    fn what_runs_full_is_told_before_it_is_full() {
        assert_eq!(fullness(79, 100).severity, Severity::Fine);
        assert_eq!(fullness(80, 100).severity, Severity::Warning);
        assert_eq!(cut_on_one_side().severity, Severity::Warning);
    }
}
