//! What standard output is: a terminal of some size that shows colours, or something that wants plain text.

use std::env;
use std::io::IsTerminal as _;

use rustix::termios::tcgetwinsize;

/// How to write for whoever reads standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    pub(crate) is_terminal: bool,
    /// In columns; `None` if nothing is cut off there.
    pub(crate) width: Option<usize>,
    /// In lines.
    pub(crate) height: Option<usize>,
    pub(crate) colour: bool,
}

/// What a word means to the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Heading,
    Quiet,
    Good,
    Warning,
    Bad,
}

impl Screen {
    /// As standard output is now. A window may change at any time.
    pub(crate) fn now() -> Self {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Screen::default();
        }
        let size = tcgetwinsize(&out).ok();
        let some = |it: u16| Some(usize::from(it)).filter(|it| 0 < *it);
        Screen {
            is_terminal: true,
            width: size.and_then(|it| some(it.ws_col)),
            height: size.and_then(|it| some(it.ws_row)),
            colour: wants_colour(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref()),
        }
    }

    /// The text, with a colour where colours are shown.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Heading => "1",
            Tone::Quiet => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Plain => "",
        };
        if self.colour && !code.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// By the conventions: <https://no-color.org>, and a terminal that calls itself dumb.
fn wants_colour(no_color: Option<&std::ffi::OsStr>, term: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(std::ffi::OsStr::is_empty) && term.is_some_and(|it| it != "dumb")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let of = |no_color: Option<&str>, term: Option<&str>| {
            wants_colour(no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(of(None, Some("xterm")) && of(Some(""), Some("xterm")));
        assert!(!of(Some("1"), Some("xterm")) && !of(None, Some("dumb")) && !of(None, None));
        let plain = Screen::default();
        assert_eq!(plain.paint("x", Tone::Bad), "x");
        assert_eq!(Screen { colour: true, ..plain }.paint("x", Tone::Bad), "\x1b[31mx\x1b[0m");
    }
}
