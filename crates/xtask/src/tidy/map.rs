//! The map in ARCHITECTURE.md names every crate and every file of the core, and nothing that is not there.

use std::path::Path;

/// Files that need no place on a map.
const UNNAMED: &[&str] = &["lib", "mod"];

pub(super) fn check(root: &Path, page: &str, core: &[(String, String)], complaints: &mut Vec<String>) {
    let Some(map) = page.split("## The map").nth(1).and_then(|it| it.split("```").nth(1)) else {
        complaints.push("ARCHITECTURE.md: there is no map".to_owned());
        return;
    };
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    for name in crates.map(|it| it.file_name().to_string_lossy().into_owned()) {
        if !map.contains(&format!("{name}/")) {
            complaints.push(format!("ARCHITECTURE.md: the map lacks crates/{name}"));
        }
    }
    for word in map.split_whitespace().filter(|it| it.starts_with("lockkeeper") && it.ends_with('/')) {
        if !root.join("crates").join(word).exists() {
            complaints.push(format!("ARCHITECTURE.md: the map shows {word}, which is not there"));
        }
    }
    let words: Vec<&str> = map.split(|it: char| !(it.is_alphanumeric() || it == '_')).collect();
    for (path, _) in core {
        let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        if !UNNAMED.contains(&stem) && !words.contains(&stem) {
            complaints.push(format!("ARCHITECTURE.md: the map of the core lacks {path}"));
        }
    }
}
