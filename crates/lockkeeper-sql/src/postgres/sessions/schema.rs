//! The tables and functions of session locks, and that a schema keeps locks of one mode only.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::super::fault::{Result, Trouble};
use super::super::options::PostgresOptions;

/// What the store's version says in a schema that keeps session locks. Programs of the other mode refuse it.
pub(crate) const VERSION: i32 = 101;

/// The function that came last: where it is missing all are made again, as they are now.
const LATEST: &str = "lockkeeper_session_clean_3(integer, bigint, bigint)";

/// An advisory lock for those who create the tables at the same time; the one that the other mode uses.
const CREATING: i64 = 0x6c6b_7363_6865_6d61;

/// The oldest server that ends sessions which are silent.
const SERVER_MIN: i32 = 140_000;

/// The statements that make the tables and functions of session locks in `schema`, for people who run them by hand.
///
/// `schema` is put in as it is; use small letters, digits and `_`.
///
/// ```
/// assert!(lockkeeper_sql::postgres::session_ddl("shop_locks").contains("shop_locks.lockkeeper_session_name"));
/// ```
pub fn session_ddl(schema: &str) -> String {
    include_str!("schema.sql").replace("@SCHEMA@", schema)
}

/// The statements that turn a schema of durable locks into one of session locks, for people who run them by hand when
/// no program uses it. They refuse while somebody holds a lock or waits. Fences go on from where they were.
///
/// ```
/// assert!(lockkeeper_sql::postgres::session_switch("shop_locks").contains("DROP TABLE shop_locks.lockkeeper_claim"));
/// ```
pub fn session_switch(schema: &str) -> String {
    include_str!("switch.sql").replace("@SCHEMA@", schema).replace("@SESSIONS@", &session_ddl(schema))
}

/// The statements that turn a schema of session locks into one of durable locks: as [`session_switch`], backwards.
///
/// ```
/// assert!(lockkeeper_sql::postgres::durable_switch("shop_locks").contains("shop_locks.lockkeeper_claim"));
/// ```
pub fn durable_switch(schema: &str) -> String {
    let durable = super::super::schema::ddl(schema);
    include_str!("switch_back.sql").replace("@SCHEMA@", schema).replace("@DURABLE@", &durable)
}

/// Find the tables, or make them.
pub(crate) async fn prepare(client: &Client, options: &PostgresOptions) -> Result<()> {
    check_server(client).await?;
    let schema = &options.schema;
    if found(client, schema).await? {
        return Ok(());
    }
    if !options.common.create {
        return Err(Trouble::Refused(format!(
            "the schema `{schema}` lacks the tables or functions of session locks and `create=no` was chosen; \
             run the DDL that docs/guides/sql-durable-or-session.md names"
        )));
    }
    let missing = format!(
        "to_regclass('{schema}.lockkeeper_store') IS NULL OR to_regprocedure('{schema}.{LATEST}') \
         IS NULL AND (SELECT version FROM {schema}.\
         lockkeeper_store) = {VERSION}"
    );
    // The two halves cannot stand in one expression: it would not be understood while the table is missing.
    let (absent, unfinished) = missing.split_once(" OR ").unwrap_or((&missing, "false"));
    let create = session_ddl(schema);
    client
        .batch_execute(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({CREATING}); \
             DO $create$ DECLARE wanted boolean := {absent}; BEGIN \
             IF NOT wanted THEN wanted := {unfinished}; END IF; \
             IF wanted THEN EXECUTE $ddl${create}$ddl$; END IF; END $create$; COMMIT"
        ))
        .await?;
    if found(client, schema).await? {
        return Ok(());
    }
    Err(Trouble::Refused(
        "the tables were created and are not there; is `search_path` or a trigger in the way?".into(),
    ))
}

async fn check_server(client: &Client) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), \
               current_setting('server_version')";
    let row = client.query_typed_one(sql, &[]).await?;
    let (number, encoding, version): (i32, &str, &str) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    if number < SERVER_MIN {
        return Err(Trouble::Refused(format!(
            "session locks need PostgreSQL 14 or newer, which ends silent sessions by itself; this is {version}: \
             remove `mode=session`"
        )));
    }
    if encoding != "UTF8" {
        return Err(Trouble::Refused(format!(
            "the database's encoding is {encoding}, which cannot hold every lock name; use a database with UTF8"
        )));
    }
    Ok(())
}

/// Whether everything is there. Refuses if it is of the other mode, or of another version.
async fn found(client: &Client, schema: &str) -> Result<bool> {
    let row = client
        .query_typed_one(
            "SELECT to_regclass($1) IS NOT NULL, to_regprocedure($2) IS NOT NULL",
            &[
                (&format!("{schema}.lockkeeper_store"), Type::TEXT),
                (&format!("{schema}.{LATEST}"), Type::TEXT),
            ],
        )
        .await?;
    let (store, functions): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if !store {
        return Ok(false);
    }
    let read = format!("SELECT version FROM {schema}.lockkeeper_store WHERE one = 1");
    let row = client.query_typed_opt(&read, &[]).await?;
    match row.map(|it| it.try_get::<_, i32>(0)).transpose()? {
        Some(VERSION) => Ok(functions),
        Some(version) if version < VERSION => Err(Trouble::Refused(format!(
            "the schema `{schema}` keeps durable locks, and locks of the two modes do not exclude each other; remove \
             `mode=session`, or choose another `schema` for other names, or turn this one over as \
             docs/guides/sql-durable-or-session.md says"
        ))),
        Some(version) => Err(Trouble::Refused(format!(
            "the schema `{schema}` has version {version}, this program knows version {VERSION}; \
             use a newer Lockkeeper or another schema"
        ))),
        None => Ok(false),
    }
}
