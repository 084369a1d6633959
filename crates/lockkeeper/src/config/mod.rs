//! Configuration: `lockkeeper.toml`, the variables `LOCKKEEPER_*`, and the locker they describe.
//!
//! ```toml
//! system = "shop"                                # begins the id of every `#[locked]` function's lock
//! url = "redis://lock:${REDIS_PASSWORD}@db-1/0"  # or url_file = "/run/secrets/lockkeeper-url"
//! ttl = "10s"
//! max_hold = "1m"
//! wait = "3s"
//! waiters_max = 500
//!
//! [store]                                        # options of this store's URL
//! timeout = "500ms"
//!
//! [locks."mail"]                                 # how this lock is shared
//! permits = "1/5"
//!
//! [two_phase]                                    # the log of two-phase commit, and its participants
//! log = "sqlite:/var/lib/shop/2pc.db"
//! participants = { orders = "postgres://db-1/orders", stock = "mysql://db-2/stock" }
//! ```
//!
//! Every key is a variable too: `LOCKKEEPER_TTL=5s` is stronger than `ttl` in the file. What nobody sets is as the
//! locker has it. `docs/guides/configuration.md` tells all.

mod locks;
mod read;
mod secret;
mod two_phase;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::{Error, Load, Locker, LockerBuilder, Result};

use crate::{Store, process};

pub use locks::permits;
pub use two_phase::TwoPhaseSettings;

/// The file that is read if no other is named and it exists in the current folder.
pub const FILE: &str = "lockkeeper.toml";
/// Names another file.
pub const FILE_VARIABLE: &str = "LOCKKEEPER_CONFIG";

/// All settings of a process. `Debug` and `Display` show no secret.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::Config;
///
/// let text = r#"
///     system = "shop"
///     url = "memory:"
///     ttl = "5s"
/// "#;
/// let config = Config::from_toml(text, "lockkeeper.toml")?;
/// assert_eq!(config.system(), Some("shop"));
/// assert_eq!(config.ttl(), Some(Duration::from_secs(5)));
/// assert_eq!(config.wait(), None); // as the locker has it
///
/// let locker = config.connect().await?;
/// locker.lock("orders/42").await?.release().await?;
///
/// let error = Config::from_toml("tll = \"5s\"", "lockkeeper.toml").unwrap_err();
/// assert!(error.to_string().contains("ttl")); // what you may have meant
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Config {
    file: Option<PathBuf>,
    system: Option<String>,
    url: Option<Url>,
    ttl: Option<Duration>,
    max_hold: Option<Duration>,
    wait: Option<Duration>,
    outage_max: Option<Duration>,
    waiters_max: Option<usize>,
    depth_max: Option<u32>,
    hand_on_count_max: Option<u64>,
    hand_on_span_max: Option<Duration>,
    warm: Option<bool>,
    warm_max: Option<usize>,
    /// Options that go behind the `?` of the URL.
    store: BTreeMap<String, String>,
    /// How single locks are shared.
    locks: BTreeMap<String, locks::Share>,
    two_phase: Option<two_phase::Section>,
    /// Every key that was set: what to show, and where it came from.
    set: BTreeMap<&'static str, (String, String)>,
}

/// Where the URL stands.
#[derive(Clone)]
enum Url {
    Given(String),
    InFile(PathBuf),
}

