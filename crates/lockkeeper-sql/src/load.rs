//! A load as the tables keep it.

use lockkeeper_core::Load;

pub(crate) fn load_of(weight: i64, capacity: i64) -> Load {
    let whole = |it: i64| u32::try_from(it).unwrap_or(u32::MAX);
    Load::new(whole(weight), whole(capacity))
}
