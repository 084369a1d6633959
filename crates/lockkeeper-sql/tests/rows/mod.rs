//! Sixty-four buyers and one stock, and stale fences: told once for all databases.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Fence, Key, Locker, Memory, SharedFence};
use lockkeeper_sql::fenced::FencedError;
use lockkeeper_sql::rowlock::{Attempts, Column, Retry, RowError};
use tokio::task::JoinSet;

const BUYERS: i32 = 64;
const STOCK: i64 = 40;

/// A database with a driver of its own.
pub(crate) trait Shop: Send + Sync + Sized + 'static {
    type Conn: Send + 'static;
    type Error: Debug;

    /// The server that all tests of a file share.
    async fn shared() -> Arc<Self>;
    fn conn(&self) -> impl Future<Output = Self::Conn> + Send;
    /// Run a statement and tell how many rows it changed.
    fn run(conn: &mut Self::Conn, sql: String) -> impl Future<Output = u64> + Send;
    /// The number that a query answers.
    fn number(conn: &mut Self::Conn, sql: String) -> impl Future<Output = i64> + Send;
    /// `rowlock::take` one of the row 7.
    fn take(conn: &mut Self::Conn, column: &Column) -> impl Future<Output = bool> + Send;
    /// `rowlock::section`: take one of the row 7 of `stock_locked`, if there is one.
    fn buy(conn: &mut Self::Conn) -> impl Future<Output = bool> + Send;
    /// `rowlock::section`: this statement, waiting so long.
    async fn section(conn: &mut Self::Conn, wait: Duration, sql: &str) -> Result<(), RowError<Self::Error>>;
    /// Make the table of fences, which may be there.
    async fn create_fences(conn: &mut Self::Conn);
    /// Check a fence in a transaction that is committed if it is good.
    async fn check(conn: &mut Self::Conn, key: &Key, fence: Fence) -> Result<(), FencedError<Self::Error>>;
    /// The same for one who shares.
    async fn check_shared(
        conn: &mut Self::Conn,
        key: &Key,
        fence: SharedFence,
    ) -> Result<(), FencedError<Self::Error>>;
    /// The name of the database in the guide's headings.
    const HEADING: &'static str;
    /// Run what the guide says a writer or a reader runs, and commit. Whether it lets in.
    async fn run_printed(conn: &mut Self::Conn, sql: &str, is_writer: bool, name: &str, fence: i64) -> bool;
}

/// The cases that are told in the same words on every server.
macro_rules! cases {
    ($shop:ty) => {
        #[tokio::test]
        async fn sixty_four_buyers_take_the_stock_by_one_statement_each() {
            rows::taken::<$shop>().await;
        }

        #[tokio::test]
        async fn sixty_four_buyers_compare_and_set_a_version() {
            let retries = rows::versioned::<$shop>().await;
            println!("it took {retries} retries");
        }

        #[tokio::test]
        async fn sixty_four_buyers_wait_for_the_row() {
            rows::locked::<$shop>().await;
        }

        #[tokio::test]
        async fn a_row_that_others_keep_is_given_up_in_time_and_nothing_is_changed() {
            rows::kept::<$shop>().await;
        }

        #[tokio::test]
        async fn a_stale_fence_is_refused_and_a_read_raises_it() {
            rows::fenced::<$shop>().await;
        }

        #[tokio::test]
        async fn readers_refuse_older_writers_and_not_each_other() {
            rows::fenced_reads::<$shop>().await;
        }

        #[tokio::test]
        async fn the_statements_of_the_guide_do_as_it_says() {
            rows::printed_statements::<$shop>().await;
        }
    };
}
pub(crate) use cases;

/// A stock of its own for each test, so that tests do not meet.
async fn stock<S: Shop>(shop: &S, table: &str) -> S::Conn {
    let mut conn = shop.conn().await;
    let make = format!(
        "CREATE TABLE {table} (id bigint PRIMARY KEY, amount bigint NOT NULL CHECK (0 <= amount), \
         version bigint NOT NULL)"
    );
    S::run(&mut conn, make).await;
    S::run(&mut conn, format!("INSERT INTO {table} VALUES (7, {STOCK}, 0)")).await;
    conn
}