impl Config {
    /// Read what this process finds: the file that `LOCKKEEPER_CONFIG` names, or `lockkeeper.toml` in the current
    /// folder if there is one, and then the variables.
    ///
    /// ```no_run
    /// # fn main() -> lockkeeper::Result<()> {
    /// let config = lockkeeper::Config::load()?;
    /// println!("{config}"); // no secrets
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] says what is wrong and where.
    pub fn load() -> Result<Self> {
        let named = std::env::var_os(FILE_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
        let found = named.or_else(|| Path::new(FILE).exists().then(|| PathBuf::from(FILE)));
        Config::load_from(found.as_deref())
    }

    /// Read this file, or none, and then the variables.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn load_from(file: Option<&Path>) -> Result<Self> {
        let mut config = match file {
            None => Config::default(),
            Some(file) => Config::from_file(file)?,
        };
        config.read_variables(std::env::vars_os())?;
        Ok(config)
    }

    /// Read this file alone.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn from_file(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|it| {
            Error::invalid(format!("the configuration `{}` cannot be read: {it}", file.display()))
        })?;
        let mut config = Config::from_toml(&text, &file.display().to_string())?;
        config.file = Some(file.to_owned());
        Ok(config)
    }

    /// Read a text as a file of this name.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn from_toml(text: &str, name: &str) -> Result<Self> {
        let mut config = Config::default();
        config.read_toml(text, name)?;
        Ok(config)
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The system that this process belongs to.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Whether a store is named.
    pub fn names_a_store(&self) -> bool {
        self.url.is_some()
    }

    /// The ttl of requests that name none.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// The longest hold of requests that name none.
    pub fn max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// The wait of requests that name none.
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// How much of this lock to take, if its section says so: `[locks."mail"]` with `permits = "1/5"` or `shared = true`.
    ///
    /// `lockkeeper run` takes it so. In a program it is for you to ask: `locker.lock(name)` is always alone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// # use lockkeeper::{Config, Load};
    /// let config = Config::from_toml("url = \"memory:\"\n[locks.\"mail\"]\npermits = \"1/5\"", "lockkeeper.toml")?;
    /// let Load { weight, capacity, .. } = config.share("mail").unwrap_or(Load::MUTEX);
    /// let permit = config.connect().await?.permits("mail", weight, capacity).await?;
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(&self, name: &str) -> Option<Load> {
        self.locks.get(name).map(|it| it.load)
    }

    /// The store's URL with its secrets and all options. Not for the eyes of people.
    ///
    /// ```
    /// # fn main() -> lockkeeper::Result<()> {
    /// # use lockkeeper::Config;
    /// let text = "url = \"redis://db-1/0\"\n[store]\ntimeout = \"500ms\"";
    /// assert_eq!(Config::from_toml(text, "lockkeeper.toml")?.url()?, "redis://db-1/0?timeout=500ms");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if no store is named, or if a variable or file of a secret is not there.
    pub fn url(&self) -> Result<String> {
        let mut url = match &self.url {
            Some(Url::Given(url)) => secret::filled(url, |name| std::env::var(name).ok())?,
            Some(Url::InFile(path)) => secret::from_file(path)?,
            None => {
                return Err(Error::invalid(format!(
                    "no store is named; write `url = \"…\"` into {FILE} or set LOCKKEEPER_URL"
                )));
            }
        };
        for (key, value) in &self.store {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.extend([key, "=", value]);
        }
        Ok(url)
    }

    /// The same locker with these settings.
    ///
    /// ```
    /// # fn main() -> lockkeeper::Result<()> {
    /// # use lockkeeper::{Config, Locker};
    /// # use lockkeeper::spi::Memory;
    /// let config = Config::from_toml("ttl = \"5s\"", "lockkeeper.toml")?;
    /// let locker = config.apply(Locker::builder(Memory::default())).build();
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply(&self, mut locker: LockerBuilder) -> LockerBuilder {
        if let Some(it) = self.ttl {
            locker = locker.ttl(it);
        }
        if let Some(it) = self.max_hold {
            locker = locker.max_hold(it);
        }
        if let Some(it) = self.wait {
            locker = locker.wait_at_most(it);
        }
        if let Some(it) = self.outage_max {
            locker = locker.outage_max(it);
        }
        if let Some(it) = self.waiters_max {
            locker = locker.waiters_max(it);
        }
        if let Some(it) = self.depth_max {
            locker = locker.depth_max(it);
        }
        if let Some(it) = self.hand_on_count_max {
            locker = locker.hand_on_count_max(it);
        }
        if let Some(it) = self.hand_on_span_max {
            locker = locker.hand_on_span_max(it);
        }
        if let Some(it) = self.warm {
            locker = locker.warm(it);
        }
        if let Some(it) = self.warm_max {
            locker = locker.warm_max(it);
        }
        locker
    }

    /// Open the store, with a locker of these settings.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// As for [`Config::url`] and [`crate::open`].
    pub async fn open(&self) -> Result<Store> {
        let Store { locker, inspect } = crate::open(&self.url()?).await?;
        Ok(Store { locker: self.apply(locker), inspect })
    }

    /// A locker with these settings.
    ///
    /// # Cancel safety
    /// Safe to drop; a half-open connection is closed.
    ///
    /// # Errors
    /// As for [`Config::open`].
    pub async fn connect(&self) -> Result<Locker> {
        Ok(self.open().await?.into_locker())
    }

    /// [`Config::open`] for programs without a runtime; see [`crate::open_blocking`].
    ///
    /// # Errors
    /// As for [`Config::open`].
    pub fn open_blocking(&self) -> Result<Store> {
        let Store { locker, inspect } = crate::open_blocking(&self.url()?)?;
        Ok(Store { locker: self.apply(locker), inspect })
    }

    /// [`Config::connect`] for programs without a runtime.
    ///
    /// # Errors
    /// As for [`Config::open`].
    pub fn connect_blocking(&self) -> Result<Locker> {
        Ok(self.open_blocking()?.into_locker())
    }
}

