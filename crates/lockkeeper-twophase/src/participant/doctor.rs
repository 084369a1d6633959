//! The doctor for participants and for the log: settings with which a promise may not be given, or what was said not be kept.

use lockkeeper_core::inspect::Finding;

use super::{Answer, Session, Trouble, mysql};
use crate::log::Dialect;

/// How many tables are named.
const NAMED_MAX: usize = 5;

const FORGOTTEN: &str = "after a power cut it may have forgotten what it promised";

const UNDECIDED: &str =
    "after a power cut it may have forgotten what was decided, and those who followed have done otherwise";

/// What the settings of the server mean in which the log lives, and nobody takes part.
pub(super) async fn of_log(session: &mut Session) -> Result<Vec<Finding>, Trouble> {
    match session.dialect() {
        Dialect::Postgres => {
            let settings =
                "SELECT current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()";
            let answer = session.run(settings).await?;
            let found = unforced([cell(&answer, 0, 0), cell(&answer, 0, 1)], UNDECIDED);
            let standby = (cell(&answer, 0, 2) == "t").then(|| {
                let (what, so) = ("it is a standby", "nothing can be decided there");
                Finding::danger(what, so, "name the server that takes writes")
            });
            Ok(found.into_iter().chain(standby).collect())
        }
        Dialect::Mysql => {
            let flushed = flushed(session, "what is decided is on the disk", UNDECIDED).await?;
            Ok([Some(flushed), unforced_binary_log(session).await?].into_iter().flatten().collect())
        }
    }
}

/// What one participant's settings mean for two-phase commit. One that is `at_home` need not prepare.
pub(super) async fn findings(session: &mut Session, at_home: bool) -> Result<Vec<Finding>, Trouble> {
    match session.dialect() {
        Dialect::Postgres => of_postgres(session, at_home).await,
        Dialect::Mysql => of_mysql(session).await,
    }
}

fn cell(answer: &Answer, row: usize, at: usize) -> String {
    answer.rows.get(row).and_then(|it| it.get(at)).cloned().flatten().unwrap_or_default()
}

async fn of_postgres(session: &mut Session, at_home: bool) -> Result<Vec<Finding>, Trouble> {
    let settings = "SELECT current_setting('max_prepared_transactions'), (SELECT count(*) FROM pg_prepared_xacts), \
                    current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()";
    let answer = session.run(settings).await?;
    let text = |at| cell(&answer, 0, at);
    let (room, used) = (text(0).parse().unwrap_or(0_u64), text(1).parse().unwrap_or(0_u64));
    let mut found = vec![prepared_room(room, used, at_home)];
    found.extend(unforced([text(2), text(3)], FORGOTTEN));
    if text(4) == "t" {
        let (what, so) = ("it is a standby", "nothing can be written there, so nothing can take part");
        found.push(Finding::danger(what, so, "name the server that takes writes"));
    }
    Ok(found)
}

/// What PostgreSQL does not force to the disk: `fsync` and `full_page_writes`.
fn unforced(settings: [String; 2], so: &str) -> Vec<Finding> {
    let named = ["fsync is off", "full_page_writes is off"].into_iter().zip(settings);
    named.filter(|it| it.1 == "off").map(|it| Finding::danger(it.0, so, "set it to on")).collect()
}

fn prepared_room(room: u64, used: u64, at_home: bool) -> Finding {
    let what = format!("max_prepared_transactions is {room}, and {used} are prepared");
    let remedy = "set it to at least the number of transactions at a time, and restart the server";
    match (room, at_home) {
        (0, true) => Finding::fine(what, "the log lives there, so its branches are never prepared"),
        (0, false) => Finding::danger(what, "nothing can be prepared", remedy),
        _ if room <= used => Finding::danger(what, "nothing more can be prepared", remedy),
        // Half of them in doubt is more than a busy moment.
        _ if room < used.saturating_mul(2) => {
            Finding::warning(what, "soon nothing more can be prepared", remedy)
        }
        _ => Finding::fine(what, "that many transactions at a time"),
    }
}

