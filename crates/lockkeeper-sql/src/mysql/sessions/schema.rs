//! The tables of session locks, and that a database keeps locks of one mode only.

use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::super::fault::{Result, Trouble};
use super::super::options::MysqlOptions;
use super::super::schema::{making_name, statements};
use super::join::one;

/// What the store's version says in a database that keeps session locks. Programs of the other mode refuse it.
pub(crate) const VERSION: i64 = 101;

/// What there must be: tables on disk, and one in memory.
const FOUND: &str = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND \
    (engine = 'InnoDB' AND table_name IN ('lockkeeper_store', 'lockkeeper_session_store', 'lockkeeper_session_member', \
    'lockkeeper_session_claim', 'lockkeeper_session_broken') \
    OR engine = 'MEMORY' AND table_name = 'lockkeeper_session_epoch')";
const COUNT: i64 = 6;

/// The statements that make the tables of session locks in the current database, for people who run them by hand with the
/// client `mysql` or `mariadb`.
///
/// ```
/// assert!(lockkeeper_sql::mysql::session_ddl().contains("lockkeeper_session_member"));
/// ```
pub fn session_ddl() -> String {
    include_str!("schema.sql").to_owned()
}

/// The statements that turn a database of durable locks into one of session locks, for people who run them by hand, with
/// the client, when no program uses it. They refuse while somebody holds a lock or waits. Fences go on from where they were.
///
/// ```
/// assert!(lockkeeper_sql::mysql::session_switch().contains("DROP TABLE lockkeeper_claim"));
/// ```
pub fn session_switch() -> String {
    include_str!("switch.sql").replace("@SESSIONS@", &session_ddl())
}

/// The statements that turn a database of session locks into one of durable locks: as [`session_switch`], backwards.
///
/// ```
/// assert!(lockkeeper_sql::mysql::durable_switch().contains("lockkeeper_claim"));
/// ```
pub fn durable_switch() -> String {
    include_str!("switch_back.sql").replace("@DURABLE@", &super::super::schema::ddl())
}

/// Find the tables, or make them.
pub(super) async fn prepare(conn: &mut Conn, options: &MysqlOptions) -> Result<()> {
    check_server(conn).await?;
    if found(conn).await? {
        return Ok(());
    }
    if !options.common.create {
        return Err(Trouble::Refused(
            "the database lacks the tables of session locks and `create=no` was chosen; run the DDL that \
             docs/guides/sql-durable-or-session.md names"
                .into(),
        ));
    }
    // Those who make the tables at the same time, of either mode, do so one after the other.
    let name = making_name(options);
    conn.query_drop(format!("DO GET_LOCK({name}, 60)")).await?;
    let made = make(conn).await;
    conn.query_drop(format!("DO RELEASE_LOCK({name})")).await?;
    made
}

async fn make(conn: &mut Conn) -> Result<()> {
    if found(conn).await? {
        return Ok(());
    }
    for statement in statements(&session_ddl()) {
        conn.query_drop(statement).await?;
    }
    if found(conn).await? {
        return Ok(());
    }
    Err(Trouble::Refused(
        "the tables were created and are not there as InnoDB tables and one in memory; may this user see them, and does \
         the server allow both engines?"
            .into(),
    ))
}

/// Refuse a server whose named locks are another's: a node of a cluster knows only its own.
async fn check_server(conn: &mut Conn) -> Result<()> {
    let galera = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'";
    let found: Option<(String, String)> = conn.query_first(galera).await?;
    if found.is_none() {
        return Ok(());
    }
    Err(Trouble::Refused(
        "this is a node of Galera, and the other nodes do not know its sessions' locks; remove `mode=session`".into(),
    ))
}

/// Whether everything is there. Refuses if it is of the other mode, or of another version.
async fn found(conn: &mut Conn) -> Result<bool> {
    let (tables,): (i64,) = one(conn, FOUND).await?;
    let version = match one::<(i64,)>(conn, "SELECT COALESCE(MAX(version), 0) FROM lockkeeper_store").await {
        Ok((version,)) => version,
        Err(trouble) if trouble.is_missing() => return Ok(false),
        Err(trouble) => return Err(trouble),
    };
    match version {
        VERSION => Ok(tables == COUNT),
        0 => Ok(false),
        ..VERSION => Err(Trouble::Refused(
            "the database keeps durable locks, and locks of the two modes do not exclude each other; remove \
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_cut_where_the_clients_cut_them() {
        for (script, count) in [(session_ddl(), 9), (session_switch(), 26), (durable_switch(), 48)] {
            let cut = statements(&script);
            assert_eq!(cut.len(), count, "{cut:?}");
            assert!(
                cut.iter().all(|it| !it.is_empty() && !it.contains('@') || it.contains("@QUIET@")),
                "{cut:?}"
            );
        }
    }
}
