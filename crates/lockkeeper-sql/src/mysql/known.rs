//! What this process knows of names it used before: which statement is likely to take the lock. Only a hint: whatever
//! statement goes first, the rows decide.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use lockkeeper_core::kit::locked;

use crate::name::NameHash;

/// The most names remembered. Then all are forgotten, which costs each one dearer statement.
const MOST: usize = 8192;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Its lock has a row.
    Used,
    /// Others were there when we last looked.
    Crowded,
}

/// The names that this process used lately.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<NameHash, Known>>);

impl Names {
    pub(super) fn of(&self, lock: &NameHash) -> Option<Known> {
        locked(&self.0).get(lock).copied()
    }

    pub(super) fn note(&self, lock: NameHash, known: Known) {
        let mut names = locked(&self.0);
        if MOST <= names.len() && !names.contains_key(&lock) {
            names.clear();
        }
        names.insert(lock, known);
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_names_are_remembered() {
        let (names, name) = (Names::default(), |at: usize| -> NameHash {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&at.to_le_bytes());
            hash
        });
        (0..MOST).for_each(|at| names.note(name(at), Known::Used));
        names.note(name(7), Known::Crowded);
        assert_eq!((names.of(&name(7)), names.of(&name(0))), (Some(Known::Crowded), Some(Known::Used)));
        names.note(name(MOST), Known::Used);
        assert_eq!((names.of(&name(MOST)), names.of(&name(7))), (Some(Known::Used), None));
    }
}
