//! From rows to lines: the operator's view is the same for every dialect.

use lockkeeper_core::Key;
use lockkeeper_core::inspect::{LockInfo, Occupant};

/// One row: somebody who holds or waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) held: bool,
    pub(crate) occupant: Occupant,
}

/// The lines of all entries, of which those of one lock stand together, in the order of the line.
pub(crate) fn gather(entries: Vec<Entry>) -> Vec<LockInfo> {
    let mut infos: Vec<LockInfo> = Vec::new();
    for entry in entries {
        if infos.last().is_none_or(|it| it.key.as_str() != entry.name) {
            // What is no key was written by somebody else.
            let Ok(key) = Key::new(&entry.name) else { continue };
            infos.push(LockInfo { key, holders: Vec::new(), waiters: Vec::new() });
        }
        if let Some(info) = infos.last_mut() {
            let side = if entry.held { &mut info.holders } else { &mut info.waiters };
            side.push(entry.occupant);
        }
    }
    infos.sort_by(|one, other| one.key.cmp(&other.key));
    infos
}
