//! The DDL in the documentation is the DDL that the code runs.

#[test]
fn the_documents_hold_the_ddl() {
    let postgres = include_str!("../../../docs/backends/postgres.md");
    assert!(postgres.contains(&lockkeeper_sql::postgres::ddl("lockkeeper")));
    let mysql = include_str!("../../../docs/backends/mysql.md");
    assert!(mysql.contains(&lockkeeper_sql::mysql::ddl()));
    assert!(mysql.contains(lockkeeper_sql::mysql::memo_ddl()));
}
