//! The core's queue in small worlds: `lockkeeper-interleaving WORLD`, one of those that `worlds.rs` has.
//!
//! The core is built from its own files, unchanged, on a standard library whose locks and atomics may be interrupted
//! before each operation. What ships knows nothing of this.

#![allow(warnings, reason = "the core is linted where it lives")]

extern crate lockkeeper_interleaving as std;

mod worlds;

include!(concat!(env!("OUT_DIR"), "/core/root.rs"));

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match worlds::WORLDS.iter().find(|it| it.0 == name) {
        Some((_, world)) => worlds::search(*world),
        None => panic!("there is no world `{name}`"),
    }
}
