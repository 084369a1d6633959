//! Writes that a checker of fences refused, told to the observers of a locker.

use crate::api::locker::Locker;
use crate::fenced::FencedError;
use crate::observe::Event;

impl Locker {
    /// Tell the observers if a checker of fences refused a write, and hand its answer on. Checkers know connections and no
    /// locker, so whoever calls one says it here. `checker` is a label of metrics: a word in the program, not a name of data.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lockkeeper_core::Error> {
    /// # use lockkeeper_core::{Fence, FencedError, Key, Locker, Memory};
    /// # let locker = Locker::new(Memory::default());
    /// # let (resource, fence, seen) = (Key::new("orders/42")?, Fence::from_u64(7), Fence::from_u64(9));
    /// # let answer: Result<(), FencedError<std::io::Error>> = Err(FencedError::Stale { resource, fence, seen });
    /// // let answer = fences.set(&mut connection, &resource, value, guard.fence()).await;
    /// let answer = locker.observe_fenced("orders", answer);
    /// assert!(answer.is_err(), "the answer itself is as it was");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `answer`.
    pub fn observe_fenced<T, E>(
        &self,
        checker: &'static str,
        answer: Result<T, FencedError<E>>,
    ) -> Result<T, FencedError<E>> {
        if let Err(FencedError::Stale { resource: key, fence, seen }) = &answer {
            self.0.observe(&Event::FenceRefused { key, checker, fence: *fence, seen: *seen });
        }
        answer
    }
}
