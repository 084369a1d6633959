//! No file of the core imports one that imports it, however far around.

use std::collections::BTreeMap;
use std::path::Path;

/// Which files each file imports, by their modules.
type Imports = BTreeMap<String, Vec<String>>;

/// `files` are the paths below the core's `src`, with their texts.
pub(super) fn check(files: &[(String, String)], complaints: &mut Vec<String>) {
    let modules: Vec<String> = files.iter().map(|it| module_of(&it.0)).collect();
    let mut imports = Imports::new();
    for ((_, text), module) in files.iter().zip(&modules) {
        // What only declares modules and passes names on belongs to no one's way.
        if module.is_empty() || text.lines().all(is_signpost) {
            continue;
        }
        imports.insert(module.clone(), imported(text, &modules));
    }
    if let Some(circle) = circle(&imports) {
        complaints.push(format!("lockkeeper-core: a circle of imports: {}", circle.join(" → ")));
    }
}

fn is_signpost(line: &str) -> bool {
    let line = line.trim();
    let ends = ["", "}", "};"];
    ends.contains(&line)
        || ["//", "#", "mod ", "pub mod ", "pub use ", "pub(crate) mod "]
            .iter()
            .any(|it| line.starts_with(it))
}

/// `engine/queue.rs` is `engine::queue`.
fn module_of(path: &str) -> String {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" {
        String::new()
    } else {
        Path::new(path).iter().map(|it| it.to_string_lossy()).collect::<Vec<_>>().join("::")
    }
}

/// The modules that a text names behind `crate::`, its tests left out.
fn imported(text: &str, modules: &[String]) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String =
        code.lines().filter(|it| !it.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found: Vec<String> = Vec::new();
    for after in code.split("crate::").skip(1) {
        let path: String =
            after.chars().take_while(|it| it.is_alphanumeric() || *it == '_' || *it == ':').collect();
        let named = modules.iter().filter(|it| path == **it || path.starts_with(&format!("{it}::")));
        if let Some(module) = named.max_by_key(|it| it.len())
            && !found.contains(module)
        {
            found.push(module.clone());
        }
    }
    found
}

/// Some circle, as the way around it.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    imports.keys().find_map(|start| {
        let mut way = vec![start.clone()];
        around(imports, start, &mut way, &mut Vec::new()).then_some(way)
    })
}

fn around(imports: &Imports, start: &str, way: &mut Vec<String>, seen: &mut Vec<String>) -> bool {
    let last = way.last().cloned().unwrap_or_default();
    for next in imports.get(&last).into_iter().flatten() {
        if next == start {
            way.push(next.clone());
            return true;
        }
        if !seen.contains(next) {
            seen.push(next.clone());
            way.push(next.clone());
            if around(imports, start, way, seen) {
                return true;
            }
            way.pop();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::check;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect();
        let mut complaints = Vec::new();
        check(&files, &mut complaints);
        complaints
    }

    #[test]
    fn a_circle_is_told_with_its_way() {
        let found = complaints(&[
            ("a.rs", "use crate::b::c::C;\nstruct A;"),
            ("b/mod.rs", "//! B.\npub mod c;\n"),
            ("b/c.rs", "use crate::d::{self, D};\nstruct C;"),
            ("d.rs", "fn d() { crate::a::a() }"),
        ]);
        assert_eq!(found, ["lockkeeper-core: a circle of imports: a → b::c → d → a"]);
    }

    #[test]
    fn one_way_is_no_circle_and_neither_are_tests_comments_and_signposts() {
        let found = complaints(&[
            ("lib.rs", "pub mod a;\npub use a::A;\n"),
            ("a.rs", "use crate::b::B;\nstruct A;"),
            ("b.rs", "/// As in crate::a::A.\nstruct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
