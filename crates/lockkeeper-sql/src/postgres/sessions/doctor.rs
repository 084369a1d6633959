//! What about the server and its settings endangers session locks. What they cannot promise anywhere comes first.

use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::Finding;
use tokio_postgres::Row;

use super::super::doctor::writing;
use super::super::fault::Trouble;
use super::Store;
use crate::finding::encryption;

const DOING: &str = "examining the server";

/// Of the server's room for locks or connections, so much may be used before it is told.
const FULL: f64 = 0.8;

const LOOK: &str = "SELECT current_setting('server_version'), \
    current_setting('max_locks_per_transaction')::bigint \
    * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint), \
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), \
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint, \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'), \
    (SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl), current_setting('fsync')";

/// Look at everything that matters for session locks.
pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let session = store.operator(DOING).await?;
    let rows = store.rows(&session, DOING, LOOK, &[]).await?;
    let mut findings = vec![cut_on_one_side()];
    findings.extend(writing(&store.writers().await));
    if let Some(row) = rows.first() {
        findings.extend(of_the_server(store, row).map_err(|it| Trouble::from(it).fault(DOING))?);
    }
    Ok(findings)
}

/// The cell that a session lock cannot promise.
fn cut_on_one_side() -> Finding {
    Finding::warning(
        "locks are session locks (`mode=session`)",
        "a connection that is cut on the server's side only gives its locks away at once, while their holder believes in \
         them until its next beat fails or stays unanswered: for a third of the ttl, at worst for all of it",
        "check fences where it matters, or use durable locks: docs/guides/sql-durable-or-session.md",
    )
}

fn of_the_server(store: &Store, row: &Row) -> std::result::Result<Vec<Finding>, tokio_postgres::Error> {
    let (version, room, used): (&str, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (connections, open): (i64, i64) = (row.try_get(3)?, row.try_get(4)?);
    let (standbys, names): (i64, &str) = (row.try_get(5)?, row.try_get(6)?);
    let (cipher, fsync): (Option<&str>, &str) = (row.try_get(7)?, row.try_get(8)?);
    let mut findings = vec![Finding::fine(
        format!("PostgreSQL {version} ends a session that is silent for its ttl"),
        "a holder that died, stopped or is cut off is replaced after its ttl at most",
    )];
    findings.push(fullness(
        format!("{used} advisory locks are held, the server has room for about {room}"),
        used,
        room,
        "when it is full, locks cannot be taken; those that are held stay",
        "raise max_locks_per_transaction",
    ));
    findings.push(fullness(
        format!("{open} of {connections} connections are in use"),
        open,
        connections,
        "each contended name needs a connection for each process that waits; without one it is not waited for",
        "raise max_connections, or lower `waiting_max`",
    ));
    if fsync == "off" {
        findings.push(Finding::danger(
            "fsync is off",
            "after a crash of the host the server may have forgotten for how long nobody must be let in",
            "switch it on",
        ));
    }
    if standbys != 0 && names.is_empty() {
        findings.push(Finding::danger(
            format!("{standbys} standby connected, none of them synchronous"),
            "a standby that is promoted may not know of sessions that began shortly before, and lets others in too early; \
             fences still grow",
            "name a synchronous standby, or check fences where it matters",
        ));
    }
    let hosts: Vec<String> =
        store.options.config.get_hosts().iter().map(super::super::doctor::host).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    findings.push(encryption(store.options.tls.is_some(), cipher.unwrap_or("none"), &hosts));
    Ok(findings)
}

fn fullness(what: String, used: i64, room: i64, consequence: &str, remedy: &str) -> Finding {
    #[expect(clippy::cast_precision_loss, reason = "a share, to be shown")]
    let share = used as f64 / room.max(1) as f64;
    if share < FULL { Finding::fine(what, consequence) } else { Finding::warning(what, consequence, remedy) }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::inspect::Severity;

    use super::*;

    #[test]
    fn what_runs_full_is_told_before_it_is_full() {
        let at = |used| fullness(String::new(), used, 100, "", "more").severity;
        assert_eq!(at(79), Severity::Fine);
        assert_eq!(at(80), Severity::Warning);
        assert_eq!(cut_on_one_side().severity, Severity::Warning);
    }
}
