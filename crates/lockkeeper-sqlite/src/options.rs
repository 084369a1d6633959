//! What can be chosen about an SQLite store, in code or in a URL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::{decoded, unknown_setting};

/// The keys a URL may carry after its `?`.
const KEYS: [&str; 3] = ["durability", "busy_wait", "clean_every"];

/// The shortest pause between two runs of the cleaner.
const CLEAN_EVERY_MIN: Duration = Duration::from_millis(10);
/// And the longest: a day.
const CLEAN_EVERY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Which file, and how.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use lockkeeper_sqlite::{Durability, SqliteOptions};
///
/// let options = SqliteOptions::new("/var/lib/shop/locks.db")
///     .durability(Durability::Normal)
///     .busy_wait(Duration::from_secs(10))
///     .clean_every(Duration::from_secs(60));
/// let url = "sqlite:/var/lib/shop/locks.db?durability=normal&busy_wait=10s&clean_every=1m";
/// assert_eq!(SqliteOptions::from_url(url)?, options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    pub(crate) path: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) busy_wait: Duration,
    pub(crate) clean_every: Duration,
}

/// What a power cut may undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: every grant is on disk before it is told. Fences never go back.
    #[default]
    Full,
    /// The last grants: faster, but after a power cut or a crash of the kernel the same fences may be given
    /// again. A crash of a process undoes nothing in either mode.
    Normal,
}

impl SqliteOptions {
    /// The file at `path`, with everything else as usual. A relative path counts from the current folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions {
            path: path.into(),
            durability: Durability::Full,
            busy_wait: Duration::from_secs(30),
            clean_every: Duration::from_secs(60),
        }
    }

    /// Read a URL: `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`, then perhaps `?key=value&key=value`.
    ///
    /// Keys: `durability` (`full`, `normal`), `busy_wait` (such as `30s`), `clean_every` (such as `1m`).
    /// In the path `%XX` stands for a byte, so that `?` is `%3F` and `%` is `%25`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such URL or holds an unknown key or value.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| {
            Error::invalid(format!(
                "{url:?} is no SQLite URL; write `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`"
            ))
        })?;
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let mut options = SqliteOptions::new(path_of(url, path)?);
        for pair in query.into_iter().flat_map(|it| it.split('&')).filter(|it| !it.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.set(key, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "durability" => {
                self.durability = match value {
                    "full" => Durability::Full,
                    "normal" => Durability::Normal,
                    _ => {
                        return Err(Error::invalid(format!(
                            "`durability` cannot be {value:?}; it is `full` or `normal`"
                        )));
                    }
                }
            }
            "busy_wait" => self.busy_wait = span(key, value)?,
            "clean_every" => *self = self.clone().clean_every(span(key, value)?),
            _ => {
                let wrong = unknown_setting(key, &KEYS);
                return Err(Error::invalid(format!("the SQLite URL cannot be used: {wrong}")));
            }
        }
        Ok(())
    }

    /// What a power cut may undo. Usually nothing.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long a verb waits for other processes' transactions before it fails. Usually 30 seconds.
    #[must_use]
    pub fn busy_wait(mut self, busy_wait: Duration) -> Self {
        self.busy_wait = busy_wait;
        self
    }

    /// How often this process removes what dead processes left behind. Usually every minute,
    /// at most every 10 ms, at least once a day.
    #[must_use]
    pub fn clean_every(mut self, clean_every: Duration) -> Self {
        self.clean_every = clean_every.clamp(CLEAN_EVERY_MIN, CLEAN_EVERY_MAX);
        self
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn path_of(url: &str, text: &str) -> Result<PathBuf, Error> {
    let text = match text.strip_prefix("//") {
        None => text,
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err(Error::invalid(format!(
                "{url:?} names a host, but an SQLite file is local; write `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`"
            )));
        }
    };
    match text {
        "" => Err(Error::invalid(format!("{url:?} names no file; write `sqlite:PATH`"))),
        ":memory:" => Err(Error::invalid(
            "no other process can see an SQLite database in memory; use the URL `memory:`, or name a file",
        )),
        _ => match decoded(text) {
            Ok(path) if !path.contains('\0') => Ok(PathBuf::from(path)),
            _ => Err(Error::invalid(format!("bad `%` escape in the path {text:?}; write `%` as `%25`"))),
        },
    }
}

fn span(key: &str, value: &str) -> Result<Duration, Error> {
    humantime::parse_duration(value).map_err(|it| {
        Error::invalid(format!("`{key}` cannot be {value:?}: {it}; write a span such as `30s` or `500ms`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> PathBuf {
        SqliteOptions::from_url(url).unwrap().path
    }

    #[test]
    fn a_url_names_a_relative_or_an_absolute_file() {
        assert_eq!(path("sqlite:locks.db"), PathBuf::from("locks.db"));
        assert_eq!(path("sqlite:a/b c.db"), PathBuf::from("a/b c.db"));
        assert_eq!(path("sqlite:/var/locks.db"), PathBuf::from("/var/locks.db"));
        assert_eq!(path("sqlite:///var/locks.db"), PathBuf::from("/var/locks.db"));
        assert_eq!(path("sqlite:what%3F%25%20.db"), PathBuf::from("what?% .db"));
    }

    #[test]
    fn a_url_sets_what_can_be_chosen() {
        let options =
            SqliteOptions::from_url("sqlite:x?durability=normal&busy_wait=5s&clean_every=2m").unwrap();
        let expected = SqliteOptions::new("x")
            .durability(Durability::Normal)
            .busy_wait(Duration::from_secs(5))
            .clean_every(Duration::from_secs(2 * 60));
        assert_eq!(options, expected);
        assert_eq!(SqliteOptions::from_url("sqlite:x?").unwrap(), SqliteOptions::new("x"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, said) in [
            ("redis://x", "no SQLite URL"),
            ("sqlite:", "names no file"),
            ("sqlite:?durability=full", "names no file"),
            ("sqlite://host/x", "names a host"),
            ("sqlite::memory:", "`memory:`"),
            (
                "sqlite:x?durabilty=full",
                "did you mean `durability`? known are durability, busy_wait, clean_every",
            ),
            ("sqlite:x?durability=off", "`full` or `normal`"),
            ("sqlite:x?busy_wait=soon", "such as `30s`"),
            ("sqlite:x?busy_wait", "such as `30s`"),
            ("sqlite:x%", "%25"),
            ("sqlite:x%+1", "%25"),
            ("sqlite:x%00", "%25"),
            ("sqlite:x%ff", "%25"),
            ("sqlite:x%é", "%25"),
        ] {
            let error = SqliteOptions::from_url(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
    }
}
