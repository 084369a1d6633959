//! The contract of the SPI, case by case, on a real file.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use common::Fixture;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_sqlite::Sqlite;
use lockkeeper_testkit::suite::Harness;

impl Harness for Fixture {
    type Backend = Sqlite;

    async fn connect(&self) -> Sqlite {
        self.open().await
    }

    fn inspect<'b>(&self, backend: &'b Sqlite) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(sqlite, Fixture::new());
