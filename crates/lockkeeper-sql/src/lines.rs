//! From rows to lines: the operator's view is the same for every dialect.

use lockkeeper_core::inspect::{LockInfo, Occupant};
use lockkeeper_core::{Key, Load};

/// One row: somebody who holds or waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) held: bool,
    pub(crate) occupant: Occupant,
}

/// A load as the table keeps it.
pub(crate) fn load_of(weight: i64, capacity: i64) -> Load {
    let whole = |it: i64| u32::try_from(it).unwrap_or(u32::MAX);
    Load::new(whole(weight), whole(capacity))
}

/// The lines of all entries, of which those of one lock stand together, in the order of the line.
pub(crate) fn gather(entries: Vec<Entry>) -> Vec<LockInfo> {
    let mut infos: Vec<LockInfo> = Vec::new();
    for entry in entries {
        if infos.last().is_none_or(|it| it.key.as_str() != entry.name) {
            // What is no key was written by somebody else.
            let Ok(key) = Key::new(&entry.name) else { continue };
            infos.push(LockInfo::new(key, Vec::new(), Vec::new()));
        }
        if let Some(info) = infos.last_mut() {
            let side = if entry.held { &mut info.holders } else { &mut info.waiters };
            side.push(entry.occupant);
        }
    }
    infos.sort_by(|one, other| one.key.cmp(&other.key));
    infos
}
