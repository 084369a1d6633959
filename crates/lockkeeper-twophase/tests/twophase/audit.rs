//! What the log itself saw: beside each decision a trigger notes which fence its seat had at that moment. So a decision by
//! somebody who was replaced is found even if nobody followed it.

use lockkeeper_servers::Flavour;
use lockkeeper_twophase::rusqlite::Connection;
use lockkeeper_twophase::tokio_postgres::{self, NoTls, SimpleQueryMessage};

use crate::site::{Bank, Site};

const VERDICT: &str = "lockkeeper_2pc_verdict";
const SEAT: &str = "lockkeeper_2pc_seat";

/// Have the log of this bank note what it sees. Its tables are there.
pub(crate) async fn watch<F: Flavour>(site: &Site<F>, bank: &Bank) {
    let noted = "CREATE TABLE noted (id varchar(64), verdict varchar(16), fence bigint, newest bigint)";
    let values = format!("NEW.id, NEW.verdict, NEW.fence, (SELECT fence FROM {SEAT} WHERE seat = NEW.seat");
    if let Some(path) = bank.log.strip_prefix("sqlite:") {
        let trigger = format!(
            "CREATE TRIGGER note AFTER INSERT ON {VERDICT} BEGIN INSERT INTO noted VALUES ({values})); END"
        );
        Connection::open(path).unwrap().execute_batch(&format!("{noted}; {trigger}")).unwrap();
    } else if let Some(database) = of_mysql(bank) {
        // With a lock, so that it is the newest and not that of an old snapshot.
        let trigger = format!(
            "CREATE TRIGGER note AFTER INSERT ON {VERDICT} FOR EACH ROW INSERT INTO noted VALUES ({values} LOCK IN SHARE MODE))"
        );
        site.mysql.sql(&format!("USE {database}; {noted}; {trigger}")).await.unwrap();
    } else {
        let function = format!(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN INSERT INTO noted VALUES ({values} FOR SHARE)); RETURN NULL; END'"
        );
        let trigger =
            format!("CREATE TRIGGER note AFTER INSERT ON {VERDICT} FOR EACH ROW EXECUTE FUNCTION note()");
        asked_postgres(bank, &format!("{noted}; {function}; {trigger}")).await;
    }
}

/// Nobody has decided to commit but the newest holder of the seat, and everything that was decided was noted.
pub(crate) async fn check<F: Flavour>(site: &Site<F>, bank: &Bank, context: &str) {
    // A ruling by hand, or what the log had lost, is written by whoever holds the seat then, with the fence of the transaction.
    let stale = &format!(
        "SELECT id FROM noted WHERE verdict = 'commit' AND (newest IS NULL OR fence <> newest) \
         AND id NOT IN (SELECT id FROM {VERDICT} WHERE note IN ('by hand', 'the log had lost it'))"
    );
    let missed =
        format!("SELECT id FROM {VERDICT} WHERE verdict = 'commit' AND id NOT IN (SELECT id FROM noted)");
    let found = async |sql: &str| asked(site, bank, sql).await;
    if bank
        .log
        .strip_prefix("sqlite:")
        .is_some_and(|it| !Connection::open(it).unwrap().table_exists(None, "noted").unwrap())
    {
        // A test has lost the log, and nothing was decided with the new one.
        assert!(
            found(&format!("SELECT id FROM {VERDICT}")).await.is_empty(),
            "{context}: nobody noted what was decided"
        );
        return;
    }
    assert!(
        found(stale).await.is_empty(),
        "{context}: a decision by a stale fence: {:?}",
        found(stale).await
    );
    assert!(found(&missed).await.is_empty(), "{context}: decided and not noted: {:?}", found(&missed).await);
}

/// What the servers themselves list as prepared, of this bank's log.
pub(crate) async fn prepared<F: Flavour>(site: &Site<F>, bank: &Bank) -> Vec<String> {
    let log = asked(site, bank, "SELECT id FROM lockkeeper_2pc_log").await;
    let ours = format!("lk1.{}.", log[0]);
    let here = bank.here("SELECT gid FROM pg_prepared_xacts").await;
    let there = site.mysql.sql("XA RECOVER").await.unwrap();
    here.lines().chain(there.lines()).filter(|it| it.contains(&ours)).map(str::to_owned).collect()
}

/// The first column, as the log has it.
async fn asked<F: Flavour>(site: &Site<F>, bank: &Bank, sql: &str) -> Vec<String> {
    if let Some(path) = bank.log.strip_prefix("sqlite:") {
        let log = Connection::open(path).unwrap();
        let mut rows = log.prepare(sql).unwrap();
        let rows = rows.query_map([], |it| it.get(0)).unwrap();
        return rows.map(Result::unwrap).collect();
    }
    if let Some(database) = of_mysql(bank) {
        let told = site.mysql.sql(&format!("USE {database}; {sql}")).await.unwrap();
        return told.lines().map(str::to_owned).collect();
    }
    asked_postgres(bank, sql).await
}

/// The database of a log in MySQL or MariaDB.
fn of_mysql(bank: &Bank) -> Option<&str> {
    bank.log.strip_prefix("mysql://")?.rsplit('/').next()
}

async fn asked_postgres(bank: &Bank, sql: &str) -> Vec<String> {
    let (client, connection) = tokio_postgres::connect(&bank.log, NoTls).await.unwrap();
    tokio::spawn(connection);
    let answer = client.simple_query(sql).await.unwrap();
    let cell = |it: &SimpleQueryMessage| match it {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    answer.iter().filter_map(cell).collect()
}
