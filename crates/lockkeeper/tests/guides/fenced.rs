//! docs/guides/fenced-writes.md: the checkers, by the drivers that the library re-exports, as the page shows them, on servers.
//! What goes through other crates is tried by `cargo xtask together`.

use std::error::Error;

use ::lockkeeper::redis::redis;
use ::lockkeeper::sql::mysql_async::{self, Conn, prelude::Queryable as _};
use ::lockkeeper::sql::postgres::PostgresFences;
use ::lockkeeper::sql::tokio_postgres::{self, Client, NoTls};
use ::lockkeeper::sqlite::rusqlite;
use ::lockkeeper::{FencedError, Guard, Key, Locker};
use lockkeeper_servers::{MariaDb, MariaDbOptions, Postgres, PostgresOptions, Redis, RedisOptions};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const TABLE: &str = "CREATE TABLE stock (id INT PRIMARY KEY, amount INT NOT NULL)";
const STOCK: &str = "INSERT INTO stock VALUES (7, 10)";
const AMOUNT: &str = "SELECT amount FROM stock WHERE id = 7";

#[rustfmt::skip]
async fn on_postgresql(mut client: Client, guard: &Guard) -> Result {
    use lockkeeper::sql::postgres::PostgresFences;

    let fences = PostgresFences::new("public")?;          // the schema of the table `lockkeeper_fence`
    fences.create(&client).await?;                        // once; or run fences.ddl() by hand

    let tx = client.transaction().await?;
    fences.check(&tx, guard.key(), guard.fence()).await?; // first thing, also before you only read
    tx.execute("UPDATE stock SET amount = amount - 1 WHERE id = 7", &[]).await?;
    tx.commit().await?;
    Ok(())
}

#[rustfmt::skip]
async fn reads_on_postgresql(client: &mut Client, locker: &Locker, fences: &PostgresFences) -> Result<usize> {
    let prices = locker.read("prices").await?;
    let tx = client.transaction().await?;
    fences.check_shared(&tx, prices.key(), prices.fence()).await?;
    let rows = tx.query("SELECT id, amount FROM stock", &[]).await?;
    tx.commit().await?;                                   // a transaction that is rolled back has raised nothing
    prices.release().await?;
    Ok(rows.len())
}

#[rustfmt::skip]
async fn on_mysql(mut conn: Conn, guard: &Guard) -> Result {
    use lockkeeper::sql::mysql::MysqlFences;
    use lockkeeper::sql::mysql_async::{TxOpts, prelude::Queryable};

    MysqlFences.create(&mut conn).await?;                 // once; or run MysqlFences::DDL by hand

    let mut tx = conn.start_transaction(TxOpts::default()).await?;
    MysqlFences.check(&mut tx, guard.key(), guard.fence()).await?;
    tx.query_drop("UPDATE stock SET amount = amount - 1 WHERE id = 7").await?;
    tx.commit().await?;
    Ok(())
}

#[rustfmt::skip]
fn on_sqlite(connection: &mut rusqlite::Connection, guard: &Guard) -> Result {
    use lockkeeper::sqlite::SqliteFences;

    let tx = connection.transaction()?;
    SqliteFences.check(&tx, guard.key(), guard.fence())?; // makes its table when it is first called
    tx.execute("UPDATE stock SET amount = amount - 1 WHERE id = 7", [])?;
    tx.commit()?;
    Ok(())
}

#[rustfmt::skip]
async fn on_redis(connection: &mut redis::aio::MultiplexedConnection, guard: &Guard) -> Result<i64> {
    let mut connection = connection.clone();
    use lockkeeper::redis::RedisFences;

    let (fences, stock) = (RedisFences::default(), Key::new("stock:7")?);
    let amount: i64 = fences.get(&mut connection, &stock, guard.fence()).await?;
    fences.set(&mut connection, &stock, amount - 1, guard.fence()).await?;

    // Anything else is a script of your own, which runs only if the fence is good for all of its keys.
    let take = fences.script("return redis.call('DECRBY', KEYS[1], ARGV[1])");
    let left: i64 = take.call(&mut connection, &[&stock], &["1"], guard.fence()).await?;
    Ok(left)
}

