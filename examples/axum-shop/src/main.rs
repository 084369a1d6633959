//! A shop with axum: each sale under a lock on Redis, each write with its fence through sqlx.
//!
//! The environment says the rest: `LISTEN` (an address), `LOCKKEEPER_URL` (the locks), `DATABASE_URL` (the books, PostgreSQL).

mod books;
mod failure;
mod under_lock;

use std::env;
use std::io::Write as _;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Router};
use lockkeeper::{Fence, Locker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use books::Books;
use failure::Failure;
use under_lock::under_lock;

type Trouble = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Shop {
    locker: Locker,
    books: Books,
}

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let locker = lockkeeper::open(&env::var("LOCKKEEPER_URL")?)
        .await?
        .locker
        .wait_at_most(Duration::from_secs(3)) // a handler has a bound
        .build();
    let books = Books::open(&env::var("DATABASE_URL")?).await?;
    // Instances start together, and `CREATE TABLE IF NOT EXISTS` races with itself: one after the other.
    locker.with("shop/schema", async |_| books.create().await).await??;

    let shop = Shop { locker: locker.clone(), books };
    let app = Router::new()
        .route("/buy/{product}", post(buy))
        .route("/restock/{product}", post(restock).layer(from_fn_with_state(locker.clone(), under_lock)))
        .route("/stock/{product}", get(stock))
        .with_state(shop);
    let listener = TcpListener::bind(env::var("LISTEN")?).await?;
    writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?)?;
    let mut stop = signal(SignalKind::terminate())?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            let _ = stop.recv().await;
        })
        .await?;
    locker.shutdown(Duration::from_secs(5)).await?; // after the last request
    Ok(())
}

/// The whole point: wait for a turn, sell, and let the database refuse us if our turn was over.
///
/// What the database answers is the truth, and the buyer hears it: a sale that was committed is one, also if the lock was
/// lost in the meantime, or if nobody confirms that it was given back.
async fn buy(State(shop): State<Shop>, Path(product): Path<i64>) -> Result<String, Failure> {
    let guard = shop.locker.lock(format!("product/{product}")).await?;
    let left = shop.books.sell(product, guard.fence()).await?;
    drop(guard); // given back in the background
    Ok(format!("{left} left\n"))
}

/// The same with a middleware, which has the lock: this knows only the fence.
async fn restock(
    State(shop): State<Shop>,
    Path(product): Path<i64>,
    Extension(fence): Extension<Fence>,
) -> Result<String, Failure> {
    let left = shop.books.restock(product, fence).await?;
    Ok(format!("{left} left\n"))
}

async fn stock(State(shop): State<Shop>, Path(product): Path<i64>) -> Result<String, Failure> {
    let (left, orders) = shop.books.count(product).await?;
    Ok(format!("{left} left, {orders} sold\n"))
}
