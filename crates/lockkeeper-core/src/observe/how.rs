//! How locks come to their callers and why they go, as events tell it.

/// How a guard came to its caller.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::observe::{Event, GrantedBy, Observer};
/// use lockkeeper_core::{Locker, Memory};
///
/// #[derive(Debug)]
/// struct Told;
///
/// impl Observer for Told {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Granted { by, .. } = event {
///             assert_eq!(*by, GrantedBy::Store);
///         }
///     }
/// }
///
/// Locker::builder(Memory::default()).observer(Told).build().lock("orders/42").await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrantedBy {
    /// The store granted it.
    Store,
    /// The last holder in this process left it to us.
    HandOn,
    /// The owner held it already.
    Reentry,
    /// Other readers of this process held it, and it joined them.
    Sharing,
    /// It had stayed with this process, idle.
    Warm,
}

/// Why an idle lock did not stay any longer.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::observe::{CooledBy, Event, Observer};
/// use lockkeeper_core::{Locker, Memory};
///
/// #[derive(Debug, Default)]
/// struct Cooled(Arc<Mutex<Vec<CooledBy>>>);
///
/// impl Observer for Cooled {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Cooled { by, .. } = event {
///             self.0.lock().expect("nobody panics").push(*by);
///         }
///     }
/// }
///
/// let cooled = Arc::<Mutex<Vec<CooledBy>>>::default();
/// let locker = Locker::builder(Memory::default()).warm(true).observer(Cooled(cooled.clone())).build();
/// locker.lock("orders/42").await?.release().await?;
/// locker.cool();
/// # let _ = cooled;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CooledBy {
    /// Somebody outside wants it, or the store could not tell any more whether somebody does.
    Recall,
    /// It had been idle for long enough.
    Time,
    /// Too many others are idle.
    TooMany,
    /// A caller of this process wants it in another way, or it could not be used any more.
    Unfit,
    /// By hand: [`Locker::cool`](crate::Locker::cool).
    Hand,
    /// Its locker was shut down or dropped, or the process ends.
    Closed,
}

/// What a store is asked. See [`Event::Asked`](crate::observe::Event::Asked).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// To take the lock, or to tell whether it is our turn.
    Turn,
    /// To let us keep it.
    Renew,
    /// To let others in beside us: a writer goes on as a reader.
    Lower,
    /// To take it back.
    Leave,
}

impl Verb {
    /// In one word, as metrics name it.
    ///
    /// ```
    /// assert_eq!(lockkeeper_core::observe::Verb::Renew.word(), "renew");
    /// ```
    pub const fn word(self) -> &'static str {
        match self {
            Verb::Turn => "turn",
            Verb::Renew => "renew",
            Verb::Lower => "lower",
            Verb::Leave => "leave",
        }
    }
}
