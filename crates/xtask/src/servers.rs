//! Servers that this machine's Debian does not have: taken from a newer suite into `target/servers`, the system untouched.
//!
//! Each server has a folder with its programs, their libraries and their loader, and a `bin/` in which the programs
//! have the names by which `lockkeeper-servers` calls them. A folder appears under its name when it is complete, so that an
//! interrupted run leaves nothing that looks finished.

mod apt;
mod unpack;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::shell;

/// A server of a newer suite.
struct Server {
    name: &'static str,
    suite: &'static str,
    packages: &'static [&'static str],
    /// The name that `lockkeeper-servers` uses, and the file below the server's folder.
    programs: &'static [(&'static str, &'static str)],
}

/// What can be had. The names of programs are those of the Debian release that `lockkeeper-servers` was written for.
const SERVERS: &[Server] = &[
    Server {
        name: "mysql",
        suite: "sid",
        packages: &["mysql-server-core"],
        programs: &[("mysqld", "usr/sbin/mysqld")],
    },
    Server {
        name: "mariadb",
        suite: "sid",
        packages: &["mariadb-server-core", "mariadb-client-core"],
        programs: &[
            ("mariadbd", "usr/sbin/mariadbd"),
            ("mariadb-install-db", "usr/bin/mariadb-install-db"),
            ("mariadb", "usr/bin/mariadb"),
        ],
    },
    Server {
        name: "redis",
        suite: "sid",
        packages: &["redis-server", "redis-tools", "redis-sentinel"],
        programs: &[
            ("redis-server", "usr/bin/redis-server"),
            ("redis-cli", "usr/bin/redis-cli"),
            ("redis-sentinel", "usr/bin/redis-sentinel"),
        ],
    },
    Server {
        name: "valkey",
        suite: "sid",
        packages: &["valkey-server", "valkey-tools", "valkey-sentinel"],
        programs: &[
            ("redis-server", "usr/bin/valkey-server"),
            ("redis-cli", "usr/bin/valkey-cli"),
            ("redis-sentinel", "usr/bin/valkey-sentinel"),
        ],
    },
    Server {
        name: "postgresql-17",
        suite: "trixie",
        packages: &["postgresql-17"],
        programs: &[
            ("postgres", "usr/lib/postgresql/17/bin/postgres"),
            ("initdb", "usr/lib/postgresql/17/bin/initdb"),
            ("pg_basebackup", "usr/lib/postgresql/17/bin/pg_basebackup"),
            ("psql", "usr/lib/postgresql/17/bin/psql"),
        ],
    },
    Server {
        name: "postgresql-18",
        suite: "sid",
        packages: &["postgresql-18"],
        programs: &[
            ("postgres", "usr/lib/postgresql/18/bin/postgres"),
            ("initdb", "usr/lib/postgresql/18/bin/initdb"),
            ("pg_basebackup", "usr/lib/postgresql/18/bin/pg_basebackup"),
            ("psql", "usr/lib/postgresql/18/bin/psql"),
        ],
    },
    Server {
        name: "etcd",
        suite: "sid",
        packages: &["etcd-server", "etcd-client"],
        programs: &[("etcd", "usr/bin/etcd"), ("etcdctl", "usr/bin/etcdctl")],
    },
    Server {
        name: ZOOKEEPER,
        suite: "sid",
        packages: &["zookeeper", "libslf4j-java", "libnetty-java"],
        programs: &[("zookeeper.jar", JARS), ("slf4j-simple.jar", JARS), ("netty-codec.jar", JARS)],
    },
];

/// Not programs but jars: this machine's Java runs them.
const ZOOKEEPER: &str = "zookeeper";
/// Where they are in the packages.
const JARS: &str = "usr/share/java";

/// Where `lockkeeper-servers` looks for a database to copy, beside the folder of MySQL's programs.
const DATABASE: &str = "empty-database";

