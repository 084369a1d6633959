//! docs/guides/monitoring.md, docs/guides/two-phase-commit.md, docs/backends/redlock.md

use ::lockkeeper::redis::{Redis, RedisFences};
use ::lockkeeper::redlock::{Redlock, RedlockOptions};
use ::lockkeeper::{Guard, Key, Locker};

type Trouble = Box<dyn std::error::Error>;

#[rustfmt::skip]
async fn meters() -> Result<String, Trouble> {
    use lockkeeper::Meters;

    let meters = Meters::new();
    let locker = lockkeeper::open("redis://db-1").await?.locker.observer(meters.clone()).build();
    // … and what your `/metrics` answers:
    let text = meters.openmetrics();
    Ok(text)
}

#[rustfmt::skip]
async fn fences(locker: Locker, guard: Guard, fences: RedisFences, order: Key) -> Result<(), Trouble> {
    let mut connection = lockkeeper::redis::redis::Client::open("redis://db-1")?.get_multiplexed_async_connection().await?;
    let written = fences.set(&mut connection, &order, "sold", guard.fence()).await;
    locker.observe_fenced("orders", written)?;       // counted if it was refused
    Ok(())
}

#[rustfmt::skip]
async fn two_phase(locker: Locker, orders_url: &str, stock_url: &str) -> Result<(), Trouble> {
    use lockkeeper::twophase::mysql_async::{Conn, prelude::Queryable};
    use lockkeeper::twophase::{tokio_postgres::Client, Participant, TwoPhase};

    let office = TwoPhase::open("sqlite:/var/lib/shop/2pc.db", &locker).await?   // the log, and the locker that guards its seats
        .participant("orders", Participant::postgres(orders_url)?)
        .participant("stock", Participant::mysql(stock_url)?)
        .start().await?;                                                         // finishes what its predecessor left

    let done = office.transaction()
        .note("checkout 42")
        .on("orders", async |db: &Client| { db.execute("INSERT INTO orders …", &[]).await?; Ok(()) })
        .on("stock", async |db: &mut Conn| { db.query_drop("UPDATE stock …").await?; Ok(()) })
        .commit().await?;
    Ok(())
}

#[rustfmt::skip]
async fn redlock() -> Result<(), Trouble> {
    let locker = Locker::new(Redlock::<Redis>::connect("redlock://a,b,c").await?);
    // or nodes that differ:
    let nodes = vec![Redis::connect("redis://a/").await?, Redis::connect("redis://b/").await?, Redis::connect("redis://c/").await?];
    let locker = Locker::new(Redlock::with(RedlockOptions::new(nodes)).await?);
    Ok(())
}
