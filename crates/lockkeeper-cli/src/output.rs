//! Writing to standard output and error, and the small table that `ls` prints.

use std::io::{self, Write};
use std::time::Duration;

use crate::exit::{self, Failure, Result};
use crate::{help, text};

/// Write data. A reader that has seen enough (`lockkeeper ls | head`) is no error.
pub(crate) fn data(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::OUTPUT, format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Write data that goes on and on. `false` if nobody reads it any more.
pub(crate) fn is_heard(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(exit::OUTPUT, format!("standard output cannot be written: {error}"))),
    }
}

/// Write data as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<()> {
    let written = serde_json::to_string_pretty(value)
        .map_err(|it| Failure::new(exit::OUTPUT, format!("the answer cannot be written as JSON: {it}")))?;
    data(&format!("{}\n", text::json(&written)))
}

/// Tell the user something beside the data. Nobody is left to hear of it if that fails.
pub(crate) fn say(words: &str) {
    say_raw(&format!("lockkeeper: {}\n", text::message(&text::without_secrets(&help::with_pages(words)))));
}

/// As [`say`], for text that has its own shape and is known to be harmless.
pub(crate) fn say_raw(words: &str) {
    let _ = io::stderr().lock().write_all(words.as_bytes());
}

/// A span as people read it: milliseconds below a second, whole seconds above.
pub(crate) fn span(span: Duration) -> String {
    let rounded = if span < Duration::from_secs(1) {
        Duration::from_millis(u64::from(span.subsec_millis()))
    } else {
        Duration::from_secs(span.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        assert_eq!(span(Duration::from_micros(1_234_567)), "1s");
        assert_eq!(span(Duration::from_micros(234_567)), "234ms");
        assert_eq!(span(Duration::from_secs(3_723)), "1h 2m 3s");
        assert_eq!(span(Duration::ZERO), "0s");
    }
}
