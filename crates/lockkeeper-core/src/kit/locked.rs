//! Locking a mutex whoever panicked before.

use std::sync::{Mutex, MutexGuard};

/// Lock a mutex, also after a panic of somebody who had it locked.
///
/// Poison would spread one caller's panic to all others. It is for data that is right between any two statements: a
/// lock is held for a few lines, and what is done under it cannot panic half-way.
///
/// ```
/// use std::sync::Mutex;
///
/// use lockkeeper_core::kit::locked;
///
/// let names = Mutex::new(vec!["a"]);
/// locked(&names).push("b");
/// assert_eq!(locked(&names).len(), 2);
/// ```
#[inline]
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_elsewhere_does_not_spread() {
        let mutex = Mutex::new(1);
        std::thread::scope(|it| {
            let panicked = it.spawn(|| {
                let _held = mutex.lock().unwrap();
                panic!("as planned");
            });
            assert!(panicked.join().is_err());
        });
        assert!(mutex.is_poisoned());
        *locked(&mutex) += 1;
        assert_eq!(*locked(&mutex), 2);
    }
}
