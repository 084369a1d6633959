//! Installing the real servers that tests start as child processes.

use std::path::Path;

use crate::shell;

/// A file that tells whether a Debian package is there, and the package.
const NEEDED: &[(&[&str], &str)] = &[
    (&["/usr/bin/cc"], "build-essential"),
    (&["/usr/bin/setpriv"], "util-linux"),
    (&["/usr/bin/script"], "bsdutils"),
    (&["/usr/bin/ps", "/bin/ps"], "procps"),
    (&["/usr/bin/redis-server"], "redis-server"),
    (&["/usr/bin/redis-cli"], "redis-tools"),
    (&["/usr/bin/redis-sentinel"], "redis-sentinel"),
    (&["/usr/sbin/mariadbd", "/usr/bin/mariadbd"], "mariadb-server"),
    (&["/usr/bin/mariadb"], "mariadb-client"),
    (&["/usr/lib/postgresql/15/bin/postgres", "/usr/lib/postgresql/17/bin/postgres"], "postgresql"),
    (&["/usr/sbin/pgbouncer"], "pgbouncer"),
    (&["/usr/bin/etcd"], "etcd-server"),
    (&["/usr/bin/etcdctl"], "etcd-client"),
    (&["/usr/share/java/zookeeper.jar"], "zookeeper"),
    (&["/usr/share/java/slf4j-simple.jar"], "libslf4j-java"),
    (&["/usr/share/java/netty-codec.jar"], "libnetty-java"),
    (&["/usr/bin/java"], "default-jre-headless"),
    (&["/usr/bin/promtool"], "prometheus"),
    // Shells whose completion is tried.
    (&["/usr/bin/zsh"], "zsh"),
    (&["/usr/bin/fish"], "fish"),
    // Clients of `lockkeeper serve`.
    (&["/usr/bin/curl"], "curl"),
    (&["/usr/bin/python3"], "python3"),
    (&["/usr/lib/python3/dist-packages/yaml"], "python3-yaml"),
    (&["/usr/bin/node"], "nodejs"),
    (&["/usr/bin/javac"], "default-jdk-headless"),
    // Reads its unit.
    (&["/usr/bin/systemd-analyze"], "systemd"),
    // A browser for its console.
    (&["/usr/bin/chromium"], "chromium"),
    (&["/usr/bin/chromedriver"], "chromium-driver"),
];

/// Install the packages that are missing. Needs root, or `sudo` that asks for no password.
pub(crate) fn missing() -> Result<(), String> {
    let there = |paths: &[&str]| paths.iter().any(|it| Path::new(it).exists());
    let missing: Vec<&str> = NEEDED.iter().filter(|it| !there(it.0)).map(|it| it.1).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    shell::say(&format!("xtask: installing {packages}"));
    let root = shell::output("id", &["-u"])?.trim() == "0";
    let (program, first): (&str, &[&str]) = if root { ("env", &[]) } else { ("sudo", &["-n", "env"]) };
    let apt = |args: &[&str]| {
        let mut words = first.to_vec();
        words.extend(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q"]);
        words.extend(args);
        shell::step("apt-get", program, &words)
    };
    apt(&["update"])
        .and_then(|()| apt(&[&["install", "--no-install-recommends"], missing.as_slice()].concat()))
        .map_err(|it| format!("{it}\nhint: install them yourself, as root: apt-get install {packages}"))
}

#[cfg(test)]
mod tests {
    use super::NEEDED;

    /// Its source is read, because depending on it would make this program wait for every client crate.
    #[test]
    fn every_package_that_the_servers_need_is_installed() {
        let kit = include_str!("../../lockkeeper-servers/src/lib.rs");
        let list = kit.split_once("DEBIAN_PACKAGES: &[&str] = &[").and_then(|it| it.1.split_once("];"));
        let named: Vec<&str> = list.map_or("", |it| it.0).split('"').skip(1).step_by(2).collect();
        assert!(named.contains(&"redis-server"), "the list was found: {named:?}");
        for package in named {
            assert!(NEEDED.iter().any(|it| it.1 == package), "{package} is not installed");
        }
    }
}