/// A guard whose lock is gone, and that of whoever has it now.
async fn old_and_new() -> (Guard, Guard) {
    let locker = lockkeeper::connect("memory:").await.unwrap();
    let old = locker.lock("stock/7").await.unwrap();
    lockkeeper::test::lose(&old);
    (old, locker.lock("stock/7").await.unwrap())
}

/// Whether it was refused for its old fence, and for nothing else.
fn is_stale<E: Error + 'static>(refused: &Result) -> bool {
    let error = refused.as_ref().unwrap_err().downcast_ref::<FencedError<E>>();
    matches!(error, Some(FencedError::Stale { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_the_guide_shows_for_postgresql_refuses_an_old_holder() {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let mut client = connect().await;
    client.batch_execute(&format!("{TABLE}; {STOCK}")).await.unwrap();
    let (old, new) = old_and_new().await;
    on_postgresql(connect().await, &old).await.unwrap();
    on_postgresql(connect().await, &new).await.unwrap();
    let refused = on_postgresql(connect().await, &old).await;
    assert!(is_stale::<tokio_postgres::Error>(&refused), "{refused:?}");
    assert_eq!(client.query_one(AMOUNT, &[]).await.unwrap().get::<_, i32>(0), 8);
    let (locker, fences) =
        (lockkeeper::connect("memory:").await.unwrap(), PostgresFences::new("public").unwrap());
    assert_eq!(reads_on_postgresql(&mut client, &locker, &fences).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_the_guide_shows_for_mariadb_refuses_an_old_holder() {
    let server = MariaDb::start(MariaDbOptions::default()).await.unwrap();
    let connect = async || Conn::from_url(server.url()).await.unwrap();
    let mut shop = connect().await;
    shop.query_drop(TABLE).await.unwrap();
    shop.query_drop(STOCK).await.unwrap();
    let (old, new) = old_and_new().await;
    on_mysql(connect().await, &old).await.unwrap();
    on_mysql(connect().await, &new).await.unwrap();
    let refused = on_mysql(connect().await, &old).await;
    assert!(is_stale::<mysql_async::Error>(&refused), "{refused:?}");
    assert_eq!(shop.query_first::<i32, _>(AMOUNT).await.unwrap(), Some(8));
}

#[tokio::test]
async fn what_the_guide_shows_for_sqlite_refuses_an_old_holder() {
    let mut shop = rusqlite::Connection::open_in_memory().unwrap();
    shop.execute_batch(&format!("{TABLE}; {STOCK}")).unwrap();
    let (old, new) = old_and_new().await;
    on_sqlite(&mut shop, &old).unwrap();
    on_sqlite(&mut shop, &new).unwrap();
    let refused = on_sqlite(&mut shop, &old);
    assert!(is_stale::<rusqlite::Error>(&refused), "{refused:?}");
    assert_eq!(shop.query_row(AMOUNT, [], |it| it.get::<_, i32>(0)).unwrap(), 8);
}

#[tokio::test]
async fn what_the_guide_shows_for_redis_refuses_an_old_holder() {
    let server = Redis::start(RedisOptions::default()).await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    server.command(&["SET", "stock:7", "10"]).await.unwrap();
    let (old, new) = old_and_new().await;
    assert_eq!(on_redis(&mut connection, &old).await.unwrap(), 8);
    assert_eq!(on_redis(&mut connection, &new).await.unwrap(), 6);
    let refused = on_redis(&mut connection, &old).await.map(drop);
    assert!(is_stale::<redis::RedisError>(&refused), "{refused:?}");
    let left: i64 = redis::cmd("GET").arg("stock:7").query_async(&mut connection).await.unwrap();
    assert_eq!(left, 6);
}
