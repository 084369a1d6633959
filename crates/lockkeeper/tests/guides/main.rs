//! The code of the README and of the guides, as it stands there: all of it compiles, and what can run does. `cargo xtask tidy`
//! compares.

#![cfg(all(
    feature = "cache",
    feature = "config",
    feature = "macros",
    feature = "mysql",
    feature = "postgres",
    feature = "redlock",
    feature = "sqlite",
    feature = "test-util",
    feature = "tracing",
    feature = "twophase"
))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, unused_must_use, unused_variables, reason = "a guide shows what a reader goes on with")]
#![allow(clippy::pedantic, clippy::print_stdout, reason = "it is written to be read")]

mod fenced;
mod functions;
mod operating;
mod readme;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::barrier::{Entry, Verdict};
use lockkeeper::observe::{Event, Observer, TracingObserver};
use lockkeeper::{Error, Fence, Locker, Owner, locked, open};

type Result<T, E = Error> = std::result::Result<T, E>;

async fn memory() -> Locker {
    lockkeeper::connect("memory:").await.unwrap()
}

/// docs/guides/library.md
mod library {
    use super::*;

    #[rustfmt::skip]
    async fn one_locker() -> Result<()> {
        let locker = lockkeeper::connect("redis://db-1").await?;                  // default settings
        let locker = lockkeeper::open("redis://db-1").await?
            .locker                                                               // a builder
            .ttl(Duration::from_secs(30))
            .wait_at_most(Duration::from_secs(3))
            .build();
        Ok(())
    }

    #[rustfmt::skip]
    async fn two_applications() -> Result<()> {
        let shop = lockkeeper::open("redis://db-1?prefix=shop").await?.locker.name("shop").build();
        let billing = lockkeeper::open("redis://db-1?prefix=billing").await?.locker.name("billing").build();
        Ok(())
    }

    #[rustfmt::skip]
    async fn request(locker: Locker, wait: Duration) -> Result<()> {
        async fn work() {}
        let guard = locker.lock("orders/42").wait_at_most(wait).note("import of Monday").await?;
        guard.fence();                    // send it along with every write
        guard.check()?;                   // an error if the lock is lost; no trip
        guard.run(work()).await?;         // stops the work when the lock is lost
        guard.lost().await;               // resolves when it is lost, or released
        guard.release().await?;           // confirmed by the store before it returns
        Ok(())
    }

    #[rustfmt::skip]
    async fn observed(url: &str) -> Result<Locker> {
        #[derive(Debug)]
        struct Losses(AtomicU64);

        impl Observer for Losses {
            fn observe(&self, event: &Event<'_>) {
                if let Event::Lost { .. } = event {
                    self.0.fetch_add(1, Ordering::Relaxed);
                }
            }
        }

        let locker = open(url).await?.locker.observer(Losses(AtomicU64::new(0))).observer(TracingObserver).build();
        Ok(locker)
    }

    #[rustfmt::skip]
    #[tokio::test]
    async fn owners_and_the_end() -> Result<()> {
        let locker = observed("memory:").await?;
        Owner::new("import").scope(async { /* every request in here is of one owner */ }).await;
        locker.shutdown(Duration::from_secs(5)).await?;
        assert!(matches!(locker.lock("k").await, Err(Error::Closed)));
        Ok(())
    }
}

/// docs/guides/testing.md
mod testing {
    use super::*;

    async fn step_one() {}
    async fn step_two() {
        std::future::pending().await
    }

    #[locked("product:{id}", wait = "1s")]
    async fn buy(id: u64) -> Result<(), Error> {
        // …
        Ok(())
    }

    #[tokio::test]
    async fn a_product_that_somebody_else_buys_is_waited_for_a_second() -> Result<(), Error> {
        let locker = lockkeeper::connect("memory:").await?;
        let _held = locker.lock("shop:product:7").await?;
        let bought = lockkeeper::test::scope(locker, Some("shop"), buy(7)).await?;
        assert!(matches!(bought, Err(Error::TimedOut { .. })));
        Ok(())
    }

    #[rustfmt::skip]
    #[tokio::test]
    async fn a_lock_is_lost_now() -> Result<()> {
        let locker = memory().await;
        let guard = locker.lock("orders/42").await?;
        let work = guard.run(async {
            step_one().await;
            lockkeeper::test::lose(&guard);
            step_two().await // stopped where it waits
        });
        assert!(matches!(work.await, Err(Error::Lost { .. })));
        Ok(())
    }

    #[tokio::test]
    async fn time_stands_still() -> Result<()> {
        let (locker, clock) = lockkeeper::test::paused();
        let guard = locker.lock("import").max_hold(Duration::from_secs(3600)).await?;
        clock.advance_by(Duration::from_secs(3600));
        assert!(!guard.is_valid());
        Ok(())
    }
}

/// docs/guides/shared-locks.md, docs/guides/several-locks.md
mod sharing {
    use super::*;

