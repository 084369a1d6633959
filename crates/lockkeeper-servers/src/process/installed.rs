//! What is installed on this machine: programs, and the users that packages bring.
//!
//! Each store has one setting, an environment variable that names the folder of its programs (for ZooKeeper: of its
//! jars). Without it they are where Debian puts them, MySQL's where `cargo xtask test` puts them.

use std::fs;
use std::path::{Path, PathBuf};

use super::KitError;

/// Packages, by what their names begin with, and the setting that names the folder of their programs.
const SETTINGS: &[(&str, &str)] = &[
    ("redis", "LOCKKEEPER_TEST_REDIS"),
    ("mysql", "LOCKKEEPER_TEST_MYSQL"),
    ("mariadb", "LOCKKEEPER_TEST_MARIADB"),
    ("postgresql", "LOCKKEEPER_TEST_POSTGRES"),
    ("pgbouncer", "LOCKKEEPER_TEST_PGBOUNCER"),
    ("etcd", "LOCKKEEPER_TEST_ETCD"),
    ("zookeeper", "LOCKKEEPER_TEST_ZOOKEEPER"),
];

/// Find `program` of the Debian package `package`: in the folder that the setting of its store names, or else in
/// `PATH` and in the folders where Debian keeps servers.
///
/// # Errors
/// If it is not there; the text names the package to install, or the setting.
pub fn find(program: &str, package: &str) -> Result<PathBuf, KitError> {
    if let Some((setting, folder)) = chosen(package).filter(|_| !program.contains('/')) {
        let file = folder.join(program);
        let there = file.is_file().then_some(file);
        return there.ok_or_else(|| not_in(program, setting, &folder));
    }
    let listed = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&listed).chain(["/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from));
    folders.map(|it| it.join(program)).find(|it| it.is_file()).ok_or_else(|| missing(program, package))
}

/// The setting of the store that a package belongs to, and the folder that it names.
pub(crate) fn chosen(package: &str) -> Option<(&'static str, PathBuf)> {
    let (store, setting) = SETTINGS.iter().find(|it| package.starts_with(it.0))?;
    let named = std::env::var_os(setting).map(PathBuf::from);
    // Debian 12 has no MySQL, so that the tests get it themselves.
    let own = (*store == "mysql").then(|| fetched("mysql"));
    named.or(own).map(|it| (*setting, it))
}

/// Where `cargo xtask servers` puts the programs of a server.
fn fetched(server: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    root.join("target/servers").join(server).join("bin")
}

fn not_in(program: &str, setting: &str, folder: &Path) -> KitError {
    let folder = folder.display();
    KitError::new(match std::env::var_os(setting) {
        Some(_) => format!("{setting} names the folder {folder}, and `{program}` is not in it"),
        None => format!(
            "`{program}` is not in {folder}: run `cargo xtask servers mysql` (or `cargo xtask test`), which gets it, \
             or name the folder of its programs in {setting}"
        ),
    })
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
