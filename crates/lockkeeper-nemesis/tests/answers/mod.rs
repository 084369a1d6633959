//! What hostile inputs may lead to: an answer in words, within a bound, no panic on any thread, and never a lock that is held and
//! shown as free.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::spi::DynInspect;
use lockkeeper::{Error, Key, Locker};

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

/// What the process may have used at its worst, in KiB. An announced length is no reason to set memory aside.
pub(crate) const MEMORY_MAX_KIB: u64 = 512 * 1024;

/// What it has used at its worst.
pub(crate) fn memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// No panic on any thread, and no memory beyond the bound.
pub(crate) fn unharmed() -> Result<(), String> {
    if !panics().is_empty() {
        return Err(format!("{:#?}", panics()));
    }
    match memory_kib() {
        Some(used) if MEMORY_MAX_KIB < used => Err(format!("{used} KiB of memory were used")),
        _ => Ok(()),
    }
}

/// Ask everything of a lock whose records are not what they were: whoever is refused hears so in words, and a lock that is
/// refused is not shown as free.
pub(crate) async fn ask_everything(
    locker: &Locker,
    inspect: &dyn DynInspect,
    name: &str,
) -> Result<(), String> {
    let key = in_words(Key::new(name))?.ok_or("the name is sound")?;
    drop(in_words(inspect.list("").await.map_err(Into::into))?);
    // Whoever stands in line goes after a while: only what is hidden before and after the refusal is hidden.
    let mut hidden = 0;
    while hidden < 3 {
        let before = in_words(inspect.show(&key).await.map_err(Into::into))?;
        let tried = in_words(locker.try_lock(name).await)?;
        let after = in_words(inspect.show(&key).await.map_err(Into::into))?;
        let shown_free = [before, after].iter().all(|it| matches!(it, Some(None)));
        match tried {
            Some(None) if shown_free => hidden += 1,
            _ => break,
        }
    }
    if hidden == 3 {
        return Err(format!("{name} is refused, and shown as free"));
    }
    drop(in_words(locker.read(name).wait_at_most(Duration::from_millis(50)).await)?);
    Ok(())
}
