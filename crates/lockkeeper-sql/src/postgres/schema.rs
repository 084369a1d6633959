//! The tables and functions, and what a process must find before it uses them.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::fault::{Result, Trouble};
use super::options::PostgresOptions;
use crate::name::micros_up;

/// The version of the tables that this code reads and writes. The functions have a version of their own, in their
/// names: those of several versions stand side by side and serve the same lines.
const VERSION: i32 = 1;

/// The function that came last to those of this version: where it is missing all are made again, as they are now.
const LATEST: &str = "lockkeeper_inside_3(bytea, bigint, bigint, bigint)";

/// An advisory lock for those who create the tables at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_7363_6865_6d61;

/// The statements that make the tables and functions in `schema`, for people who run them by hand.
///
/// `schema` is put in as it is; use small letters, digits and `_`.
///
/// ```
/// assert!(lockkeeper_sql::postgres::ddl("shop_locks").contains("shop_locks.lockkeeper_claim"));
/// ```
pub fn ddl(schema: &str) -> String {
    statements(schema, 0)
}

fn statements(schema: &str, quiet_until: i64) -> String {
    concat!(include_str!("schema.sql"), include_str!("upkeep.sql"))
        .replace("@SCHEMA@", schema)
        .replace("@QUIET@", &quiet_until.to_string())
}

/// Find the tables, or make them. `quiet` is how long a table that is made anew must grant nothing, because
/// holders of the old one do not know yet that it is gone.
pub(crate) async fn prepare(client: &Client, options: &PostgresOptions, quiet: Duration) -> Result<()> {
    check_encoding(client).await?;
    if found(client, options).await? {
        return Ok(());
    }
    if !options.common.create {
        return Err(Trouble::Refused(format!(
            "the schema `{}` lacks the tables or functions of Lockkeeper and `create=no` was chosen; \
             run the DDL in docs/backends/postgres.md",
            options.schema
        )));
    }
    let row = client
        .query_typed_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[])
        .await?;
    let now: i64 = row.try_get(0)?;
    let quiet_until = if quiet.is_zero() { 0 } else { now.saturating_add(micros_up(quiet)) };
    // One message, one transaction: all or nothing. Whoever comes second finds everything there and changes
    // nothing but the text of the functions, which is the same.
    let create = statements(&options.schema, quiet_until);
    let schema = &options.schema;
    let missing = format!(
        "num_nulls(to_regclass('{schema}.lockkeeper_store'), to_regclass('{schema}.lockkeeper_lock'), \
         to_regclass('{schema}.lockkeeper_claim'), \
         to_regprocedure('{schema}.lockkeeper_clean_3(bigint, bigint, bigint)'), \
         to_regprocedure('{schema}.{LATEST}')) > 0"
    );
    client
        .batch_execute(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({CREATING}); \
             DO $create$ BEGIN IF {missing} THEN EXECUTE $ddl${create}$ddl$; END IF; END $create$; COMMIT"
        ))
        .await?;
    if found(client, options).await? {
        return Ok(());
    }
    Err(Trouble::Refused(
        "the tables were created and are not there; is `search_path` or a trigger in the way?".into(),
    ))
}

/// Names reach the server as UTF-8 and must be kept as they are.
async fn check_encoding(client: &Client) -> Result<()> {
    let row = client.query_typed_one("SELECT current_setting('server_encoding')", &[]).await?;
    let encoding: &str = row.try_get(0)?;
    if encoding == "UTF8" {
        return Ok(());
    }
    Err(Trouble::Refused(format!(
        "the database's encoding is {encoding}, which cannot hold every lock name; use a database with UTF8"
    )))
}

/// Whether everything is there. Refuses if it is of another version.
async fn found(client: &Client, options: &PostgresOptions) -> Result<bool> {
    let schema = &options.schema;
    let row = client
        .query_typed_one(
            "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL AND to_regclass($3) IS NOT NULL \
             AND to_regprocedure($4) IS NOT NULL AND to_regprocedure($5) IS NOT NULL, to_regclass($1) IS NOT NULL",
            &[
                (&format!("{schema}.lockkeeper_store"), Type::TEXT),
                (&format!("{schema}.lockkeeper_lock"), Type::TEXT),
                (&format!("{schema}.lockkeeper_claim"), Type::TEXT),
                (&format!("{schema}.lockkeeper_clean_3(bigint, bigint, bigint)"), Type::TEXT),
                (&format!("{schema}.{LATEST}"), Type::TEXT),
            ],
        )
        .await?;
    let (all, store): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if store {
        let read = format!("SELECT version FROM {schema}.lockkeeper_store WHERE one = 1");
        let row = client.query_typed_opt(&read, &[]).await?;
        let version: Option<i32> = row.map(|it| it.try_get(0)).transpose()?;
        if version == Some(super::sessions::VERSION) {
            return Err(Trouble::Refused(format!(
                "the schema `{schema}` keeps session locks, and locks of the two modes do not exclude each other; add \
                 `mode=session`, or choose another `schema` for other names, or turn this one over as \
                 docs/guides/sql-durable-or-session.md says"
            )));
        }
        if let Some(version) = version.filter(|it| *it != VERSION) {
            return Err(Trouble::Refused(format!(
                "the schema `{schema}` has version {version}, this program knows version {VERSION}; \
                 use a newer Lockkeeper or another schema"
            )));
        }
        return Ok(all && version.is_some());
    }
    Ok(all)
}
