//! The standard library, but for locks and atomics: each of their operations is a point at which another thread may go on.
//!
//! The program of this crate calls it `std`, so that the core's own files are built on it as they are.

pub use ::std::*;

/// As in the standard library.
pub mod sync {
    pub use ::std::sync::*;
    pub use shuttle::sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
    };

    /// As in the standard library.
    pub mod atomic {
        pub use ::std::sync::atomic::*;
        pub use shuttle::sync::atomic::{
            AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        };
    }
}
