//! The tables and procedures, and what a process must find before it uses them.

use std::time::Duration;

use super::connection::Links;
use super::fault::{Result, Trouble};
use crate::name::micros_up;

/// The version this code reads and writes.
const VERSION: i64 = 2;

/// What there must be.
const TABLES: &str = "'lockkeeper_lock', 'lockkeeper_claim', 'lockkeeper_store'";
const PROCEDURES: &str = "'lockkeeper_settle_2', 'lockkeeper_gather_2', 'lockkeeper_turn_2', 'lockkeeper_leave_2', \
                          'lockkeeper_break_2', 'lockkeeper_clean_2', 'lockkeeper_upgrade_2'";
const COUNT: i64 = 10;

/// The statements that make the tables and procedures in the current database, for people who run them by
/// hand with the client `mysql` or `mariadb`.
///
/// ```
/// assert!(lockkeeper_sql::mysql::ddl().contains("lockkeeper_claim"));
/// ```
pub fn ddl() -> String {
    text(0)
}

fn text(quiet_until: i64) -> String {
    include_str!("schema.sql").replace("@QUIET@", &quiet_until.to_string())
}

/// The single statements of a script that uses `DELIMITER`, as the command-line clients understand it.
fn statements(script: &str) -> Vec<String> {
    let (mut statements, mut statement, mut delimiter) = (Vec::new(), String::new(), ";");
    for line in script.lines().filter(|it| !it.trim_start().starts_with("--")) {
        if let Some(next) = line.strip_prefix("DELIMITER ") {
            delimiter = next.trim();
        } else if let Some(last) = line.trim_end().strip_suffix(delimiter) {
            statement.push_str(last);
            statements.push(std::mem::take(&mut statement).trim().to_owned());
        } else {
            statement.push_str(line);
            statement.push('\n');
        }
    }
    statements
}

/// Find the tables, or make them. `quiet` is how long a table that is made anew must grant nothing, because
/// holders of the old one do not know yet that it is gone.
pub(crate) async fn prepare(links: &Links, quiet: Duration) -> Result<()> {
    if found(links).await? {
        return Ok(());
    }
    if !links.options.common.create {
        return Err(Trouble::Refused(
            "the database lacks the tables or procedures of Lockkeeper and `create=no` was chosen; \
             run the DDL in docs/backends/mysql.md"
                .into(),
        ));
    }
    // Those who create at the same time must do so one after the other. All on one connection.
    let lock = "SELECT GET_LOCK(CONCAT('lockkeeper_schema/', MD5(DATABASE())), 10)";
    // Without it, as on a Galera node, they get in each other's way and try again.
    let _ = number(links, lock).await;
    let created = create(links, quiet).await;
    let unlock = "DO RELEASE_LOCK(CONCAT('lockkeeper_schema/', MD5(DATABASE())))";
    let _ = links.send(unlock).await;
    created
}

async fn create(links: &Links, quiet: Duration) -> Result<()> {
    if found(links).await? {
        return Ok(());
    }
    let now = number(links, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").await?;
    // A claim whose lock has no row is nobody's: its holder learns that it is lost before the room opens.
    let orphans = "SELECT COUNT(*) FROM information_schema.tables \
                   WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_lock'";
    let orphaned = number(links, orphans).await? == 0;
    let quiet_until = if quiet.is_zero() { 0 } else { now.saturating_add(micros_up(quiet)) };
    for statement in statements(&text(quiet_until)) {
        links.send(&statement).await?;
    }
    if orphaned {
        links.send("DELETE FROM lockkeeper_claim").await?;
    }
    if found(links).await? {
        return Ok(());
    }
    Err(Trouble::Refused("the tables were created and are not there; may this user see them?".into()))
}

/// Whether everything is there. Refuses if it is of another version.
async fn found(links: &Links) -> Result<bool> {
    let count = format!(
        "SELECT (SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name IN ({TABLES})) \
         + (SELECT COUNT(*) FROM information_schema.routines \
         WHERE routine_schema = DATABASE() AND routine_name IN ({PROCEDURES}))"
    );
    if number(links, &count).await? != COUNT {
        return Ok(false);
    }
    let version = number(links, "SELECT COALESCE(MAX(version), 0) FROM lockkeeper_store").await?;
    match version {
        VERSION => Ok(true),
        // Tables of an earlier version are made into ours.
        ..VERSION => Ok(false),
        version => Err(Trouble::Refused(format!(
            "the tables have version {version}, this program knows version {VERSION}; \
             use a newer Lockkeeper or another database"
        ))),
    }
}

async fn number(links: &Links, sql: &str) -> Result<i64> {
    let answer = links.send(sql).await?;
    let number = answer.into_iter().flatten().next().and_then(|it| it.get_opt(0)?.ok());
    number.ok_or_else(|| Trouble::Refused("the server gave another answer than expected".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_cut_where_the_clients_cut_it() {
        let script = "-- a; comment\nA;\nB\n  b;\nDELIMITER //\nC; c //\nDELIMITER ;\nD;\n";
        assert_eq!(statements(script), ["A", "B\n  b", "C; c", "D"]);
        let ours = statements(&ddl());
        assert_eq!(ours.len(), 24);
        assert!(ours.iter().all(|it| !it.is_empty() && !it.contains("@QUIET@")));
    }
}
