//! What is not built in is named, with the command that installs it. `cargo xtask features` runs this with several sets.

mod common;

use common::{failed, lockkeeper, output, text};

/// URLs that lead nowhere, the feature that is named if it is missing, and whether it is built in.
const STORES: [(&str, &str, bool); 9] = [
    ("sqlite:/proc/nowhere/locks.db", "sqlite", cfg!(feature = "sqlite")),
    ("redis://127.0.0.1:1", "redis", cfg!(feature = "redis")),
    ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "redlock", cfg!(feature = "redlock")),
    ("postgres://127.0.0.1:1/x", "postgres", cfg!(feature = "postgres")),
    ("mysql://127.0.0.1:1/x", "mysql", cfg!(feature = "mysql")),
    ("etcd://127.0.0.1:1", "etcd", cfg!(feature = "etcd")),
    ("etcds://127.0.0.1:1?ca=/proc/nowhere", ETCDS, cfg!(all(feature = "etcd", feature = "tls"))),
    ("zookeeper://127.0.0.1:1", "zookeeper", cfg!(feature = "zookeeper")),
    ("zookeepers://127.0.0.1:1?ca=/proc/nowhere", "zookeeper-tls", cfg!(feature = "zookeeper-tls")),
];

/// As long as nothing is published.
const INSTALL: &str =
    "cargo install --git https://github.com/lockkeeper/lockkeeper lockkeeper-cli --features ";

/// It needs two features; the store is named first.
const ETCDS: &str = if cfg!(feature = "etcd") { "tls" } else { "etcd" };

#[test]
fn a_store_that_is_not_built_in_is_named_with_the_command_that_installs_it() {
    for (url, feature, is_built) in STORES {
        let end = output(&mut lockkeeper(["--url", url, "ls"]));
        if is_built {
            let said = text(&end.stderr);
            assert!(!said.contains("built without"), "{url}: {said}");
            continue;
        }
        let said = failed(&end, 64);
        assert!(said.contains("built without") && said.contains(&format!("`{feature}`")), "{url}: {said}");
        let (_, hint) = said.split_once("\nhint: install it with `cargo install --git ").unwrap();
        assert!(hint.contains(feature) && hint.contains("--features full"), "{url}: {said}");
    }
}

#[test]
fn the_server_is_there_or_says_how_to_get_it() {
    for args in [&["serve", "--help"][..], &["serve", "--listen", "nowhere"]] {
        let end = output(&mut lockkeeper(args));
        if cfg!(feature = "serve") {
            assert!(!text(&end.stderr).contains("built without"), "{args:?}: {end:?}");
        } else {
            let said = failed(&end, 64);
            assert!(said.contains(INSTALL) && said.contains("serve"), "{said}");
        }
    }
}

#[test]
fn two_phase_commit_is_there_or_says_how_to_get_it() {
    let end = output(&mut lockkeeper(["2pc", "ls", "--log", "nowhere:"]));
    if cfg!(feature = "twophase") {
        assert!(!text(&end.stderr).contains("built without"), "{end:?}");
    } else {
        let said = failed(&end, 64);
        assert!(said.contains(INSTALL) && said.contains("twophase"), "{said}");
    }
}

#[test]
fn the_demo_is_there_or_says_how_to_get_it() {
    for args in [&["demo"][..], &["demo", "--help"], &["demo", "flash-sale", "--buyers", "-x"]] {
        let end = output(&mut lockkeeper(args));
        if cfg!(feature = "demo") {
            assert!(!text(&end.stderr).contains("built without"), "{args:?}: {end:?}");
        } else {
            let said = failed(&end, 64);
            assert!(said.contains(INSTALL) && said.contains("demo"), "{said}");
        }
    }
}

#[test]
fn the_torture_is_there_or_says_how_to_get_it() {
    for args in [&["torture", "--help"][..], &["torture", "--processes", "x"]] {
        let end = output(&mut lockkeeper(args));
        if cfg!(feature = "torture") {
            assert!(!text(&end.stderr).contains("built without"), "{args:?}: {end:?}");
        } else {
            let said = failed(&end, 64);
            assert!(said.contains("--features ") && said.contains("torture"), "{said}");
        }
    }
}
