//! Where a text leads its reader is somewhere: a page that exists, and a program that is ours. What a workflow names is there, and
//! all that must be.

use std::fs;
use std::path::Path;

use super::files;

/// What somebody else could put on the registry, as long as we have not.
const UNPUBLISHED: &[&str] = &["cargo install lockkeeper-cli", "lockkeeper = { version = "];
/// And what is to be written when we have.
const REPOSITORY: &[&str] = &[
    "cargo install --git https://github.com/lockkeeper",
    "lockkeeper = { git = \"https://github.com/lockkeeper",
];
/// Of the past and of the future; and this.
const ELSEWHERE: &[&str] = &["CHANGELOG.md", "CONTRIBUTING.md", "docs/decisions/", "crates/xtask/"];
/// What an installed program says of itself names pages as everybody can read them. Stores name those of the repository, and
/// the command makes addresses of them.
const COMMAND: &str = "crates/lockkeeper-cli/src/";
const FOLDERS: &[&str] = &["docs/backends/", "docs/concepts/", "docs/guides/"];

/// Where all that is published is built by the oldest Rust that is promised.
const OLDEST: &str = ".github/workflows/test.yml";

pub(super) fn check(root: &Path, complaints: &mut Vec<String>) {
    let manifests = files(&root.join("crates"), "toml");
    let manifests: Vec<String> = manifests
        .iter()
        .filter(|it| it.ends_with("Cargo.toml"))
        .filter_map(|it| fs::read_to_string(it).ok())
        .collect();
    oldest(&fs::read_to_string(root.join(OLDEST)).unwrap_or_default(), &manifests, complaints);
    for file in files(&root.join(".github/workflows"), "yml") {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        commands(&name, &fs::read_to_string(&file).unwrap_or_default(), complaints);
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let is_published = !readme.contains("not yet published");
    for file in files(root, "md").into_iter().chain(files(&root.join("crates"), "rs")) {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if ELSEWHERE.iter().any(|it| name.starts_with(it)) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        install(&name, &text, is_published, complaints);
        if file.extension().is_some_and(|it| it == "rs") {
            pages(&name, &text, |it| root.join(it).exists(), complaints);
        }
    }
}

/// Each crate that is published is among those that the oldest Rust builds.
fn oldest(workflow: &str, manifests: &[String], complaints: &mut Vec<String>) {
    let built = workflow.split_once("oldest-rust:").map(|it| it.1).unwrap_or_default();
    let built: Vec<&str> =
        built.split("--package ").skip(1).filter_map(|it| it.split_whitespace().next()).collect();
    for manifest in manifests.iter().filter(|it| !it.contains("\npublish = false")) {
        let name =
            manifest.split_once("\nname = \"").and_then(|it| it.1.split('"').next()).unwrap_or_default();
        if !built.contains(&name) {
            complaints.push(format!("{OLDEST}: the oldest Rust does not build {name}, which is published"));
        }
    }
}

/// What a workflow runs is a command of ours, and every file has some.
fn commands(name: &str, text: &str, complaints: &mut Vec<String>) {
    let called: Vec<&str> =
        text.split("run: cargo xtask ").skip(1).filter_map(|it| it.split_whitespace().next()).collect();
    if called.is_empty() && !text.contains("run: .ci/run") {
        complaints.push(format!("{name}: it runs nothing of ours"));
    }
    for it in called.iter().filter(|it| !crate::HELP.contains(&format!("\n  {it} "))) {
        complaints.push(format!("{name}: `cargo xtask {it}` is no command"));
    }
}

fn install(name: &str, text: &str, is_published: bool, complaints: &mut Vec<String>) {
    let (wrong, why) = if is_published {
        (REPOSITORY, "it is published: name the registry")
    } else {
        (UNPUBLISHED, "nothing is published yet, and a stranger may take the name: name the repository")
    };
    for it in wrong.iter().filter(|it| text.contains(**it)) {
        complaints.push(format!("{name}: `{it}`: {why}"));
    }
}

fn pages(name: &str, text: &str, exists: impl Fn(&str) -> bool, complaints: &mut Vec<String>) {
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    for (number, line) in shipped.lines().enumerate().filter(|it| !it.1.trim_start().starts_with("//")) {
        for (at, _) in FOLDERS.iter().flat_map(|it| line.match_indices(it)) {
            let end = line[at..].find(".md").map_or(line.len(), |it| at + it + 3);
            let (page, at_line) = (&line[at..end], number + 1);
            if line[at..].contains(".md") && !exists(page) {
                complaints.push(format!("{name}:{at_line}: there is no page {page}"));
            }
            if name.starts_with(COMMAND) && !line[..at].ends_with("/blob/main/") {
                complaints
                    .push(format!("{name}:{at_line}: {page}: who installed the command has no such folder"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_not_installed() {
        let complaints = |text: &str, is_published| {
            let mut complaints = Vec::new();
            install("docs/a.md", text, is_published, &mut complaints);
            complaints.len()
        };
        assert_eq!(complaints("`cargo install lockkeeper-cli --features x`", false), 1);
        assert_eq!(complaints("`cargo install lockkeeper-cli --features x`", true), 0);
        assert_eq!(complaints("lockkeeper = { git = \"https://github.com/lockkeeper/x\" }", false), 0);
        assert_eq!(complaints("lockkeeper = { git = \"https://github.com/lockkeeper/x\" }", true), 1);
    }

    #[test]
    fn a_page_that_nobody_can_read_is_noticed() {
        let complaints = |name: &str, text: &str| {
            let mut complaints = Vec::new();
            pages(name, text, |it| it == "docs/guides/a.md", &mut complaints);
            complaints.len()
        };
        let store = "crates/lockkeeper-sql/src/a.rs";
        assert_eq!(complaints(store, "\"see docs/guides/a.md\""), 0);
        assert_eq!(complaints(store, "\"see docs/guides/b.md\""), 1);
        assert_eq!(complaints(store, "// see docs/guides/b.md"), 0);
        let command = "crates/lockkeeper-cli/src/a.rs";
        assert_eq!(complaints(command, "\"see docs/guides/a.md\""), 1);
        assert_eq!(complaints(command, "https://x/blob/main/docs/guides/a.md"), 0);
    }

    #[test]
    fn what_is_published_is_built_by_the_oldest_rust() {
        let manifests = ["a", "a-b", "private"].map(|it| format!("[package]\nname = \"{it}\"\n"));
        let mut manifests = Vec::from(manifests);
        manifests[2].push_str("publish = false\n");
        let complaints = |workflow: &str| {
            let mut complaints = Vec::new();
            oldest(workflow, &manifests, &mut complaints);
            complaints
        };
        assert_eq!(complaints("  oldest-rust:\n cargo check --package a\n --package a-b\n"), [""; 0]);
        assert_eq!(
            complaints("cargo check --package a\n  oldest-rust:\n cargo check --package a-b\n").len(),
            1
        );
    }

    #[test]
    fn a_workflow_that_runs_what_is_not_there_is_noticed() {
        let complaints = |text: &str| {
            let mut complaints = Vec::new();
            commands("a.yml", text, &mut complaints);
            complaints.len()
        };
        assert_eq!(complaints("      - run: cargo xtask together\n      - run: cargo xtask image\n"), 0);
        assert_eq!(complaints("      - run: cargo xtask togetherness\n"), 1);
        assert_eq!(complaints("      - run: .ci/run\n"), 0);
        assert_eq!(complaints("jobs:\n"), 1);
    }
}
