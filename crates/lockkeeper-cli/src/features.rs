//! What this program was built with, and how to get the rest.

use std::sync::OnceLock;

use crate::exit::{self, Failure, Result};

/// The features of this crate that a URL with this scheme needs.
const NEEDED: &[(&str, &[&str])] = &[
    ("sqlite", &["sqlite"]),
    ("redis", &["redis"]),
    ("rediss", &["redis", "tls"]),
    ("redis+sentinel", &["redis"]),
    ("rediss+sentinel", &["redis", "tls"]),
    ("redis+cluster", &["redis"]),
    ("rediss+cluster", &["redis", "tls"]),
    ("redlock", &["redlock"]),
    ("redlocks", &["redlock", "tls"]),
    ("postgres", &["postgres"]),
    ("postgresql", &["postgres"]),
    ("mysql", &["mysql"]),
    ("mariadb", &["mysql"]),
    ("etcd", &["etcd"]),
    ("etcds", &["etcd", "tls"]),
    ("zookeeper", &["zookeeper"]),
    ("zookeepers", &["zookeeper-tls"]),
];

/// Each feature, whether `cargo install` builds it unasked, and whether it is built in.
const ALL: &[(&str, bool, bool)] = &[
    ("demo", false, cfg!(feature = "demo")),
    ("etcd", false, cfg!(feature = "etcd")),
    ("mysql", true, cfg!(feature = "mysql")),
    ("postgres", true, cfg!(feature = "postgres")),
    ("redis", true, cfg!(feature = "redis")),
    ("redlock", true, cfg!(feature = "redlock")),
    ("serve", false, cfg!(feature = "serve")),
    ("sqlite", true, cfg!(feature = "sqlite")),
    ("tls", true, cfg!(feature = "tls")),
    ("torture", false, cfg!(feature = "torture")),
    ("twophase", false, cfg!(feature = "twophase")),
    ("zookeeper", false, cfg!(feature = "zookeeper")),
    ("zookeeper-tls", false, cfg!(feature = "zookeeper-tls")),
];

/// The version, and what was built in: the first thing to tell in a report.
pub(crate) fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let of = |built| -> Vec<&str> { ALL.iter().filter(|it| it.2 == built).map(|it| it.0).collect() };
        let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let (built, not) = (list(of(true)), list(of(false)));
        format!("{}\nfeatures: {built}\nnot built in: {not}", env!("CARGO_PKG_VERSION"))
    })
}

/// Whether the store behind this URL is built in.
///
/// # Errors
/// What is missing, and the command that installs it.
pub(crate) fn check(url: &str) -> Result<()> {
    let scheme = url.split_once(':').map_or("", |it| it.0);
    let needed = NEEDED.iter().find(|it| it.0 == scheme).map_or(&[][..], |it| it.1);
    let missing: Vec<&str> =
        needed.iter().copied().filter(|name| !ALL.iter().any(|it| it.0 == *name && it.2)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(lacking(&format!("stores with `{scheme}:`"), &missing))
}

/// This program can do something only with these features.
pub(crate) fn lacking(what: &str, features: &[&str]) -> Failure {
    let names: Vec<_> = features.iter().map(|it| format!("`{it}`")).collect();
    let word = if features.len() == 1 { "feature" } else { "features" };
    let text = format!("this `lockkeeper` was built without {what}: the {word} {}", names.join(" and "));
    Failure::new(exit::USAGE, text).or_hint(|| how_to_get(features))
}

/// The command that installs this program with what it has beyond the usual, and with what it lacks.
fn how_to_get(missing: &[&str]) -> String {
    let kept = ALL.iter().filter(|(_, is_default, is_built)| *is_built && !is_default).map(|it| it.0);
    let wanted: Vec<&str> = kept.chain(missing.iter().copied()).collect();
    // Nothing is published yet: the name alone would install what a stranger may have put there.
    format!(
        "install it with `cargo install --git https://github.com/lockkeeper/lockkeeper lockkeeper-cli --features {}`, \
         or everything with `--features full`",
        wanted.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = include_str!("../Cargo.toml");

    /// The value of a feature in the manifest.
    fn declared(name: &str) -> Option<&str> {
        let (_, features) = MANIFEST.split_once("[features]\n")?;
        let (features, _) = features.split_once("\n\n")?;
        features.lines().find_map(|it| it.strip_prefix(&format!("{name} = ")))
    }

    #[test]
    fn the_list_is_that_of_the_manifest() {
        let default = declared("default").unwrap();
        let full = declared("full").unwrap();
        for (name, is_default, _) in ALL {
            assert!(declared(name).is_some(), "{name}");
            assert_eq!(default.contains(&format!("\"{name}\"")), *is_default, "{name}");
            assert!(*is_default || full.contains(&format!("\"{name}\"")), "{name} is part of all");
        }
        let count = |text: &str| text.matches('"').count() / 2;
        assert_eq!(count(default) + count(full), ALL.len() + 1, "no more than these, and `default` itself");
        for (scheme, needed) in NEEDED {
            assert!(needed.iter().all(|it| ALL.iter().any(|known| known.0 == *it)), "{scheme}");
        }
    }

    #[test]
    fn a_scheme_that_is_built_in_or_unknown_is_left_to_the_library() {
        for url in ["memory:", "teapot://x", "locks.db", ""] {
            assert!(check(url).is_ok(), "{url}");
        }
        assert_eq!(check("sqlite:x").is_ok(), cfg!(feature = "sqlite"));
    }

    #[test]
    fn what_is_lacking_comes_with_the_command_that_installs_it() {
        let lines = lacking("tea", &["etcd", "tls"]).lines();
        assert!(lines.contains("built without tea: the features `etcd` and `tls`"), "{lines}");
        assert!(
            lines.contains(
                "cargo install --git https://github.com/lockkeeper/lockkeeper lockkeeper-cli --features "
            ),
            "{lines}"
        );
        assert!(lines.contains("etcd,tls`, or everything with `--features full`"), "{lines}");
    }
}
