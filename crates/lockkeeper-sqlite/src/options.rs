//! What can be chosen about an SQLite store, in code or in a URL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_core::address::decoded;
use lockkeeper_core::kit::settings::Form;

const FORM: Form = Form::new("SQLite", "sqlite:PATH or sqlite:///ABSOLUTE/PATH, then perhaps ?timeout=30s");

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
///     .durability(Durability::Full)
///     .timeout(Duration::from_secs(10))
///     .clean_every(Duration::from_secs(60));
/// let url = "sqlite:/var/lib/shop/locks.db?durability=full&timeout=10s&clean_every=1m";
/// assert_eq!(SqliteOptions::parse(url)?, options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    pub(crate) path: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) timeout: Duration,
    pub(crate) clean_every: Duration,
}

/// What a power cut may undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: every grant is on disk before it is told.
    Full,
    /// The last grants, which end with the host anyway. Fences still grow, because numbers are reserved on disk in
    /// blocks, and memos are on disk before they are told. A crash of a process undoes nothing in either mode.
    #[default]
    Normal,
}

impl SqliteOptions {
    /// The file at `path`, with defaults for everything else. A relative path counts from the current folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions {
            path: path.into(),
            durability: Durability::Normal,
            timeout: Duration::from_secs(30),
            clean_every: Duration::from_secs(60),
        }
    }

    /// Read a URL: `sqlite:PATH` or `sqlite:///ABSOLUTE/PATH`, then perhaps `?setting=value&setting=value`.
    ///
    /// Settings: `durability` (`full`, `normal`), `timeout` (such as `30s`), `clean_every` (such as `1m`).
    /// In the path `%XX` stands for a byte, so that `?` is `%3F` and `%` is `%25`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and what would be right.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let rest =
            url.strip_prefix("sqlite:").ok_or_else(|| FORM.wrong("it does not begin with `sqlite:`"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = SqliteOptions::new(path_of(path)?);
        let mut settings = FORM.settings(query)?;
        if let Some(it) =
            settings.choice("durability", &[("full", Durability::Full), ("normal", Durability::Normal)])?
        {
            options = options.durability(it);
        }
        settings.renamed("busy_wait", "timeout")?;
        if let Some(it) = settings.span("timeout")? {
            options = options.timeout(it);
        }
        settings.refused("connect_timeout", "a file needs no connection; see `timeout`")?;
        if let Some(it) = settings.span("clean_every")? {
            options = options.clean_every(it);
        }
        settings.finish()?;
        Ok(options)
    }

    /// What a power cut may undo. Default: the last grants, never a fence.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long an answer is waited for while other processes' transactions keep the file. Default: 30 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often this process removes what dead processes left behind. Default: every minute,
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

fn path_of(text: &str) -> Result<PathBuf, Error> {
    let text = match text.strip_prefix("//") {
        None => text,
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => return Err(FORM.wrong("it names a host, but an SQLite file is local")),
    };
    match text {
        "" => Err(FORM.wrong("it names no file")),
        ":memory:" => Err(FORM.wrong(
            "no other process can see an SQLite database in memory; use the URL `memory:`, or name a file",
        )),
        _ => match decoded(text) {
            Ok(path) if !path.contains('\0') => Ok(PathBuf::from(path)),
            Ok(_) => Err(FORM.wrong("no path can hold a %00; write % as %25")),
            Err(wrong) => Err(FORM.wrong(wrong)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> PathBuf {
        SqliteOptions::parse(url).unwrap().path
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
        let options = SqliteOptions::parse("sqlite:x?durability=full&timeout=5s&clean_every=2m").unwrap();
        let expected = SqliteOptions::new("x")
            .durability(Durability::Full)
            .timeout(Duration::from_secs(5))
            .clean_every(Duration::from_secs(2 * 60));
        assert_eq!(options, expected);
        assert_eq!(SqliteOptions::parse("sqlite:x?").unwrap(), SqliteOptions::new("x"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, said) in [
            ("redis://x", "does not begin with `sqlite:`"),
            ("sqlite:", "names no file"),
            ("sqlite:?durability=full", "names no file"),
            ("sqlite://host/x", "names a host"),
            ("sqlite::memory:", "`memory:`"),
            (
                "sqlite:x?durabilty=full",
                "did you mean `durability`? known are durability, timeout, clean_every",
            ),
            ("sqlite:x?durability=off", "`full` or `normal`"),
            ("sqlite:x?timeout=soon", "such as `500ms`"),
            ("sqlite:x?timeout", "such as `500ms`"),
            ("sqlite:x?busy_wait=5s", "it is called `timeout`"),
            ("sqlite:x?connect_timeout=5s", "see `timeout`"),
            ("sqlite:x%", "%25"),
            ("sqlite:x%+1", "%25"),
            ("sqlite:x%00", "%25"),
            ("sqlite:x%ff", "%25"),
            ("sqlite:x%é", "%25"),
        ] {
            let error = SqliteOptions::parse(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
    }
}
