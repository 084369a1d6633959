//! The fenced writes of the guide as programs: its statement, its function, and a `main` that must see a stale fence refused.

use std::fs;
use std::path::Path;

const GUIDE: &str = "docs/guides/fenced-writes.md";
const SQLITE: &str = "### SQLite, a writer";
const POSTGRES: &str = "### PostgreSQL, a writer";
/// Two statements.
const MYSQL: &str = "### MySQL and MariaDB, a writer";

/// A program of its own.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Those of the library.
    pub(crate) features: &'static str,
    pub(crate) dependencies: String,
    pub(crate) code: String,
}

/// The name, the heading of the guide, what it needs, what it uses, and its `main`.
type Kind = (&'static str, &'static str, &'static str, &'static str, &'static str);

const TOKIO: &str = "tokio = { version = \"1\", features = [\"macros\", \"rt\"] }\n";
const SQLX_MAIN: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let pool = sqlx::sqlite::SqlitePool::connect(&format!("sqlite:{file}?mode=rwc")).await?;
    sqlx::query(lockkeeper::sqlite::SqliteFences::DDL).execute(&pool).await?;
    for (fence, good) in fences(&file)? {
        let mut tx = pool.begin().await?;
        assert_eq!(check(&mut tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;
const DIESEL_MAIN: &str = r#"
fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let mut connection = SqliteConnection::establish(&file)?;
    diesel::sql_query(lockkeeper::sqlite::SqliteFences::DDL).execute(&mut connection)?;
    for (fence, good) in fences(&file)? {
        connection.transaction(|tx| -> Result<(), Failure> {
            assert_eq!(check(tx, NAME, fence)?, good);
            Ok(())
        })?;
    }
    Ok(())
}
"#;
const SEA_MAIN: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let database = Database::connect(format!("sqlite:{file}?mode=rwc")).await?;
    database.execute_unprepared(lockkeeper::sqlite::SqliteFences::DDL).await?;
    for (fence, good) in fences(&file)? {
        let tx = database.begin().await?;
        assert_eq!(check(&tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;

/// Each of these begins with a server of its own.
const SQLX_ON_POSTGRES: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let server = lockkeeper_servers::Postgres::start(Default::default()).await?;
    let pool = sqlx::postgres::PgPool::connect(&server.url()).await?;
    let table = lockkeeper::sql::postgres::PostgresFences::new("public")?.ddl();
    sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&pool).await?;
    for (fence, good) in fences(&file)? {
        let mut tx = pool.begin().await?;
        assert_eq!(check(&mut tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;
const DIESEL_ON_POSTGRES: &str = r#"
fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(lockkeeper_servers::Postgres::start(Default::default()))?;
    let mut connection = PgConnection::establish(&server.url())?;
    let table = lockkeeper::sql::postgres::PostgresFences::new("public")?.ddl();
    diesel::connection::SimpleConnection::batch_execute(&mut connection, &table)?;
    for (fence, good) in fences(&file)? {
        connection.transaction(|tx| -> Result<(), Failure> {
            assert_eq!(check(tx, NAME, fence)?, good);
            Ok(())
        })?;
    }
    Ok(())
}
"#;
const SEA_ON_POSTGRES: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let server = lockkeeper_servers::Postgres::start(Default::default()).await?;
    let database = Database::connect(server.url()).await?;
    let table = lockkeeper::sql::postgres::PostgresFences::new("public")?.ddl();
    database.execute_unprepared(&table).await?;
    for (fence, good) in fences(&file)? {
        let tx = database.begin().await?;
        assert_eq!(check(&tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;
const SQLX_ON_MYSQL: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let server = lockkeeper_servers::MariaDb::start(Default::default()).await?;
    let pool = sqlx::mysql::MySqlPool::connect(&server.url()).await?;
    sqlx::query(lockkeeper::sql::mysql::MysqlFences::DDL).execute(&pool).await?;
    for (fence, good) in fences(&file)? {
        let mut tx = pool.begin().await?;
        assert_eq!(check(&mut tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;
const DIESEL_ON_MYSQL: &str = r#"
fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = runtime.block_on(lockkeeper_servers::MariaDb::start(Default::default()))?;
    let mut connection = MysqlConnection::establish(&server.url())?;
    diesel::sql_query(lockkeeper::sql::mysql::MysqlFences::DDL).execute(&mut connection)?;
    for (fence, good) in fences(&file)? {
        connection.transaction(|tx| -> Result<(), Failure> {
            assert_eq!(check(tx, NAME, fence)?, good);
            Ok(())
        })?;
    }
    Ok(())
}
"#;
const SEA_ON_MYSQL: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let file = std::env::args().nth(1).ok_or("no file")?;
    let server = lockkeeper_servers::MariaDb::start(Default::default()).await?;
    let database = Database::connect(server.url()).await?;
    database.execute_unprepared(lockkeeper::sql::mysql::MysqlFences::DDL).await?;
    for (fence, good) in fences(&file)? {
        let tx = database.begin().await?;
        assert_eq!(check(&tx, NAME, fence).await?, good);
        tx.commit().await?;
    }
    Ok(())
}
"#;

const KINDS: &[Kind] = &[
    (
        "sqlx 0.8",
        "### By sqlx",
        "sqlx = { version = \"0.8\", default-features = false, features = [\"runtime-tokio\", \"sqlite\"] }\n",
        "",
        SQLX_MAIN,
    ),
    (
        "sqlx 0.9",
        "### By sqlx",
        "sqlx = { version = \"0.9\", default-features = false, features = [\"runtime-tokio\", \"sqlite\"] }\n",
        "",
        SQLX_MAIN,
    ),
    (
        "diesel 2",
        "### By diesel",
        "diesel = { version = \"2\", default-features = false, features = [\"sqlite\"] }\n",
        "use diesel::prelude::*;\nuse diesel::sql_types::{BigInt, Text};\n",
        DIESEL_MAIN,
    ),
    (
        "sea-orm 1",
        "### By sea-orm",
        "sea-orm = { version = \"1\", default-features = false, features = [\"runtime-tokio\", \"sqlx-sqlite\"] }\n",
        "use sea_orm::{\n    ConnectionTrait, Database, DatabaseTransaction, DbBackend, Statement, TransactionTrait,\n};\n",
        SEA_MAIN,
    ),
];

/// The same on a server.
const ON_POSTGRES: &[Kind] = &[
    (
        "sqlx 0.9 on PostgreSQL",
        "### By sqlx, on PostgreSQL",
        "sqlx = { version = \"0.9\", default-features = false, features = [\"postgres\", \"runtime-tokio\"] }\n",
        "",
        SQLX_ON_POSTGRES,
    ),
    (
        "diesel 2 on PostgreSQL",
        "### By diesel, on PostgreSQL",
        "diesel = { version = \"2\", default-features = false, features = [\"postgres\"] }\n",
        "use diesel::prelude::*;\nuse diesel::sql_types::{BigInt, Text};\n",
        DIESEL_ON_POSTGRES,
    ),
    (
        "sea-orm 1 on PostgreSQL",
        "### By sea-orm, on PostgreSQL",
        "sea-orm = { version = \"1\", default-features = false, features = [\"runtime-tokio\", \"sqlx-postgres\"] }\n",
        "use sea_orm::{\n    ConnectionTrait, Database, DatabaseTransaction, DbBackend, Statement, TransactionTrait,\n};\n",
        SEA_ON_POSTGRES,
    ),
];
const ON_MYSQL: &[Kind] = &[
    (
        "sqlx 0.9 on MariaDB",
        "### By sqlx, on MySQL and MariaDB",
        "sqlx = { version = \"0.9\", default-features = false, features = [\"mysql\", \"runtime-tokio\"] }\n",
        "",
        SQLX_ON_MYSQL,
    ),
    (
        "diesel 2 on MariaDB",
        "### By diesel, on MySQL and MariaDB",
        "diesel = { version = \"2\", default-features = false, features = [\"mysql\"] }\n",
        "use diesel::prelude::*;\nuse diesel::sql_types::{BigInt, Text};\n",
        DIESEL_ON_MYSQL,
    ),
    (
        "sea-orm 1 on MariaDB",
        "### By sea-orm, on MySQL and MariaDB",
        "sea-orm = { version = \"1\", default-features = false, features = [\"runtime-tokio\", \"sqlx-mysql\"] }\n",
        "use sea_orm::{\n    ConnectionTrait, Database, DatabaseTransaction, DbBackend, Statement, TransactionTrait,\n};\n",
        SEA_ON_MYSQL,
    ),
];

/// Two guards of one lock, and what must become of their fences.
const FENCES: &str = r#"
const NAME: &str = "orders/42";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn fences(file: &str) -> Result<[(Fence, bool); 3], Failure> {
    let locker = lockkeeper::connect_blocking(&format!("sqlite:{file}.locks"))?;
    let take = || -> Result<Fence, lockkeeper::Error> {
        let guard = locker.lock(NAME).blocking()?;
        let fence = guard.fence();
        guard.release_blocking()?;
        Ok(fence)
    };
    let (older, newer) = (take()?, take()?);
    Ok([(newer, true), (older, false), (newer, true)])
}
"#;

/// All of them, from the page as it is.
///
/// # Errors
/// If the page lacks one.
pub(crate) fn programs(root: &Path) -> Result<Vec<Program>, String> {
    let page = fs::read_to_string(root.join(GUIDE)).map_err(|it| format!("{GUIDE}: {it}"))?;
    let block =
        |heading: &str| block(&page, heading).ok_or_else(|| format!("{GUIDE}: no code under `{heading}`"));
    let one = |heading| block(heading).map(|it| format!("const FENCE: &str = r\"{it}\";\n"));
    let two = block(MYSQL)?.split_once(";\n");
    let (raise, seen) = two.ok_or_else(|| format!("{GUIDE}: not two statements under `{MYSQL}`"))?;
    let two = format!("const RAISE: &str = r\"{raise}\";\nconst SEEN: &str = r\"{seen}\";\n");
    let servers = root.join("crates/lockkeeper-servers");
    let servers = format!("lockkeeper-servers = {{ path = \"{}\" }}\n", servers.display());
    let grounds = [
        (KINDS, one(SQLITE)?, "\"sqlite\"", ""),
        (ON_POSTGRES, one(POSTGRES)?, "\"postgres\", \"sqlite\"", &servers),
        (ON_MYSQL, two, "\"mysql\", \"sqlite\"", &servers),
    ];
    let mut programs = Vec::new();
    for (kinds, statements, features, more) in grounds {
        for (name, heading, needs, uses, main) in kinds {
            let function = block(heading)?;
            let code = format!("use lockkeeper::Fence;\n{uses}\n{statements}{FENCES}\n{function}{main}");
            programs.push(Program { name, features, dependencies: format!("{TOKIO}{more}{needs}"), code });
        }
    }
    Ok(programs)
}

/// The first code below a heading.
fn block<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, below) = page.split_once(&format!("\n{heading}\n"))?;
    let below = below.split("\n##").next()?;
    let (_, code) = below.split_once("```")?;
    code.split_once('\n')?.1.split_once("```").map(|it| it.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_below_its_own_heading() {
        let page =
            "\n### A\n\nText.\n\n```sql\nSELECT\n```\n\n### B\n\nNothing.\n\n### C\n\n```rust\nfn c()\n```\n";
        assert_eq!(block(page, "### A"), Some("SELECT\n"));
        assert_eq!(block(page, "### B"), None);
        assert_eq!(block(page, "### C"), Some("fn c()\n"));
        assert_eq!(block(page, "### D"), None);
    }
}
