//! docs/guides/locked-functions.md, docs/guides/configuration.md

use ::lockkeeper::{Error, locked};

#[derive(Debug, PartialEq)]
struct ShopError(String);

impl From<Error> for ShopError {
    fn from(error: Error) -> Self {
        ShopError(error.to_string())
    }
}

mod one {
    use super::ShopError;

    struct Order {
        product_id: u64,
        account: u64,
    }

    #[rustfmt::skip]
    mod shown {
        use super::{Order, ShopError};

        use lockkeeper::locked;

        #[locked("product:{product_id}", wait = "1s")]
        async fn place_order(product_id: u64, account: u64) -> Result<Order, ShopError> {
            // Nobody else is in here for this product, on any machine.
            Ok(Order { product_id, account })
        }
    }
}

mod shares {
    use super::*;

    struct Report;
    struct Mail;

    impl Mail {
        fn post(&self) -> Result<(), ShopError> {
            Ok(())
        }
    }

    async fn read_prices() -> Result<Report, ShopError> {
        Ok(Report)
    }

    async fn write_prices() -> Result<(), ShopError> {
        Ok(())
    }

    async fn book(from: u64, to: u64) -> Result<(), ShopError> {
        Ok(())
    }

    #[rustfmt::skip]
    mod shown {
        use super::*;

        #[locked("prices", shared)]                          // many look …
        async fn report() -> Result<Report, ShopError> { read_prices().await }

        #[locked("prices")]                                  // … one changes, and nobody looks meanwhile
        async fn update() -> Result<(), ShopError> { write_prices().await }

        #[locked("mail", permits = "1/5")]                   // at most five at a time, over all machines
        fn send(mail: &Mail) -> Result<(), ShopError> { mail.post() }

        #[locked("account:{from}", "account:{to}")]          // both or none, and never a deadlock between two of them
        async fn transfer(from: u64, to: u64) -> Result<(), ShopError> { book(from, to).await }
    }
}

mod refused {
    use std::time::Duration;

    use super::*;

    type Date = &'static str;

    #[derive(Debug, PartialEq)]
    enum Report {
        Built,
        Skipped,
    }

    #[derive(Debug, PartialEq)]
    enum Reply {
        Added,
        Busy(Option<Duration>),
    }

    impl Reply {
        fn busy(error: Error) -> Self {
            match error {
                Error::TimedOut { waited, .. } => Reply::Busy(Some(waited)),
                _ => Reply::Busy(None),
            }
        }
    }

    async fn build_report(day: Date) -> Result<Report, ShopError> {
        Ok(Report::Built)
    }

    #[rustfmt::skip]
    mod shown {
        use super::*;

        #[locked("report:{day}", try, or = Ok(Report::Skipped))]      // somebody else is at it
        async fn nightly_report(day: Date) -> Result<Report, ShopError> { build_report(day).await }

        #[locked("cart:{id}", wait = "200ms", or_else = Reply::busy)]
        async fn add_to_cart(id: u64) -> Reply { Reply::Added }

        #[tokio::test]
        async fn whoever_does_not_obtain_the_lock_answers_as_it_says() {
            let locker = lockkeeper::connect("memory:").await.unwrap();
            let both = locker.lock_all(["report:monday", "cart:7"]).await.unwrap();
            let inside = lockkeeper::test::scope(locker, None, async {
                assert_eq!(nightly_report("monday").await, Ok(Report::Skipped));
                let busy = add_to_cart(7).await;
                assert!(matches!(busy, Reply::Busy(Some(waited)) if Duration::from_millis(200) <= waited), "{busy:?}");
                both.release().await.unwrap();
                assert_eq!(nightly_report("monday").await, Ok(Report::Built));
                assert_eq!(add_to_cart(7).await, Reply::Added);
            });
            inside.await.unwrap();
        }
    }
}

/// docs/guides/configuration.md
mod configured {
    async fn nightly() {}

    #[rustfmt::skip]
    mod shown {
        use super::nightly;

        #[tokio::main]
        async fn main() -> Result<(), lockkeeper::Error> {
            lockkeeper::init().await?;              // reads it, opens the store, once where the program begins
            let guard = lockkeeper::default_locker()?.lock("shop:nightly").await?;
            guard.run_and_release(nightly()).await
        }
    }
}
