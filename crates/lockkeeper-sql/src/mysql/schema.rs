//! The tables and procedures, and what a process must find before it uses them.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::connection::Links;
use super::fault::{Result, Trouble};
use super::link::{Ask, Link};
use super::options::MysqlOptions;
use super::session::MODE;
use super::sessions;
use super::text::bytes;
use crate::name::micros_up;
use crate::retry;

/// The version this code reads and writes.
const VERSION: i64 = 4;

/// What there must be.
const TABLES: &str = "'lockkeeper_lock', 'lockkeeper_claim', 'lockkeeper_store'";
const PROCEDURES: &str = "'lockkeeper_settle_4', 'lockkeeper_gather_4', 'lockkeeper_turn_4', 'lockkeeper_leave_4', \
                          'lockkeeper_break_4', 'lockkeeper_clean_4', 'lockkeeper_upgrade_4', 'lockkeeper_lower_4', \
                          'lockkeeper_behind_4'";
const COUNT: i64 = 12;

/// How long to wait for somebody else who makes the tables.
const OTHERS_MAX: Duration = Duration::from_secs(60);

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
    concat!(include_str!("schema.sql"), include_str!("lower.sql"))
        .replace("@QUIET@", &quiet_until.to_string())
}

/// The single statements of a script that uses `DELIMITER`, as the command-line clients understand it.
pub(super) fn statements(script: &str) -> Vec<String> {
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

/// The named lock of those who make the tables of a database, of either mode.
pub(super) fn making_name(options: &MysqlOptions) -> String {
    let name = bytes(&Sha256::digest(options.opts.db_name().unwrap_or_default())[..16]);
    format!("'lockkeeper_schema/{}'", name.trim_start_matches("x'").trim_end_matches('\''))
}

/// Find the tables, or make them. `quiet` is how long a table that is made anew must grant nothing, because
/// holders of the old one do not know yet that it is gone.
pub(crate) async fn prepare(links: &Links, quiet: Duration) -> Result<()> {
    let maker = Maker { links, way: links.commands() };
    if maker.found().await? {
        return Ok(());
    }
    if !links.options.common.create {
        return Err(Trouble::Refused(
            "the database lacks the tables or procedures of Lockkeeper, or they were made in another sql_mode, and \
             `create=no` was chosen; run the DDL in docs/backends/mysql.md"
                .into(),
        ));
    }
    maker.make(quiet).await
}

/// Whoever makes the tables: all on one connection.
struct Maker<'a> {
    links: &'a Links,
    way: Arc<Link>,
}

impl Maker<'_> {
    /// Those who make the tables at the same time do so one after the other; all but the first find them made.
    async fn make(&self, quiet: Duration) -> Result<()> {
        let name = making_name(&self.links.options);
        // Without it, as on a Galera node, they get in each other's way and try again.
        let lock = format!("SELECT GET_LOCK({name}, {})", OTHERS_MAX.as_secs());
        let locked = self.send(&lock, OTHERS_MAX + self.links.options.common.timeout).await;
        let mut made = self.make_once(quiet).await;
        for attempt in 0..retry::ATTEMPTS_MAX {
            if !made.as_ref().is_err_and(Trouble::is_made_by_others) {
                break;
            }
            let pause = retry::pause(attempt, Duration::from_millis(10), Duration::from_secs(1));
            self.links.clock.sleep(pause).await;
            made = self.make_once(quiet).await;
        }
        if locked.is_ok() {
            let _ = self.send(&format!("DO RELEASE_LOCK({name})"), self.links.options.common.timeout).await;
        }
        made
    }

    async fn make_once(&self, quiet: Duration) -> Result<()> {
        if self.found().await? {
            return Ok(());
        }
        let now = self.number("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").await?;
        // A claim whose lock has no row is nobody's: its holder learns that it is lost before the room opens.
        let orphans = "SELECT COUNT(*) FROM information_schema.tables \
                       WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_lock'";
        let orphaned = self.number(orphans).await? == 0;
        let quiet_until = if quiet.is_zero() { 0 } else { now.saturating_add(micros_up(quiet)) };
        for statement in statements(&text(quiet_until)) {
            // Making tables takes longer than anything else we ask for.
            self.send(&statement, OTHERS_MAX).await?;
        }
        if orphaned {
            self.send("DELETE FROM lockkeeper_claim", OTHERS_MAX).await?;
        }
        if self.found().await? {
            return Ok(());
        }
        Err(Trouble::Refused(
            "the tables were created and are not there as InnoDB tables; may this user see them, and does the server \
             enforce another engine?"
                .into(),
        ))
    }

    /// Whether everything is there. Refuses if it is of another version.
    async fn found(&self) -> Result<bool> {
        let count = format!(
            "SELECT (SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name IN ({TABLES}) AND engine = 'InnoDB') \
             + (SELECT COUNT(*) FROM information_schema.routines \
             WHERE routine_schema = DATABASE() AND routine_name IN ({PROCEDURES}) AND sql_mode = '{MODE}')"
        );
        let complete = self.number(&count).await? == COUNT;
        let version = match self.number("SELECT COALESCE(MAX(version), 0) FROM lockkeeper_store").await {
            Ok(version) => version,
            // There is no such table.
            Err(trouble) if trouble.is_made_by_others() => return Ok(false),
            Err(trouble) => return Err(trouble),
        };
        match version {
            VERSION => Ok(complete),
            // Tables of an earlier version are made into ours.
            ..VERSION => Ok(false),
            sessions::VERSION => Err(Trouble::Refused(
                "the database keeps session locks, and locks of the two modes do not exclude each other; add \
                 `mode=session`, or choose another database for other names, or turn this one over as \
                 docs/guides/sql-durable-or-session.md says"
                    .into(),
            )),
            version => Err(Trouble::Refused(format!(
                "the tables have version {version}, this program knows version {VERSION}; \
                 use a newer Lockkeeper or another database"
            ))),
        }
    }

    async fn number(&self, sql: &str) -> Result<i64> {
        let rows = self.send(sql, self.links.options.common.timeout).await?;
        let number = rows.into_iter().flatten().next().and_then(|it| it.get_opt(0)?.ok());
        number.ok_or_else(|| Trouble::Refused("the server gave another answer than expected".into()))
    }

    async fn send(&self, sql: &str, patience: Duration) -> Result<Vec<Vec<mysql_async::Row>>> {
        let ask = Ask::Patient(sql.to_owned());
        let reply = self.way.send(ask, patience, lockkeeper_core::Moment::from_nanos(0)).await?;
        Ok(reply.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_cut_where_the_clients_cut_it() {
        let script = "-- a; comment\nA;\nB\n  b;\nDELIMITER //\nC; c //\nDELIMITER ;\nD;\n";
        assert_eq!(statements(script), ["A", "B\n  b", "C; c", "D"]);
        let ours = statements(&ddl());
        assert_eq!(ours.len(), 42);
        assert!(ours.iter().all(|it| !it.is_empty() && !it.contains("@QUIET@")));
    }
}
