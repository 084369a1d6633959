//! What is installed on this machine: programs, and the users that packages bring.

use std::fs;
use std::path::PathBuf;

use super::KitError;

/// Find `program` in `PATH` and in the folders where Debian keeps servers.
///
/// # Errors
/// If it is not there; the text names the package to install.
pub fn find(program: &str, package: &str) -> Result<PathBuf, KitError> {
    let listed = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&listed).chain(["/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from));
    folders.map(|it| it.join(program)).find(|it| it.is_file()).ok_or_else(|| missing(program, package))
}

pub(crate) fn missing(program: &str, package: &str) -> KitError {
    KitError::new(format!(
        "`{program}` is not installed: install the Debian package `{package}` \
         (`apt-get install {package}`), or run `cargo xtask test`, which installs all that the tests need"
    ))
}

/// User and group id of a system user. Only the local table is read, where Debian's packages put theirs.
pub(crate) fn ids_of(user: &str, package: &str) -> Result<(u32, u32), KitError> {
    let table = fs::read_to_string("/etc/passwd")?;
    let ids = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == user).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.ok_or_else(|| missing(&format!("the system user {user}"), package))
}
