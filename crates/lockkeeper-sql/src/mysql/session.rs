//! What a session must be like before a statement of ours runs on it: every setting is set, and then looked at.
//!
//! A server's defaults, its `init_connect` and a proxy may choose anything. Under `completion_type=CHAIN` a COMMIT
//! begins the next transaction, and a grant would be told that is not committed; under `sql_safe_updates` or a
//! small `sql_select_limit` statements fail or answer in part.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use super::fault::{Result, Trouble};

/// The mode of sessions and procedures. First of all, because others change how the rest is read.
pub(super) const MODE: &str = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION";

/// What MySQL and MariaDB have in common, and how each shows it.
const SETTINGS: [(&str, &str, &str); 13] = [
    ("autocommit", "1", "ON"),
    ("completion_type", "0", "NO_CHAIN"),
    ("sql_safe_updates", "0", "OFF"),
    ("sql_select_limit", "18446744073709551615", "18446744073709551615"),
    ("sql_auto_is_null", "0", "OFF"),
    ("sql_big_selects", "1", "ON"),
    ("unique_checks", "1", "ON"),
    ("time_zone", "'+00:00'", "+00:00"),
    ("character_set_client", "utf8mb4", "utf8mb4"),
    ("character_set_connection", "utf8mb4", "utf8mb4"),
    ("character_set_results", "utf8mb4", "utf8mb4"),
    // Whoever waits longer is told, and asks again: a statement that stays away longer has been lost on its way.
    ("innodb_lock_wait_timeout", "1", "1"),
    ("lock_wait_timeout", "30", "30"),
];

/// What one of them has, or names in its own way: shown like this wherever it is there.
const SHOWN: [(&str, &str); 7] = [
    ("sql_mode", MODE),
    ("tx_isolation", "READ-COMMITTED"),
    ("transaction_isolation", "READ-COMMITTED"),
    ("tx_read_only", "OFF"),
    ("transaction_read_only", "OFF"),
    ("max_statement_time", "0.000000"),
    ("max_execution_time", "0"),
];

/// Make a new session ours.
pub(super) async fn greet(conn: &mut Conn) -> Result<()> {
    // Whatever `init_connect` has begun is none of our business.
    conn.query_drop("ROLLBACK AND NO CHAIN NO RELEASE").await?;
    conn.query_drop(format!("SET SESSION sql_mode = '{MODE}'")).await?;
    let assignments: Vec<String> =
        SETTINGS.iter().map(|(name, value, _)| format!("SESSION {name} = {value}")).collect();
    let names: Vec<String> = SETTINGS
        .iter()
        .map(|it| it.0)
        .chain(SHOWN.iter().map(|it| it.0))
        .map(|it| format!("'{it}'"))
        .collect();
    // Each server takes the comment of the other for one. `timestamp` would stop the clock; MariaDB would make a table
    // of a long list.
    let sql = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION TRANSACTION READ WRITE; \
         SET {}, timestamp = DEFAULT /*M! , max_statement_time = 0, in_predicate_conversion_threshold = 0 */ /*!80000 , max_execution_time = 0 */; \
         SHOW SESSION VARIABLES WHERE Variable_name IN ({})",
        assignments.join(", "),
        names.join(", ")
    );
    let mut results = conn.query_iter(sql).await?;
    let mut found: Vec<(String, String)> = Vec::new();
    while !results.is_empty() {
        let rows: Vec<Row> = results.collect().await?;
        found.extend(rows.iter().filter_map(|it| Some((it.get_opt(0)?.ok()?, it.get_opt(1)?.ok()?))));
    }
    verify(&found)
}

/// Refuse a session that is not as it was told to be.
fn verify(found: &[(String, String)]) -> Result<()> {
    let shown = |name: &str| found.iter().find(|it| it.0.eq_ignore_ascii_case(name)).map(|it| it.1.as_str());
    let refused = |name: &str, is: &str, wanted: &str| {
        Err(Trouble::Refused(format!(
            "the session's {name} is {is:?} and not {wanted:?}, although it was set; something between us and the \
             server changes it, perhaps a proxy"
        )))
    };
    for (name, _, wanted) in SETTINGS {
        let is = shown(name).unwrap_or("unknown");
        if is != wanted {
            return refused(name, is, wanted);
        }
    }
    for (name, wanted) in SHOWN {
        if let Some(is) = shown(name)
            && is != wanted
        {
            return refused(name, is, wanted);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_differs_is_refused_by_name() {
        let mut found: Vec<(String, String)> =
            SETTINGS.iter().map(|it| (it.0.to_owned(), it.2.to_owned())).collect();
        found.push(("tx_isolation".into(), "READ-COMMITTED".into()));
        verify(&found).unwrap();
        for at in 0..found.len() {
            let mut other = found.clone();
            "elsewise".clone_into(&mut other[at].1);
            let Err(Trouble::Refused(message)) = verify(&other) else { panic!("{other:?}") };
            assert!(message.contains(&other[at].0), "{message}");
        }
        assert!(verify(&found[1..]).is_err(), "a setting that is not there is not as wanted");
    }
}