/// The configuration as a file: what is set, where it comes from, and what could be set. No secrets.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settings, store): (Vec<_>, Vec<_>) = self.set.iter().partition(|it| *it.0 != read::STORE);
        for (key, (shown, origin)) in settings {
            writeln!(f, "{key} = {shown}  # {origin}")?;
        }
        let unset: Vec<_> = read::KEYS.iter().copied().filter(|it| !self.set.contains_key(it)).collect();
        if !unset.is_empty() {
            writeln!(f, "# default: {}", unset.join(", "))?;
        }
        for (name, share) in &self.locks {
            share.show(name, f)?;
        }
        if let Some(section) = &self.two_phase {
            section.show(f)?;
        }
        for (_, (_, origin)) in store {
            writeln!(f, "\n[store]  # {origin}")?;
            for (key, value) in &self.store {
                let value = if secret::speaks_of_secrets(key) { "***" } else { value };
                writeln!(f, "{key} = {value:?}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.set.iter().filter(|it| *it.0 != read::STORE);
        f.write_str("Config ")?;
        f.debug_map().entries(shown.map(|(key, (value, _))| (key, value))).finish()
    }
}

/// Read the configuration, open its store and make it the process-wide locker. Once, where the program begins.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// lockkeeper::init().await?; // once, where the program begins
/// let guard = lockkeeper::default_locker()?.lock("shop:nightly").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// Safe to drop; nothing is set then.
///
/// # Errors
/// As for [`Config::load`], [`Config::open`] and [`set_default`](crate::set_default).
pub async fn init() -> Result<&'static Locker> {
    init_with(&Config::load()?).await
}

/// [`init`] with a configuration of your own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// # use lockkeeper::Config;
/// let config = Config::from_toml("system = \"shop\"\nurl = \"memory:\"", "here")?;
/// let locker = lockkeeper::init_with(&config).await?;
/// assert!(locker.try_lock("shop:nightly").await?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// As for [`init`].
///
/// # Errors
/// As for [`init`].
pub async fn init_with(config: &Config) -> Result<&'static Locker> {
    process::set_default(config.connect().await?, config.system())?;
    process::default_locker()
}

/// [`init`] for programs without a runtime. It blocks this thread until the store answers.
///
/// ```no_run
/// # fn main() -> lockkeeper::Result<()> {
/// lockkeeper::init_blocking()?; // once, where the program begins
/// let guard = lockkeeper::default_locker()?.lock("shop:nightly").blocking()?;
/// guard.release_blocking()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`init`].
pub fn init_blocking() -> Result<&'static Locker> {
    init_with_blocking(&Config::load()?)
}

/// [`init_with`] for programs without a runtime.
///
/// ```
/// # fn main() -> lockkeeper::Result<()> {
/// # use lockkeeper::Config;
/// let config = Config::from_toml("system = \"shop\"\nurl = \"memory:\"", "here")?;
/// let locker = lockkeeper::init_with_blocking(&config)?;
/// assert!(locker.try_lock("shop:nightly").blocking()?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`init`].
pub fn init_with_blocking(config: &Config) -> Result<&'static Locker> {
    process::set_default(config.connect_blocking()?, config.system())?;
    process::default_locker()
}
