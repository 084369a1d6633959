//! The conformance suite over three and five stores in this process.

use lockkeeper_core::Memory;
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_redlock::{Redlock, RedlockOptions};
use lockkeeper_testkit::suite::Harness;

struct Over(Vec<Memory>);

impl Over {
    fn nodes(count: usize) -> Self {
        Over((0..count).map(|_| Memory::default()).collect())
    }
}

impl Harness for Over {
    type Backend = Redlock<Memory>;

    async fn connect(&self) -> Redlock<Memory> {
        Redlock::with(RedlockOptions::new(self.0.clone())).await.expect("stores in this process answer")
    }

    fn inspect<'b>(&self, backend: &'b Redlock<Memory>) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(over_three_stores, Over::nodes(3));
lockkeeper_testkit::suite!(over_five_stores, Over::nodes(5));
