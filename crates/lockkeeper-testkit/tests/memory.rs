//! The reference backend under the conformance suite.

use lockkeeper_core::inspect::DynInspect;
use lockkeeper_core::{Clock, Memory};
use lockkeeper_testkit::suite::Harness;

struct InMemory(Memory);

impl Harness for InMemory {
    type Backend = Memory;

    async fn connect(&self) -> Memory {
        self.0.clone()
    }

    fn inspect<'b>(&self, backend: &'b Memory) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(memory, InMemory(Memory::new(Clock::boot())));