async fn amount<S: Shop>(conn: &mut S::Conn, table: &str) -> i64 {
    S::number(conn, format!("SELECT amount FROM {table} WHERE id = 7")).await
}

/// All buyers at once; how many bought, and how many retries it took them.
async fn sell<S: Shop, F>(shop: &S, buy: impl Fn(S::Conn) -> F) -> (i64, u32)
where
    F: Future<Output = (bool, u32)> + Send + 'static,
{
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(buy(shop.conn().await));
    }
    let (mut sold, mut retries) = (0, 0);
    while let Some(bought) = buyers.join_next().await {
        let (bought, more) = bought.unwrap();
        sold += i64::from(bought);
        retries += more;
    }
    (sold, retries)
}

/// The conditional decrement never sells what is not there.
pub(crate) async fn taken<S: Shop>() {
    let shop = S::shared().await;
    let mut owner = stock(&*shop, "stock_taken").await;
    let column = Column::new::<()>("stock_taken", "id", "amount").unwrap();
    let (sold, _) = sell(&*shop, |mut conn| {
        let column = column.clone();
        async move { (S::take(&mut conn, &column).await, 0) }
    })
    .await;
    assert_eq!((sold, amount::<S>(&mut owner, "stock_taken").await), (STOCK, 0));
}

/// A version that is compared and set never sells what is not there, and every sale has its version. Tells how
/// many retries that took.
pub(crate) async fn versioned<S: Shop>() -> u32 {
    let shop = S::shared().await;
    let mut owner = stock(&*shop, "stock_versioned").await;
    let (sold, retries) = sell(&*shop, |mut conn| async move {
        let mut attempts = Attempts::new(Retry::times(1000));
        loop {
            // Both at once, as one number.
            let read = "SELECT version * 1000 + amount FROM stock_versioned WHERE id = 7";
            let seen = S::number(&mut conn, read.to_owned()).await;
            let (version, amount) = (seen / 1000, seen % 1000);
            if amount == 0 {
                return (false, attempts.retries());
            }
            let write = format!(
                "UPDATE stock_versioned SET amount = {}, version = version + 1 WHERE id = 7 AND version = {version}",
                amount - 1
            );
            if S::run(&mut conn, write).await == 1 {
                return (true, attempts.retries());
            }
            attempts.lost().await.unwrap();
        }
    })
    .await;
    assert_eq!((sold, amount::<S>(&mut owner, "stock_versioned").await), (STOCK, 0));
    let version = S::number(&mut owner, "SELECT version FROM stock_versioned".to_owned()).await;
    assert_eq!(version, STOCK, "every sale has its version");
    retries
}

/// A locked row never sells what is not there.
pub(crate) async fn locked<S: Shop>() {
    let shop = S::shared().await;
    let mut owner = stock(&*shop, "stock_locked").await;
    let (sold, _) = sell(&*shop, |mut conn| async move { (S::buy(&mut conn).await, 0) }).await;
    assert_eq!((sold, amount::<S>(&mut owner, "stock_locked").await), (STOCK, 0));
}

/// Who waits too long for a row is told, and has changed nothing.
pub(crate) async fn kept<S: Shop>() {
    let shop = S::shared().await;
    let mut owner = stock(&*shop, "stock_kept").await;
    let mut late = shop.conn().await;
    S::run(&mut owner, "BEGIN".to_owned()).await;
    S::run(&mut owner, "UPDATE stock_kept SET amount = 1".to_owned()).await;
    let kept = S::section(&mut late, Duration::from_millis(50), "UPDATE stock_kept SET amount = 2").await;
    assert!(matches!(kept, Err(RowError::TimedOut { .. })), "{kept:?}");
    S::run(&mut owner, "ROLLBACK".to_owned()).await;
    assert_eq!(amount::<S>(&mut late, "stock_kept").await, STOCK);
}

