//! The library, the command and what can be taken without them compile with every feature alone, with all, and with none.

use serde_json::Value;

use crate::shell;

/// The crates whose features people choose. Those of the other stores come along: they have TLS or not.
const CRATES: &[&str] = &[
    "lockkeeper",
    "lockkeeper-cli",
    "lockkeeper-cache",
    "lockkeeper-core",
    "lockkeeper-redis",
    "lockkeeper-sql",
    "lockkeeper-twophase",
];
/// Not features of their own but sets of others.
const SETS: &[&str] = &["default", "full"];
/// The test that asks the command for what is not built in, and the sets for which its answers differ.
const ANSWERS: &[&[&str]] = &[&[], &["--no-default-features"]];

/// The choices in which most was found: nothing at all, and each of two stores that share a crate.
const SOME: &[(&str, &str)] =
    &[("lockkeeper", ""), ("lockkeeper", "mysql"), ("lockkeeper", "postgres"), ("lockkeeper-cli", "")];

/// Lint a few combinations: all of them take five minutes.
pub(crate) fn check_some() -> Result<(), String> {
    SOME.iter().try_for_each(|(name, features)| lint(name, features))
}

/// Lint every combination, then ask the command for what it lacks.
pub(crate) fn check() -> Result<(), String> {
    let text = shell::output("cargo", &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|it| format!("cargo metadata: {it}"))?;
    for name in CRATES {
        for features in combinations(&names(&metadata, name)?) {
            lint(name, &features)?;
        }
    }
    for set in ANSWERS {
        let args =
            [&["test", "--quiet", "--package", "lockkeeper-cli", "--test", "cli_features"], *set].concat();
        shell::step("answers of the command", "cargo", &args)?;
    }
    Ok(())
}

fn lint(name: &str, features: &str) -> Result<(), String> {
    let shown = if features.is_empty() { "no feature" } else { features };
    let args = ["clippy", "--quiet", "--package", name, "--no-default-features", "--features", features];
    let strict = [&args[..], &["--", "-D", "warnings"]].concat();
    shell::step(&format!("{name} with {shown}"), "cargo", &strict)
}

/// The features of a crate, without those that only name others.
fn names(metadata: &Value, name: &str) -> Result<Vec<String>, String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.into_iter().find(|it| it["name"] == name);
    let features = package.and_then(|it| it["features"].as_object());
    let features = features.ok_or_else(|| format!("there is no crate `{name}`"))?;
    Ok(features.keys().filter(|it| !SETS.contains(&it.as_str())).cloned().collect())
}

/// None, each alone, all.
fn combinations(names: &[String]) -> Vec<String> {
    let mut all = vec![String::new()];
    all.extend(names.iter().cloned());
    all.push(names.join(","));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_feature_is_tried_alone_with_all_and_not_at_all() {
        let metadata = json!({ "packages": [
            { "name": "a", "features": { "x": [], "default": ["x"], "y": [], "full": ["x", "y"] } },
        ] });
        let names = names(&metadata, "a").unwrap();
        assert_eq!(combinations(&names), ["", "x", "y", "x,y"]);
        assert!(super::names(&metadata, "b").is_err());
    }
}