/// Get the servers with these names, unless they are here.
pub(crate) fn get(names: &[&str]) -> Result<(), String> {
    let wanted = names.iter().map(|it| server(it)).collect::<Result<Vec<_>, _>>()?;
    if wanted.is_empty() {
        return Err(format!("name the servers: {}", known()));
    }
    let folder = shell::root().join("target/servers");
    fs::create_dir_all(&folder).map_err(|it| of(&folder, &it))?;
    // Two runs at once would write the same files.
    let lock = File::create(folder.join(".lock")).map_err(|it| of(&folder, &it))?;
    lock.lock().map_err(|it| of(&folder, &it))?;
    for server in wanted {
        let home = folder.join(server.name);
        if !is_complete(server, &home) {
            shell::say(&format!("xtask: getting {} from Debian's {}", server.name, server.suite));
            fetch(server, &folder).map_err(|it| advice(server, &it))?;
        }
        shell::say(&format!("xtask: {} is in {}", server.name, home.join("bin").display()));
    }
    remove(&folder.join(".apt"))
}

/// MySQL is part of the ordinary tests, unless the one to test is named by its setting.
pub(crate) fn get_for_tests() -> Result<(), String> {
    if std::env::var_os("LOCKKEEPER_TEST_MYSQL").is_some() { Ok(()) } else { get(&["mysql"]) }
}

fn known() -> String {
    SERVERS.iter().map(|it| it.name).collect::<Vec<_>>().join(", ")
}

fn server(name: &str) -> Result<&'static Server, String> {
    let found = SERVERS.iter().find(|it| it.name == name);
    found.ok_or_else(|| format!("no server is called `{name}`; these can be had: {}", known()))
}

fn advice(server: &Server, error: &str) -> String {
    let setting = server.name.split('-').next().unwrap_or(server.name).to_uppercase();
    let setting = setting.replace("POSTGRESQL", "POSTGRES").replace("VALKEY", "REDIS");
    format!(
        "{} could not be had: {error}\nhint: run it again (what was loaded is kept), or install the server yourself \
         and name the folder of its programs in LOCKKEEPER_TEST_{setting}",
        server.name
    )
}

fn is_complete(server: &Server, home: &Path) -> bool {
    let database = server.name != "mysql" || home.join(DATABASE).is_dir();
    database && server.programs.iter().all(|it| home.join("bin").join(it.0).is_file())
}

fn fetch(server: &Server, folder: &Path) -> Result<(), String> {
    let apt = apt::Apt::of_suite(server.suite, &folder.join(".apt"))?;
    let packages = apt.download(server.packages)?;
    let (part, home) = (folder.join(format!("{}.part", server.name)), folder.join(server.name));
    remove(&part)?;
    remove(&home)?;
    unpack::all(&packages, &part)?;
    if server.name == ZOOKEEPER {
        let (jars, bin) = (part.join(JARS), part.join("bin"));
        fs::rename(&jars, &bin).map_err(|it| of(&jars, &it))?;
        ["usr", "lib", "lib64", "etc", "var", "sbin"].iter().try_for_each(|it| remove_any(&part.join(it)))?;
        return fs::rename(&part, &home).map_err(|it| of(&home, &it));
    }
    unpack::prune(&part, server.programs)?;
    unpack::wrap(&part, server.programs)?;
    // The first is the server itself; whatever it lacks, it says so now.
    if let Some((name, _)) = server.programs.first() {
        shell::output(&part.join("bin").join(name).display().to_string(), &["--version"])?;
    }
    if server.name == "mysql" {
        empty_database(&part)?;
    }
    fs::rename(&part, &home).map_err(|it| of(&home, &it))
}

/// MySQL takes seconds to make a database, and every test has its own: they copy this one.
fn empty_database(home: &Path) -> Result<(), String> {
    let at = |name: &str| home.join(name).display().to_string();
    let usr = at("usr");
    let mut args = vec!["--no-defaults".to_owned(), "--initialize-insecure".to_owned()];
    args.extend([format!("--basedir={usr}"), format!("--lc-messages-dir={usr}/share/mysql")]);
    args.extend([format!("--datadir={}", at("new")), "--innodb-redo-log-capacity=16M".to_owned()]);
    if shell::output("id", &["-u"])?.trim() == "0" {
        args.push("--user=root".to_owned());
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    shell::step("making an empty database", &at("bin/mysqld"), &args)?;
    // It is mostly holes.
    shell::output("cp", &["-r", "--sparse=always", &at("new"), &at(DATABASE)])?;
    // Every server has an identity of its own.
    let identity = home.join(DATABASE).join("auto.cnf");
    fs::remove_file(&identity).map_err(|it| of(&identity, &it))?;
    remove(&home.join("new"))
}

/// The same for what may be a link.
fn remove_any(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => remove(path),
        Ok(_) => fs::remove_file(path).map_err(|it| of(path, &it)),
        Err(_) => Ok(()),
    }
}