/// A fence is refused as soon as a newer one was there, even if that one has only read.
pub(crate) async fn fenced<S: Shop>() {
    let shop = S::shared().await;
    let (mut old, mut new) = (shop.conn().await, shop.conn().await);
    S::create_fences(&mut old).await;
    S::create_fences(&mut new).await;
    let (key, at) = (Key::new("orders/42").unwrap(), Fence::from_u64);
    for _ in 0..2 {
        S::check(&mut old, &key, at(10)).await.unwrap();
    }
    // The new holder has only read, and the old one is already refused.
    S::check(&mut new, &key, at(11)).await.unwrap();
    let refused = S::check(&mut old, &key, at(10)).await;
    assert!(matches!(refused, Err(FencedError::Stale { seen, .. }) if seen == at(11)), "{refused:?}");
    let refused = S::check(&mut old, &key, at(u64::MAX)).await;
    assert!(matches!(refused, Err(FencedError::TooLarge { .. })), "{refused:?}");
}

/// A writer's fence, those of two who read beside each other after it, and that of a writer after them.
pub(crate) async fn fences_of(name: &str) -> (Fence, [SharedFence; 2], Fence) {
    let store = Memory::default();
    let (here, there) = (Locker::new(store.clone()), Locker::new(store));
    let before = here.lock(name).await.unwrap().fence();
    let readers = (here.read(name).await.unwrap(), there.read(name).await.unwrap());
    let shared = [readers.0.fence(), readers.1.fence()];
    drop(readers);
    (before, shared, here.lock(name).await.unwrap().fence())
}

/// Of living readers none is refused; a writer before them is, and they are after the next one.
pub(crate) async fn fenced_reads<S: Shop>() {
    let (shop, key) = (S::shared().await, Key::new("prices").unwrap());
    let mut conn = shop.conn().await;
    S::create_fences(&mut conn).await;
    let (before, [one, two], after) = fences_of("prices").await;
    S::check(&mut conn, &key, before).await.unwrap();
    for reader in [one, two, one, two] {
        S::check_shared(&mut conn, &key, reader).await.unwrap();
    }
    let newest = one.get().max(two.get());
    let refused = S::check(&mut conn, &key, before).await;
    assert!(matches!(refused, Err(FencedError::Stale { seen, .. }) if seen.get() == newest), "{refused:?}");
    for _ in 0..2 {
        S::check(&mut conn, &key, after).await.unwrap();
    }
    for reader in [one, two] {
        let refused = S::check_shared(&mut conn, &key, reader).await;
        assert!(matches!(refused, Err(FencedError::Stale { seen, .. }) if seen == after), "{refused:?}");
    }
    // A reader may be the first of all.
    let fresh = Key::new("prices/fresh").unwrap();
    S::check_shared(&mut conn, &fresh, one).await.unwrap();
    assert!(S::check(&mut conn, &fresh, before).await.is_err());
}

/// What stands below this heading of the guide.
fn printed(heading: &str) -> &'static str {
    let guide = include_str!("../../../../docs/guides/fenced-writes.md");
    let section = guide.split_once(heading).unwrap().1;
    section.split_once("```sql\n").unwrap().1.split_once("\n```").unwrap().0
}

/// What the guide prints does what the checkers do, in the same table.
pub(crate) async fn printed_statements<S: Shop>() {
    let (shop, name) = (S::shared().await, "printed/süß");
    let mut conn = shop.conn().await;
    S::create_fences(&mut conn).await;
    let (before, [one, two], after) = fences_of(name).await;
    let [writer, reader] = ["writer", "reader"].map(|it| printed(&format!("### {}, a {it}\n", S::HEADING)));
    let mut writes =
        async |fence: Fence| S::run_printed(&mut conn, writer, true, name, fence.get().cast_signed()).await;
    assert!(writes(before).await && writes(before).await);
    let mut other = shop.conn().await;
    for fence in [one, two, one] {
        assert!(S::run_printed(&mut other, reader, false, name, fence.get().cast_signed()).await);
    }
    assert!(!writes(before).await, "it was over when they read");
    let key = Key::new(name).unwrap();
    assert!(S::check(&mut other, &key, before).await.is_err(), "the checker sees the same");
    S::check_shared(&mut other, &key, two).await.unwrap();
    S::check(&mut other, &key, after).await.unwrap();
    assert!(writes(after).await && !writes(before).await);
    assert!(!S::run_printed(&mut other, reader, false, name, one.get().cast_signed()).await);
}