async fn of_mysql(session: &mut Session) -> Result<Vec<Finding>, Trouble> {
    let version = cell(&session.run("SELECT VERSION()").await?, 0, 0);
    let mut found = Vec::new();
    if let Err(error) = mysql::check_version(&version) {
        found.push(Finding::danger(error.to_string(), "it cannot take part", "use a newer server"));
    }
    let galera = session.run("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await?;
    if cell(&galera, 0, 1) == "ON" {
        let (what, so) =
            ("this is a Galera cluster (wsrep_on)", "it has no XA transactions, so it cannot take part");
        found.push(Finding::danger(what, so, "use a server outside of the cluster, or an outbox"));
    }
    let engine = "SELECT support FROM information_schema.engines WHERE engine = 'InnoDB'";
    if !["YES", "DEFAULT"].contains(&cell(&session.run(engine).await?, 0, 0).as_str()) {
        let (what, so) = ("it has no InnoDB", "no other engine can prepare, so it cannot take part");
        found.push(Finding::danger(what, so, "start it with InnoDB"));
        return Ok(found);
    }
    found.push(flushed(session, "what it promises is on the disk", FORGOTTEN).await?);
    found.extend(binary_log(session, &version).await?);
    found.extend(odd_tables(session).await?);
    Ok(found)
}

async fn flushed(session: &mut Session, good: &str, bad: &str) -> Result<Finding, Trouble> {
    let flush = cell(&session.run("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit").await?, 0, 0);
    let what = format!("innodb_flush_log_at_trx_commit is {flush}");
    Ok(match flush.as_str() {
        "1" => Finding::fine(what, good),
        _ => Finding::danger(what, bad, "set it to 1"),
    })
}

/// Whether there is a binary log, and how often it is forced.
async fn binary_log_of(session: &mut Session) -> Result<(bool, String), Trouble> {
    let answer = session.run("SELECT @@GLOBAL.log_bin, @@GLOBAL.sync_binlog").await?;
    Ok((cell(&answer, 0, 0) == "1", cell(&answer, 0, 1)))
}

/// One that is not forced at each commit.
async fn unforced_binary_log(session: &mut Session) -> Result<Option<Finding>, Trouble> {
    let (on, sync) = binary_log_of(session).await?;
    let what = format!("sync_binlog is {sync} with a binary log");
    let so = "a crash may leave log and data apart";
    Ok((on && sync != "1").then(|| Finding::danger(what, so, "set it to 1")))
}

/// A binary log by itself must be flushed; with replicas more can go wrong.
async fn binary_log(session: &mut Session, version: &str) -> Result<Vec<Finding>, Trouble> {
    let (on, sync) = binary_log_of(session).await?;
    if !on {
        return Ok(vec![Finding::fine("there is no binary log", "no replica can differ")]);
    }
    let mut found: Vec<Finding> = unforced_binary_log(session).await?.into_iter().collect();
    let dumps = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";
    // Whoever may not see the sessions of others sees none.
    let replicas = cell(&session.run(dumps).await?, 0, 0).parse().unwrap_or(0_u64);
    let bugs = if version.contains("MariaDB") {
        "read MDEV-32020 and MDEV-21469: replicas hold row locks from the prepare on, can break, and a crash may leave them apart"
    } else {
        "read MySQL bug 109434: a crash in XA COMMIT may leave binary log and data apart"
    };
    if replicas > 0 {
        let what = format!("{replicas} replicas read its binary log");
        let remedy = "check the replicas after every crash, or take a server without replicas";
        found.push(Finding::warning(what, bugs, remedy));
    } else if sync == "1" {
        found.push(Finding::fine("there is a binary log, and no replica that reads it is seen", bugs));
    }
    Ok(found)
}

/// Tables of this database whose rows stay when a branch is rolled back.
async fn odd_tables(session: &mut Session) -> Result<Option<Finding>, Trouble> {
    let sql = "SELECT t.table_name, t.engine FROM information_schema.tables t \
               JOIN information_schema.engines e ON e.engine = t.engine \
               WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND (e.xa IS NULL OR e.xa <> 'YES') \
               ORDER BY t.table_name";
    let answer = session.run(sql).await?;
    if answer.rows.is_empty() {
        return Ok(None);
    }
    let named: Vec<String> = (0..answer.rows.len().min(NAMED_MAX))
        .map(|row| format!("{} ({})", cell(&answer, row, 0), cell(&answer, row, 1)))
        .collect();
    let more = if answer.rows.len() > NAMED_MAX { ", and others" } else { "" };
    let what = format!("tables that no branch can roll back: {}{more}", named.join(", "));
    let so = "what a branch writes there stays when the transaction is aborted";
    Ok(Some(Finding::warning(what, so, "ALTER TABLE … ENGINE = InnoDB, or keep them out of branches")))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::inspect::Severity;

    use super::*;

    #[test]
    fn room_for_prepared_transactions_is_judged_by_its_use() {
        for (room, used, at_home, severity) in [
            (0, 0, false, Severity::Danger),
            (0, 0, true, Severity::Fine),
            (10, 10, false, Severity::Danger),
            (10, 6, false, Severity::Warning),
            (10, 5, false, Severity::Fine),
        ] {
            assert_eq!(prepared_room(room, used, at_home).severity, severity, "{used} of {room}");
        }
    }
}
