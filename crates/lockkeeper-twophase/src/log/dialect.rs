//! The log's statements, as PostgreSQL and as MySQL and MariaDB understand them. All are text: one message each.

use super::{BranchRecord, Decision};
use crate::id::hex;

/// Whose SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    Mysql,
}

/// An advisory lock for those who create the tables at the same time; random, to disturb nobody else.
const CREATING: i64 = 0x6c6b_3270_636c_6f67;

impl Dialect {
    /// A text that may hold anything. Hexadecimal digits cannot end the literal.
    pub(super) fn text(self, it: &str) -> String {
        // PostgreSQL has no text with a NUL in it.
        let hex = hex(&it.replace('\0', ""));
        match self {
            Dialect::Postgres => format!("convert_from(decode('{hex}', 'hex'), 'UTF8')"),
            Dialect::Mysql => format!("CONVERT(X'{hex}' USING utf8mb4)"),
        }
    }

    /// What a session of the log is told first: wait for nobody long, and force what is committed.
    pub(super) fn greeting(self) -> &'static str {
        match self {
            Dialect::Postgres => {
                "SET lock_timeout = '5s'; SET client_min_messages = warning; \
                 SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
            }
            Dialect::Mysql => "SET SESSION innodb_lock_wait_timeout = 5, SESSION autocommit = 1",
        }
    }

    /// Whether there is a table of this name. If there is, the answer has a row.
    pub(crate) fn is_made(self, table: &str) -> String {
        match self {
            Dialect::Postgres => format!("SELECT 1 FROM pg_class WHERE oid = to_regclass('{table}')"),
            Dialect::Mysql => format!(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{table}'"
            ),
        }
    }

    pub(super) fn tables(self) -> String {
        let (number, name, word, text, engine, index) = match self {
            Dialect::Postgres => ("bigint", "text", "text", "text", "", ""),
            Dialect::Mysql => (
                "BIGINT",
                "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin",
                "LONGTEXT CHARACTER SET utf8mb4",
                " ENGINE = InnoDB",
                ", KEY lockkeeper_2pc_unfinished (finished, seat)",
            ),
        };
        let tables = format!(
            "CREATE TABLE IF NOT EXISTS lockkeeper_2pc_log (one int PRIMARY KEY, id {name} NOT NULL, version int NOT NULL, \
             forgotten {number} NOT NULL){engine}; \
             CREATE TABLE IF NOT EXISTS lockkeeper_2pc_participant (name {name} PRIMARY KEY, kind {word} NOT NULL, \
             place {text} NOT NULL, identity {name} NOT NULL){engine}; \
             CREATE TABLE IF NOT EXISTS lockkeeper_2pc_seat (seat int PRIMARY KEY, fence {number} NOT NULL){engine}; \
             CREATE TABLE IF NOT EXISTS lockkeeper_2pc_verdict (id {name} PRIMARY KEY, seat int NOT NULL, fence {number} NOT NULL, \
             verdict {word} NOT NULL, note {text} NOT NULL, branches {text} NOT NULL, decided {number} NOT NULL, \
             finished int NOT NULL{index}){engine}; \
             CREATE TABLE IF NOT EXISTS lockkeeper_2pc_damage (id {name}, participant {name}, expected {word} NOT NULL, \
             found {text} NOT NULL, seen {number} NOT NULL, PRIMARY KEY (id, participant)){engine}; \
             CREATE TABLE IF NOT EXISTS lockkeeper_2pc_proof (token {name} PRIMARY KEY){engine}"
        );
        match self {
            // `IF NOT EXISTS` alone fails if two do it at the same moment. One message, one transaction.
            Dialect::Postgres => format!(
                "SELECT pg_advisory_xact_lock({CREATING}); {tables}; \
                 CREATE INDEX IF NOT EXISTS lockkeeper_2pc_unfinished ON lockkeeper_2pc_verdict (seat) WHERE finished = 0"
            ),
            Dialect::Mysql => tables,
        }
    }

    /// Insert what is selected or listed, unless there is a row with this key.
    pub(super) fn insert(self, table: &str, what: &str) -> String {
        match self {
            Dialect::Postgres => format!("INSERT INTO lockkeeper_2pc_{table} {what} ON CONFLICT DO NOTHING"),
            Dialect::Mysql => format!("INSERT IGNORE INTO lockkeeper_2pc_{table} {what}"),
        }
    }

    /// Keep others from changing the rows that are read, and wait for those who do.
    fn shared(self) -> &'static str {
        match self {
            Dialect::Postgres => "FOR SHARE",
            Dialect::Mysql => "LOCK IN SHARE MODE",
        }
    }

    fn columns(self, record: &Decision, fence: &str) -> String {
        format!(
            "'{}', {}, {fence}, '{}', {}, '{}', {}, {}",
            record.id,
            record.id.seat(),
            record.ruling,
            self.text(&record.note),
            BranchRecord::all_written(&record.branches),
            record.decided,
            u8::from(record.finished)
        )
    }

    /// A row, whatever the seat.
    pub(super) fn ruled(self, record: &Decision) -> String {
        let row = self.columns(record, &record.id.fence().cast_signed().to_string());
        self.insert("verdict", &format!("VALUES ({row})"))
    }

    /// A row, only by the newest holder of the seat. Nobody can take the seat before it is committed.
    fn decided(self, record: &Decision, fence: u64) -> String {
        let row = self.columns(record, &record.id.fence().cast_signed().to_string());
        let (seat, fence, shared) = (record.id.seat(), fence.cast_signed(), self.shared());
        let select =
            format!("SELECT {row} FROM lockkeeper_2pc_seat WHERE seat = {seat} AND fence = {fence} {shared}");
        let select = if self == Dialect::Postgres { format!("({select})") } else { select };
        self.insert("verdict", &select)
    }

    /// All rows in one transaction and one message, so that a coordinator that is paused holds no lock; and which are there then.
    pub(super) fn decide_all<'a>(self, all: impl Iterator<Item = (&'a Decision, u64)> + Clone) -> String {
        let rows: Vec<String> = all.clone().map(|(record, fence)| self.decided(record, fence)).collect();
        let ids: Vec<String> = all.map(|(record, _)| format!("'{}'", record.id)).collect();
        format!(
            "BEGIN; {}; COMMIT; SELECT id FROM lockkeeper_2pc_verdict WHERE verdict = 'commit' AND id IN ({})",
            rows.join("; "),
            ids.join(", ")
        )
    }

    /// Every branch of these has followed. PostgreSQL need not force it; the others cannot choose.
    pub(super) fn finish_all(self, ids: &[String]) -> String {
        let update =
            format!("UPDATE lockkeeper_2pc_verdict SET finished = 1 WHERE id IN ({})", ids.join(", "));
        match self {
            Dialect::Postgres => format!("BEGIN; SET LOCAL synchronous_commit = off; {update}; COMMIT"),
            Dialect::Mysql => update,
        }
    }

    /// For a branch that lives where the log does: its own commit is the decision. Without the newest fence there is no number,
    /// which the table refuses, and then the commit that follows in the same message is not done.
    pub(crate) fn decide_inside(self, record: &Decision) -> String {
        let (seat, fence, shared) = (record.id.seat(), record.id.fence().cast_signed(), self.shared());
        let newest = format!(
            "(SELECT fence FROM lockkeeper_2pc_seat WHERE seat = {seat} AND fence = {fence} {shared})"
        );
        let row = self.columns(record, &newest);
        let insert = format!("INSERT INTO lockkeeper_2pc_verdict VALUES ({row}); COMMIT");
        self.forced(&insert)
    }

    /// What ends in a commit that must not be lost, whatever the branch has chosen for itself.
    pub(crate) fn forced(self, statements: &str) -> String {
        match self {
            Dialect::Postgres => format!(
                "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'; {statements}"
            ),
            Dialect::Mysql => statements.to_owned(),
        }
    }
}