/// Whether there is such a server.
#[cfg(test)]
pub(crate) fn is_known(name: &str) -> bool {
    server(name).is_ok()
}

/// What a server that is here says about itself, in few words.
pub(crate) fn version(name: &str) -> Result<String, String> {
    let server = server(name)?;
    let bin = shell::root().join("target/servers").join(name).join("bin");
    let (first, _) = server.programs.first().ok_or("a server without programs")?;
    let program = bin.join(first);
    if name == ZOOKEEPER {
        // `zookeeper.jar` leads to `zookeeper-3.9.6.jar`.
        let file = program.canonicalize().map_err(|it| of(&program, &it))?;
        return Ok(file.file_stem().unwrap_or_default().to_string_lossy().replace('-', " "));
    }
    let said = shell::output(&program.display().to_string(), &["--version"])?;
    Ok(short(said.lines().next().unwrap_or_default()))
}

/// The first words of what a program says, to its number. Some begin with the path by which they were called.
fn short(said: &str) -> String {
    let mut words = said.split_whitespace();
    let mut kept = vec![words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default()];
    for word in words {
        kept.push(word);
        if word.contains(|it: char| it.is_ascii_digit()) {
            break;
        }
    }
    kept.join(" ").replace('|', "/")
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(of(folder, &error)),
        _ => Ok(()),
    }
}

fn of(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Every file and link below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|it| of(folder, &it))? {
        let entry = entry.map_err(|it| of(folder, &it))?;
        let is_folder = entry.file_type().map_err(|it| of(folder, &it))?.is_dir();
        if is_folder {
            found.extend(files(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_known_is_told_with_those_that_are() {
        let error = get(&["mysql", "oracle"]).unwrap_err();
        assert!(error.contains("`oracle`") && error.contains("mysql, mariadb, redis"), "{error}");
    }

    #[test]
    fn advice_names_the_setting_that_the_tests_read() {
        let kit = include_str!("../../lockkeeper-servers/src/process/installed.rs");
        for server in SERVERS {
            let text = advice(server, "no network");
            let setting = text.split(' ').find(|it| it.starts_with("LOCKKEEPER_TEST_")).unwrap();
            assert!(kit.contains(&format!("\"{setting}\"")), "no server of the tests reads {setting}");
        }
    }

    #[test]
    fn a_version_is_a_name_and_a_number_without_a_path() {
        assert_eq!(short("/a/b/mysqld  Ver 9.7.4-2 for Linux on x86_64"), "mysqld Ver 9.7.4-2");
        assert_eq!(
            short("Redis server v=8.0.6 sha=00000000:0 malloc=jemalloc-5.3.1"),
            "Redis server v=8.0.6"
        );
        assert_eq!(short("postgres (PostgreSQL) 17.11 (Debian 17.11-0)"), "postgres (PostgreSQL) 17.11");
        assert_eq!(short(""), "");
    }

    #[test]
    fn a_server_that_is_there_in_part_is_not_there() {
        let home = std::env::temp_dir().join(format!("lockkeeper-xtask-{}", std::process::id()));
        let server = server("redis").unwrap();
        assert!(!is_complete(server, &home));
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("bin/redis-server"), "").unwrap();
        assert!(!is_complete(server, &home));
        fs::write(home.join("bin/redis-cli"), "").unwrap();
        fs::write(home.join("bin/redis-sentinel"), "").unwrap();
        assert!(is_complete(server, &home));
        remove(&home).unwrap();
    }
}
