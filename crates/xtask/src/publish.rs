//! Every public crate can be packed, says what it is, and carries its licence.

mod packed;

use std::path::Path;

use serde_json::Value;

use crate::shell;

/// How a reference marks what is there with a feature only; only the nightly compiler knows it, which docs.rs has.
const MARKS: &str = "#![cfg_attr(docsrs, feature(doc_cfg))]";
/// What a package must have beside its code.
const FILES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// What its manifest must say.
const FIELDS: &[&str] = &["description", "documentation", "license", "readme", "repository", "rust_version"];
/// As the registry of crates has it.
const KEYWORDS_MAX: usize = 5;

/// Make the reference of every public library as docs.rs does: with the nightly compiler, all features and their marks.
pub(crate) fn reference() -> Result<(), String> {
    let text = shell::output("cargo", &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|it| format!("cargo metadata: {it}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let libraries = packages.iter().filter(|it| is_public(it) && is_library(it));
    let named = libraries.filter_map(|it| it["name"].as_str()).flat_map(|it| ["--package", it]);
    let build = ["run", "nightly", "cargo", "doc", "--no-deps", "--all-features"];
    let args: Vec<&str> = build.into_iter().chain(named).collect();
    shell::step_with("reference", "rustup", &args, "RUSTDOCFLAGS", "--cfg docsrs -D warnings")
}

/// Check the manifests, pack all public crates as one release would, and compile what was packed.
pub(crate) fn check() -> Result<(), String> {
    let text = shell::output("cargo", &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|it| format!("cargo metadata: {it}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let (public, private): (Vec<_>, Vec<_>) = packages.iter().partition(|it| is_public(it));
    let bad: Vec<String> = public.iter().flat_map(|it| complaints(it)).collect();
    if !bad.is_empty() {
        return Err(format!("not ready to publish:\n  {}", bad.join("\n  ")));
    }
    let left_out: Vec<&str> = private.iter().filter_map(|it| it["name"].as_str()).collect();
    let left_out: Vec<&str> = left_out.iter().flat_map(|it| ["--exclude", it]).collect();
    // What is not committed yet is packed too: a test runs before a commit.
    let pack = ["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty", "--offline"];
    shell::step("packages", "cargo", &[&pack[..], &left_out].concat())?;
    let order = in_order(&public);
    shell::say(&format!("xtask: to publish in this order: {}", order.join(", ")));
    // All have the version of the workspace.
    let version = public.first().and_then(|it| it["version"].as_str()).unwrap_or_default();
    packed::check(&order, version)
}

/// Whether a package may be published: `publish = false` is an empty list of registries.
fn is_public(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|it| !it.is_empty())
}

/// Whether a package has a reference that people read.
fn is_library(package: &Value) -> bool {
    let kinds = package["targets"].as_array().into_iter().flatten().filter_map(|it| it["kind"].as_array());
    kinds.flatten().any(|it| it == "lib" || it == "proc-macro")
}

/// The public packages, each after those that it depends on.
fn in_order<'a>(public: &[&'a Value]) -> Vec<&'a str> {
    let needs = |it: &Value, other: &str| {
        let all = it["dependencies"].as_array().into_iter().flatten();
        all.into_iter().any(|it| it["name"] == other && it["kind"] != "dev")
    };
    let mut left: Vec<(&str, &Value)> =
        public.iter().filter_map(|it| Some((it["name"].as_str()?, *it))).collect();
    let mut order = Vec::new();
    while let Some(at) = left.iter().position(|(_, it)| !left.iter().any(|other| needs(it, other.0))) {
        order.push(left.remove(at).0);
    }
    order
}

/// What keeps a package from being published.
fn complaints(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let folder = package["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
    let mut found: Vec<String> = FIELDS
        .iter()
        .filter(|it| package[**it].as_str().is_none_or(str::is_empty))
        .map(|it| format!("{name}: no `{it}`"))
        .collect();
    for list in ["keywords", "categories"] {
        let count = package[list].as_array().map_or(0, Vec::len);
        if count == 0 || KEYWORDS_MAX < count {
            found.push(format!("{name}: {count} {list}; one to {KEYWORDS_MAX} are allowed"));
        }
    }
    if is_library(package) && package["metadata"]["docs"]["rs"]["all-features"] != true {
        found.push(format!(
            "{name}: its reference would be without its features; see `package.metadata.docs.rs`"
        ));
    }
    let root = folder.map(|it| std::fs::read_to_string(it.join("src/lib.rs")).unwrap_or_default());
    let features =
        package["features"].as_object().map_or(0, |it| it.keys().filter(|it| *it != "default").count());
    if is_library(package) && 0 < features && !root.is_some_and(|it| it.contains(MARKS)) {
        found.push(format!(
            "{name}: its reference does not say what needs a feature; write `{MARKS}` into lib.rs"
        ));
    }
    for file in FILES {
        if !folder.is_some_and(|it| it.join(file).is_file()) {
            found.push(format!("{name}: no file `{file}` beside its manifest"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_package_lacks_is_noticed() {
        let mut package = json!({
            "name": "x", "description": "d", "documentation": "d", "license": "l", "readme": "README.md",
            "repository": "r", "rust_version": "1.0", "keywords": ["k"], "categories": ["c"],
            "targets": [{ "kind": ["lib"] }], "metadata": { "docs": { "rs": { "all-features": true } } },
            "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/../lockkeeper/Cargo.toml"),
        });
        assert_eq!(complaints(&package), [""; 0]);
        package["repository"] = Value::Null;
        package["metadata"] = Value::Null;
        package["keywords"] = json!(["1", "2", "3", "4", "5", "6"]);
        package["manifest_path"] = json!("/nowhere/Cargo.toml");
        assert_eq!(complaints(&package).len(), 3 + FILES.len());
    }

    #[test]
    fn a_library_with_features_says_what_needs_them() {
        let complaints = |folder: &str, features: Value| {
            let manifest = format!("{}/../{folder}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
            let package =
                json!({ "targets": [{ "kind": ["lib"] }], "features": features, "manifest_path": manifest });
            complaints(&package).iter().filter(|it| it.contains("doc_cfg")).count()
        };
        assert_eq!(complaints("lockkeeper-etcd", json!({ "default": [], "tls": [] })), 0);
        assert_eq!(complaints("lockkeeper-fork", json!({ "tls": [] })), 1);
        assert_eq!(complaints("lockkeeper-fork", json!({ "default": [] })), 0);
    }

    #[test]
    fn what_others_need_is_published_first() {
        let package = |name: &str, needs: &[&str]| {
            let needs: Vec<_> = needs.iter().map(|it| json!({ "name": it, "kind": null })).collect();
            json!({ "name": name, "dependencies": needs })
        };
        let (all, core, store) =
            (package("all", &["store", "core"]), package("core", &["tokio"]), package("store", &["core"]));
        assert_eq!(in_order(&[&all, &store, &core]), ["core", "store", "all"]);
    }

    #[test]
    fn only_what_may_be_published_is_asked_for_it() {
        assert!(is_public(&json!({ "publish": null })));
        assert!(!is_public(&json!({ "publish": [] })));
    }
}
