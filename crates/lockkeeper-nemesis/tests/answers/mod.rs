//! What hostile inputs may lead to: an answer in words, within a bound, and no panic on any thread.

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::Error;

/// Nothing takes nearly as long.
pub(crate) const HANG: Duration = Duration::from_secs(100);
/// An error may quote what was read, and no more than that.
const WORDS_MAX: usize = 30_000;

/// Whatever panicked, on whichever thread.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on panics are noted, and told.
pub(crate) fn note_panics() {
    std::panic::set_hook(Box::new(|it| {
        let _ = writeln!(std::io::stderr(), "{it}");
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(it.to_string());
    }));
}

/// What was noted.
pub(crate) fn panics() -> Vec<String> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What an error says must be fit for a log: in words, of a bounded length, without control characters.
pub(crate) fn in_words<T>(answer: Result<T, Error>) -> Result<Option<T>, String> {
    let error = match answer {
        Ok(it) => return Ok(Some(it)),
        Err(error) => error.to_string(),
    };
    let fit = !error.is_empty() && error.len() < WORDS_MAX;
    let fit = fit && !error.chars().any(|it| it.is_control() && it != '\n');
    if fit { Ok(None) } else { Err(format!("not fit for a log: {:.300}", format!("{error:?}"))) }
}
