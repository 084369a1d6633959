//! What can be chosen about the store, in code or in a URL.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::Result;
use lockkeeper_core::address::decoded;
use lockkeeper_core::kit::settings::Form;

const FORM: Form = Form::new("file store", "files:FOLDER[?timeout=2s]");

/// Which folder, and how.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), lockkeeper_core::Error> {
/// use file_store::FolderOptions;
///
/// let options = FolderOptions::parse("files:/var/lib/shop/locks?timeout=5s")?;
/// assert_eq!(options, FolderOptions::new("/var/lib/shop/locks").timeout(Duration::from_secs(5)));
/// let said = FolderOptions::parse("files:/x?timeuot=5s").unwrap_err().to_string();
/// assert!(said.contains("did you mean `timeout`?"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    pub(crate) path: PathBuf,
    pub(crate) timeout: Duration,
}

impl FolderOptions {
    /// This folder, with defaults for everything else.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FolderOptions { path: path.into(), timeout: Duration::from_secs(2) }
    }

    /// Read a URL: `files:FOLDER[?timeout=2s]`.
    ///
    /// # Errors
    /// `Error::Invalid` with what is wrong and what would be right.
    pub fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("files:").ok_or_else(|| FORM.wrong("it does not begin with `files:`"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = FolderOptions::new(decoded(path).map_err(|it| FORM.wrong(it))?);
        let mut settings = FORM.settings(query)?;
        options.timeout = settings.span("timeout")?.unwrap_or(options.timeout);
        settings.finish()?;
        Ok(options)
    }

    /// How long an answer is waited for while another process keeps a file. By default 2 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
