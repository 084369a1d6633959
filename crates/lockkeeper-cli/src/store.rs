//! Which store: the URL as given, or the file in the user's state folder.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use lockkeeper::{Config, Store};

use crate::exit::{self, Failure, Result};
use crate::{features, text};

/// The store this call talks to.
pub(crate) struct Target {
    url: String,
    /// The folder to make first, if the URL is our own choice.
    folder: Option<PathBuf>,
    config: Config,
}

impl Target {
    /// The given URL, or the configured one, or the default one.
    pub(crate) fn choose(given: Option<String>, config: Config) -> Result<Self> {
        // An empty variable is how a shell script unsets one.
        if let Some(url) = given.filter(|it| !it.is_empty()) {
            return Ok(Target { url, folder: None, config });
        }
        if config.names_a_store() {
            return Ok(Target { url: config.url()?, folder: None, config });
        }
        let folder = state_folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))?;
        let url = url_of(&folder.join("locks.db"))?;
        let folder = Some(folder);
        Ok(Target { url, folder, config })
    }

    /// The URL as it is, secrets included.
    #[cfg(feature = "torture")]
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The settings of this call.
    #[cfg(feature = "twophase")]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The file that it is, if it is one.
    pub(crate) fn file(&self) -> Option<&str> {
        self.url.strip_prefix("sqlite:").and_then(|it| it.split('?').next())
    }

    /// The URL, fit to print.
    pub(crate) fn shown(&self) -> String {
        text::plain(&text::url_without_secrets(&self.url))
    }

    /// Open it.
    pub(crate) async fn open(&self) -> Result<Store> {
        features::check(&self.url)?;
        if let Some(folder) = &self.folder {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| {
                let text = format!("the state folder `{}` cannot be made: {error}", folder.display());
                Failure::new(exit::UNREACHABLE, text)
                    .or_hint(|| "make it yourself, or name a store with --url or LOCKKEEPER_URL".into())
            })?;
        }
        let mut store = lockkeeper::open(&self.url).await.map_err(|error| self.failure(error))?;
        store.locker = self.config.apply(store.locker);
        Ok(store)
    }

    /// A failure of this store, with a word on which store that is.
    pub(crate) fn failure(&self, error: impl Into<Failure>) -> Failure {
        let mut failure: Failure = error.into();
        // A secret with a blank in it would escape the general rule.
        failure.text = failure.text.replace(&self.url, &self.shown());
        match failure.code {
            exit::UNREACHABLE => failure.or_hint(|| {
                format!("the store is `{}`; name another one with --url or LOCKKEEPER_URL", self.shown())
            }),
            exit::USAGE => failure.or_hint(|| "see `lockkeeper --help`".into()),
            _ => failure,
        }
    }
}

/// Where programs of this user keep what must survive a restart, by the XDG rules.
fn state_folder(xdg: Option<OsString>, home: Option<OsString>) -> Result<PathBuf> {
    let absolute = |it: Option<OsString>| it.map(PathBuf::from).filter(|it| it.is_absolute());
    let state = absolute(xdg).or_else(|| absolute(home).map(|it| it.join(".local/state")));
    state.map(|it| it.join("lockkeeper")).ok_or_else(|| {
        Failure::new(
            exit::USAGE,
            "there is no place for the locks: neither HOME nor XDG_STATE_HOME is an absolute path",
        )
        .or_hint(|| {
            "name a store with --url or LOCKKEEPER_URL, for example --url sqlite:/var/tmp/locks.db".into()
        })
    })
}

/// The URL of an `SQLite` file; what has a meaning in a URL is escaped.
pub(crate) fn url_of(path: &std::path::Path) -> Result<String> {
    let path = path.to_str().ok_or_else(|| {
        Failure::new(exit::USAGE, "the path of the state folder is not UTF-8")
            .or_hint(|| "name a store with --url or LOCKKEEPER_URL".into())
    })?;
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(xdg: Option<&str>, home: Option<&str>) -> Option<PathBuf> {
        state_folder(xdg.map(Into::into), home.map(Into::into)).ok()
    }

    #[test]
    fn the_state_folder_follows_the_xdg_rules() {
        assert_eq!(folder(Some("/s"), Some("/h")), Some("/s/lockkeeper".into()));
        assert_eq!(folder(None, Some("/h")), Some("/h/.local/state/lockkeeper".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/state/lockkeeper".into()));
        assert_eq!(folder(Some(""), None), None);
        assert_eq!(folder(None, None), None);
    }

    #[test]
    fn a_path_is_escaped_in_the_url() {
        let url = url_of(std::path::Path::new("/home/50%?/x")).unwrap();
        assert_eq!(url, "sqlite:/home/50%25%3F/x");
    }

    #[test]
    fn a_secret_with_a_blank_is_hidden_too() {
        let url = "redis://u:my pass@host".to_owned();
        let target = Target { url, folder: None, config: Config::default() };
        let failure =
            target.failure(Failure::new(exit::UNREACHABLE, "no answer from redis://u:my pass@host"));
        assert!(!failure.lines().contains("pass@"), "{}", failure.lines());
    }
}