    #[rustfmt::skip]
    #[tokio::test]
    async fn readers_writers_and_permits() -> Result<()> {
        let locker = memory().await;
        let price = locker.read("prices").await?;         // beside other readers
        price.release().await?;

        let change = locker.write("prices").await?;       // alone
        change.release().await?;

        let two = locker.permits("mail", 2, 5).await?;    // two of five
        two.release().await?;
        Ok(())
    }

    #[rustfmt::skip]
    #[tokio::test]
    async fn from_writing_to_reading() -> Result<()> {
        let locker = memory().await;
        let writer = locker.write("prices").await?;
        // … write …
        let reader = writer.downgrade().await?;           // nobody wrote in between
        reader.release().await
    }

    #[rustfmt::skip]
    #[tokio::test]
    async fn several() -> Result<()> {
        let locker = memory().await;
        let both = locker.lock_all(["accounts/7", "accounts/3"]).wait_at_most(Duration::from_secs(3)).await?;
        // … both are held …
        both.release().await?;
        Ok(())
    }
}

/// docs/guides/choose-a-primitive.md
mod primitives {
    use super::*;

    #[rustfmt::skip]
    #[tokio::test]
    async fn latch() -> Result<()> {
        let locker = memory().await;
        let imported = locker.latch("import", 2).round("2026-11-15");
        imported.arrive("customers").await?;
        // … in another process …
        imported.arrive("orders").await?;
        // … in a third …
        imported.wait().await?;
        Ok(())
    }

    #[rustfmt::skip]
    async fn barrier(locker: Locker) -> Result<()> {
        let barrier = locker.barrier("step", 4);
        match barrier.wait("worker-2").await?.verdict {
            Verdict::Open => { /* all four have arrived */ }
            _ => { /* broken: one of us did not wait for the others */ }
        }
        if let Entry::Inside(inside) = barrier.enter("worker-2").await? {
            // … all four work …
            inside.leave().await?;
        }
        Ok(())
    }
}

/// docs/guides/leader-election.md
mod election {
    use super::*;

    #[rustfmt::skip]
    async fn lead(locker: Locker) -> Result<()> {
        let campaign = locker.campaign("scheduler", "10.0.0.7:8080"); // the role, and a value that everybody can read
        campaign
            .run(async |leadership| {
                // … lead: leadership.term() goes along with every write …
            })
            .await?;
        Ok(())
    }

    #[rustfmt::skip]
    async fn look(locker: Locker) -> Result<()> {
        if let Some(leader) = locker.leader("scheduler").await? {
            println!("{} leads in term {}, for {:?} at its last sign of life", leader.value, leader.term, leader.age);
        }

        let mut leaders = locker.leaders("scheduler")?;
        loop {
            match leaders.next().await? { // at once the first time, then with every change
                Some(leader) => println!("{} leads", leader.value),
                None => println!("nobody leads"),
            }
        }
    }
}

/// docs/guides/warm-locks.md
mod warm {
    use super::*;
    use lockkeeper::spi::Memory;

    #[rustfmt::skip]
    #[tokio::test]
    async fn a_lock_stays() -> Result<()> {
        let backend = Memory::default();
        let locker = Locker::builder(backend).warm(true).build();

        locker.lock("orders/42").await?.release().await?;   // asks the store
        locker.lock("orders/42").await?.release().await?;   // asks nobody; the fence is larger
        Ok(())
    }
}

/// docs/guides/cache-rebuild.md
mod cache {
    use super::*;

    type Product = String;

    async fn load_from_database(id: u64) -> Result<Option<Product>> {
        Ok(None)
    }

    #[rustfmt::skip]
    async fn product(locker: Locker) -> Result<(), Box<dyn std::error::Error>> {
        use lockkeeper::cache::{Rebuild, RedisCache};

        let products = Rebuild::new(RedisCache::new("redis://db-1/0")?, locker)
            .ttl(Duration::from_secs(60))
            .absent_ttl(Duration::from_secs(5))
            .serve_stale(Duration::from_secs(30));

        let product: Option<Product> = products.get_or_load("product/42", || load_from_database(42)).await?;
        Ok(())
    }
}

/// docs/guides/splitting-hot-locks.md
mod buckets {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Sale {
        Sold,
        SoldOut,
        TryAgain,
    }
    use Sale::{Sold, SoldOut, TryAgain};

    /// Only the last bucket has a piece left.
    async fn sell_one(bucket: usize, fence: Fence) -> Result<bool> {
        Ok(bucket == 9)
    }

    #[rustfmt::skip]
    async fn sale(locker: Locker) -> Result<Sale> {
        use lockkeeper::buckets::{Buckets, Start};

        let stock = Buckets::new(&locker, "stock/42", 10)?;        // locks stock/42#0 … stock/42#9
        let mut sweep = stock.sweep(Start::Random);
        while let Some(bucket) = sweep.next_free().await? {
            if sell_one(bucket.index(), bucket.guard().fence()).await? {
                return Ok(Sold);
            }
            bucket.release().await?;                                // this one is empty; on to the next
        }
        if sweep.taken() == 0 { Ok(SoldOut) } else { Ok(TryAgain) }
    }

    #[tokio::test]
    async fn the_last_piece_is_found() {
        assert_eq!(sale(memory().await).await.unwrap(), Sold);
    }
}
