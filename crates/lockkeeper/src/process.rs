//! What the whole process shares: its locker and the name of the system it belongs to.

use std::sync::{Mutex, OnceLock};

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Error, Locker, Result};

/// The first use settles it for good: one process must not take the same lock under two names.
static SYSTEM: OnceLock<Option<String>> = OnceLock::new();
static LOCKER: OnceLock<Locker> = OnceLock::new();
/// Both are set together or not at all.
static SETTING: Mutex<()> = Mutex::new(());

/// Make this the process-wide locker, and this the system whose name begins the id of every
/// `#[locked]` function's lock. Once per process, before the first of those functions is called.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locker = lockkeeper::connect("memory:").await?;
/// lockkeeper::set_default(locker, Some("shop"))?;
/// assert!(lockkeeper::default_locker()?.try_lock("shop:nightly").await?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if there is a process-wide locker already, if locks were taken under another system
/// name before, or if `system` is no system name.
pub fn set_default(locker: Locker, system: Option<&str>) -> Result<()> {
    let _setting = locked(&SETTING);
    if LOCKER.get().is_some() {
        return Err(Error::invalid(
            "the process has its locker already; set it once, where the program begins",
        ));
    }
    system.map_or(Ok(()), check_system)?;
    if SYSTEM.get_or_init(|| system.map(str::to_owned)).as_deref() != system {
        return Err(Error::invalid(
            "locks were taken without this system name before; set the process's locker where the program begins",
        ));
    }
    let _ = LOCKER.set(locker);
    Ok(())
}

/// The process-wide locker.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// assert!(lockkeeper::default_locker().is_err()); // not yet
/// lockkeeper::set_default(lockkeeper::connect("memory:").await?, None)?;
/// let guard = lockkeeper::default_locker()?.lock("orders/42").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if there is none yet.
pub fn default_locker() -> Result<&'static Locker> {
    #[cfg(feature = "test-util")]
    if let Some(scoped) = crate::test::current() {
        return Ok(scoped.locker);
    }
    LOCKER.get().ok_or_else(|| {
        Error::invalid(
            "the process has no locker yet; where the program begins, call `lockkeeper::init().await` to \
             read its configuration or `lockkeeper::set_default`, or name one with `locker = …`",
        )
    })
}

/// The system this process belongs to.
#[cfg_attr(
    not(feature = "macros"),
    expect(dead_code, reason = "only ids that the macro makes begin with it")
)]
pub(crate) fn system() -> Option<&'static str> {
    #[cfg(feature = "test-util")]
    if let Some(scoped) = crate::test::current() {
        return scoped.system;
    }
    SYSTEM.get_or_init(|| None).as_deref()
}

/// A system name begins the ids of locks and ends at their first colon: 1 to 64 bytes, no `:`, no control
/// characters.
pub(crate) fn check_system(name: &str) -> Result<()> {
    if name.is_empty() || 64 < name.len() {
        return Err(Error::invalid(format!("a system name has 1 to 64 bytes, this one {}", name.len())));
    }
    if name.contains(':') || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "the system name {name:?} holds a `:` or a control character; it ends at the first `:` of a lock's id"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_names_end_at_the_first_colon_of_an_id() {
        for name in ["shop", "shop-2", "Läden", &"x".repeat(64)] {
            check_system(name).unwrap();
        }
        for name in ["", "a:b", "a\nb", &"x".repeat(65)] {
            assert!(matches!(check_system(name), Err(Error::Invalid { .. })), "{name:?}");
        }
    }
}
