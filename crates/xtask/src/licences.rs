//! Every dependency must have a licence that ours may be combined with; the bare facade no client, the command no
//! ballast.

use serde_json::Value;

use crate::shell;

/// As in `deny.toml`, which says the same to `cargo deny`.
const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "0BSD",
];

/// Crates that speak to a store; none may come in uninvited.
const CLIENTS: &[&str] = &[
    "redis",
    "rusqlite",
    "tokio-postgres",
    "mysql_async",
    "zookeeper-client",
    "etcd-client",
    "tonic",
    "url",
];

/// What few who install the command need, and everybody would wait for: it has features for them.
const HEAVY: &[&str] =
    &["aws-lc-sys", "axum", "lockkeeper-demo", "lockkeeper-torture", "tonic", "zookeeper-client"];

pub(crate) fn check() -> Result<(), String> {
    let text = shell::output("cargo", &["metadata", "--format-version", "1", "--all-features"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|it| format!("cargo metadata: {it}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let bad: Vec<String> = packages.iter().filter_map(complaint).collect();
    if !bad.is_empty() {
        return Err(format!("licences we may not combine with ours:\n  {}", bad.join("\n  ")));
    }
    uninvited("lockkeeper", CLIENTS)?;
    uninvited("lockkeeper-cli", HEAVY)
}

/// Refuse what the default features of a crate must not pull in.
fn uninvited(package: &str, names: &[&str]) -> Result<(), String> {
    let tree = shell::output(
        "cargo",
        &["tree", "--package", package, "--edges", "normal,build", "--prefix", "none"],
    )?;
    let found = of_these(&tree, names);
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("default features of `{package}` must not pull in {}", found.join(", ")))
}

/// Which of these crates are in a tree that `cargo tree` printed.
fn of_these<'a>(tree: &str, names: &[&'a str]) -> Vec<&'a str> {
    let is_there = |name: &&&str| tree.lines().any(|it| it.split(' ').next() == Some(name));
    names.iter().filter(is_there).copied().collect()
}

/// What is wrong with a package's licence, if anything.
fn complaint(package: &Value) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let licence = package["license"].as_str().unwrap_or("none");
    // One alternative of an OR must be allowed in all its parts.
    let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
    let fine = plain.split(" OR ").any(|one| one.split(" AND ").all(|it| ALLOWED.contains(&it.trim())));
    (!fine).then(|| format!("{name}: {licence}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_combinable_licences_pass() {
        for fine in
            ["MIT OR Apache-2.0", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert_eq!(complaint(&json!({ "name": "x", "license": fine })), None, "{fine}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "none"] {
            assert!(complaint(&json!({ "name": "x", "license": bad })).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_crate_that_nobody_asked_for_is_found_by_its_whole_name() {
        let tree = "lockkeeper v0.1.0 (/x)\nredis v1.8.1\ntonic-prost v0.14.9\n";
        assert_eq!(of_these(tree, &["redis", "tonic", "url"]), ["redis"]);
    }
}
