//! Words that are nearly right: which known one somebody who mistyped may have meant.

use lockkeeper_core::kit::settings::nearest;

/// A half sentence that helps with an unknown word: the nearest known one, or all of them.
pub(super) fn help(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are `{}`", known.join("`, `")),
    }
}
