//! A million distinct names held at once and then given back, with every allocation counted.
//!
//! A program of its own, because counting slows the other benchmarks down. It writes three numbers: the
//! bytes allocated before, while all are held, and after.

use std::alloc::System;
use std::io::Write;

use lockkeeper_core::{Locker, Memory};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NAMES: usize = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Memory::default();
    // A clone makes the store a shared one, so that both maps are put to the test.
    let locker = Locker::new(store.clone());
    runtime.block_on(async { locker.lock("warm").await?.release().await })?;
    let before = allocated();
    let mut guards = Vec::with_capacity(NAMES);
    runtime.block_on(async {
        for n in 0..NAMES {
            guards.push(locker.lock(format!("customers/{n}/basket")).await?);
        }
        Ok::<_, lockkeeper_core::Error>(())
    })?;
    let held = allocated();
    drop(guards);
    if 0 < locker.lines() + store.len() {
        return Err(format!("{} lines and {} rows are left", locker.lines(), store.len()).into());
    }
    writeln!(std::io::stdout(), "{before} {held} {}", allocated())?;
    Ok(())
}

fn allocated() -> usize {
    let stats = COUNTED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}
