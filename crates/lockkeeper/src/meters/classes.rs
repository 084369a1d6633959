//! Classes of keys: a part of a key or a word for it, and a hard cap on how many are told apart.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use lockkeeper_core::Key;

/// How many classes of keys are told apart, for each locker. All others are `other`.
pub const CLASSES_MAX: usize = 100;

/// What a class beyond the cap is called.
pub(super) const OTHER: &str = "other";

type Classify = Arc<dyn for<'a> Fn(&'a Key) -> &'a str + Send + Sync>;

/// How keys are told apart by class, for adapters that make a label of it. [`Meters`](super::Meters) has the same rules.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Key;
/// use lockkeeper::meters::{Classes, ClassesOfLocker};
///
/// let classes: ClassesOfLocker = Classes::by_prefix('/').of_locker();
/// assert_eq!(&*classes.label(&Key::new("orders/42")?), "orders");
/// assert_eq!(&*classes.label(&Key::new("nightly")?), "other");
///
/// let by_word = Classes::by_class(|key: &Key| if key.as_str().starts_with("mail") { "mail" } else { "" });
/// assert_eq!(&*by_word.of_locker().label(&Key::new("mail:7")?), "mail");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Classes(Classify);

impl fmt::Debug for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classes").finish_non_exhaustive()
    }
}

impl Classes {
    /// A part of the key, or a word for it. An empty one is `other`, and so is each class after the first [`CLASSES_MAX`].
    pub fn by_class(classify: impl for<'a> Fn(&'a Key) -> &'a str + Send + Sync + 'static) -> Self {
        Classes(Arc::new(classify))
    }

    /// What stands before the first `end`: `orders/42` is of the class `orders`. Keys without it are `other`.
    pub fn by_prefix(end: char) -> Self {
        Classes::by_class(move |key| key.as_str().split_once(end).map_or("", |it| it.0))
    }

    /// The classes of one locker, which has a cap of its own.
    pub fn of_locker(&self) -> ClassesOfLocker {
        ClassesOfLocker { known: Known::new(self.clone()), other: OTHER.into() }
    }
}

/// The classes of one locker: see [`Classes`].
#[derive(Debug)]
pub struct ClassesOfLocker {
    known: Known<Arc<str>>,
    other: Arc<str>,
}

impl ClassesOfLocker {
    /// The class of a key, within the cap.
    pub fn label(&self, key: &Key) -> Arc<str> {
        self.known.of(key, |it| Arc::from(it)).unwrap_or_else(|| self.other.clone())
    }
}

/// What is kept for each class that is told apart.
pub(super) struct Known<T> {
    classes: Classes,
    known: RwLock<HashMap<Box<str>, T>>,
}

impl<T> fmt::Debug for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl<T: Clone> Known<T> {
    pub(super) fn new(classes: Classes) -> Self {
        Known { classes, known: RwLock::default() }
    }

    /// What is kept for the key's class; `None` for the one beyond the cap.
    pub(super) fn of(&self, key: &Key, make: impl FnOnce(&str) -> T) -> Option<T> {
        let class = (self.classes.0)(key);
        if class.is_empty() || class == OTHER {
            return None;
        }
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            // Known ones stay. So when there is no room any more, nobody has to wait for the others to find that out.
            if known.contains_key(class) || CLASSES_MAX <= known.len() {
                return known.get(class).cloned();
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(class) && CLASSES_MAX <= known.len() {
            return None;
        }
        Some(known.entry(class.into()).or_insert_with(|| make(class)).clone())
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(&str, &T)) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().for_each(|(class, it)| visit(class, it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of classes beyond the cap are as many as any, and threads that tell them must not stand in line for it.
    #[test]
    fn a_class_beyond_the_cap_changes_nothing() {
        let classes = Classes::by_prefix('/').of_locker();
        let label = |number: usize| classes.label(&Key::new(&format!("c{number}/x")).unwrap());
        (0..CLASSES_MAX).for_each(|it| assert_eq!(*label(it), *format!("c{it}")));
        // Whoever wanted to write would wait for this one for ever.
        let reading = classes.known.known.read().unwrap();
        let (told, telling) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| told.send((label(CLASSES_MAX), label(7))).unwrap());
            let seen = telling.recv_timeout(std::time::Duration::from_secs(60));
            drop(reading);
            let (beyond, known) = seen.expect("it waits for whoever reads");
            assert_eq!((&*beyond, &*known), (OTHER, "c7"));
        });
    }
}
