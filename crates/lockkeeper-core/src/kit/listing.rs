//! What an operator sees: rows of a store gathered into locks, and many names in a short text.

use std::collections::BTreeMap;

use crate::key::Key;
use crate::spi::inspect::{LockInfo, Occupant};

/// One row of a listing: somebody who holds or waits.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_core::Label;
/// use lockkeeper_core::inspect::Occupant;
/// use lockkeeper_core::kit::{Listed, gather};
///
/// let somebody = || Occupant::new(Label::of_this_process(), Duration::from_secs(7));
/// let rows = [
///     Listed::new("orders/42", true, somebody()),
///     Listed::new("orders/42", false, somebody()),
///     Listed::new("", true, somebody()), // no name of ours
/// ];
/// let locks = gather(rows);
/// assert_eq!(locks.len(), 2);
/// assert_eq!(locks[0].foreign.len(), 1);
/// assert_eq!((locks[1].holders.len(), locks[1].waiters.len()), (1, 1));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// The name of the lock, as the store has it.
    pub name: String,
    /// Whether it holds the lock; otherwise it waits.
    pub held: bool,
    /// Who it is.
    pub occupant: Occupant,
}

impl Listed {
    /// Somebody who holds or waits for the lock of this name.
    pub fn new(name: impl Into<String>, held: bool, occupant: Occupant) -> Self {
        Listed { name: name.into(), held, occupant }
    }
}

/// The locks of all rows, by name. The rows of one lock come in the order of its line. A name that is no key was not
/// written by us: the lock is listed with it as far as it can be told, and says so in [`LockInfo::foreign`].
pub fn gather(rows: impl IntoIterator<Item = Listed>) -> Vec<LockInfo> {
    let mut locks = BTreeMap::<Key, LockInfo>::new();
    for row in rows {
        let (key, foreign) = match Key::new(&row.name) {
            Ok(key) => (key, None),
            Err(error) => {
                // Printable, and short enough for a key.
                let Ok(key) = Key::new(&shown(&row.name)) else { continue };
                (key, Some(format!("its name in the store is not ours: {error}")))
            }
        };
        let lock = locks.entry(key).or_insert_with_key(|it| LockInfo::new(it.clone(), vec![], vec![]));
        if let Some(it) = foreign.filter(|it| !lock.foreign.contains(it)) {
            lock.foreign.push(it);
        }
        join(lock, row);
    }
    locks.into_values().collect()
}

/// The one lock to which all of these rows belong, whatever name they say; `None` if there are none.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_core::inspect::Occupant;
/// use lockkeeper_core::kit::{Listed, gather_of};
/// use lockkeeper_core::{Key, Label};
///
/// let somebody = Occupant::new(Label::of_this_process(), Duration::from_secs(7));
/// let lock = gather_of(&Key::new("orders/42")?, [Listed::new("", true, somebody)]);
/// assert!(lock.is_some_and(|it| it.holders.len() == 1 && it.foreign.len() == 1));
/// assert_eq!(gather_of(&Key::new("orders/42")?, []), None);
/// # Ok(())
/// # }
/// ```
pub fn gather_of(key: &Key, rows: impl IntoIterator<Item = Listed>) -> Option<LockInfo> {
    let mut lock = LockInfo::new(key.clone(), vec![], vec![]);
    for row in rows {
        if row.name != key.as_str() && lock.foreign.is_empty() {
            lock.foreign.push(format!("its name in the store is not ours: {}", shown(&row.name)));
        }
        join(&mut lock, row);
    }
    (!lock.is_free()).then_some(lock)
}

fn join(lock: &mut LockInfo, row: Listed) {
    let side = if row.held { &mut lock.holders } else { &mut lock.waiters };
    side.push(row.occupant);
}

/// Of a name that is no key, as much as can be shown.
const SHOWN_MAX: usize = 100;

fn shown(name: &str) -> String {
    if name.is_empty() { "(no name)".to_owned() } else { name.escape_default().take(SHOWN_MAX).collect() }
}

/// How many of the same kind are named; the rest is counted.
const NAMED_MAX: usize = 5;

/// The first of these names, and how many more there are: a text for findings that stays short.
///
/// ```
/// use lockkeeper_core::kit::some_of;
///
/// assert_eq!(some_of(&["a", "b"]), "a, b");
/// assert_eq!(some_of(&["a"; 7]), "a, a, a, a, a and 2 more");
/// ```
pub fn some_of(names: &[impl AsRef<str>]) -> String {
    let some = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::spi::claim::Label;

    #[test]
    fn rows_become_locks_by_name_and_keep_the_order_of_the_line() {
        let row = |name: &str, held, pid| {
            let label = Label::new("host".to_owned(), pid, None, None);
            Listed::new(name, held, Occupant::new(label, Duration::ZERO))
        };
        let rows =
            [row("b", true, 1), row("b", false, 2), row("a", false, 3), row("", true, 4), row("b", false, 5)];
        let locks = gather(rows);
        let pids = |it: &[Occupant]| it.iter().map(|it| it.label.pid).collect::<Vec<_>>();
        let seen: Vec<_> = locks
            .iter()
            .map(|it| (it.key.as_str(), pids(&it.holders), pids(&it.waiters), it.foreign.len()))
            .collect();
        assert_eq!(
            seen,
            [("(no name)", vec![4], vec![], 1), ("a", vec![], vec![3], 0), ("b", vec![1], vec![2, 5], 0)]
        );
    }
}
