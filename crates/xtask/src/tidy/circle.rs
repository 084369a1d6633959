//! No file of the core imports one that imports it, however far around.

use std::collections::BTreeMap;
use std::path::Path;

/// Which files each file imports, by their modules.
pub(super) type Imports = BTreeMap<String, Vec<String>>;

/// `files` are the paths below the core's `src`, with their texts.
pub(super) fn check(files: &[(String, String)], complaints: &mut Vec<String>) {
    if let Some(circle) = circle(&imports(files)) {
        complaints.push(format!("lockkeeper-core: a circle of imports: {}", circle.join(" → ")));
    }
}

/// Which files each file imports.
pub(super) fn imports(files: &[(String, String)]) -> Imports {
    let modules: Vec<String> = files.iter().map(|it| module_of(&it.0)).collect();
    let mut imports = Imports::new();
    for ((_, text), module) in files.iter().zip(&modules) {
        // What only declares modules and passes names on belongs to no one's way.
        if module.is_empty() || text.lines().all(is_signpost) {
            continue;
        }
        imports.insert(module.clone(), imported(module, text, &modules));
    }
    imports
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

/// The modules that the text of `here` names behind `crate::`, `self::` and `super::`, its tests left out.
fn imported(here: &str, text: &str, modules: &[String]) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String =
        code.lines().filter(|it| !it.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let above = here.rsplit_once("::").map_or("", |it| it.0);
    let mut found: Vec<String> = Vec::new();
    for (word, from) in [("crate::", ""), ("self::", here), ("super::", above)] {
        for after in behind(&code, word) {
            for path in paths(after) {
                let path = if from.is_empty() { path } else { format!("{from}::{path}") };
                let named = modules.iter().filter(|it| path == **it || path.starts_with(&format!("{it}::")));
                if let Some(module) = named.max_by_key(|it| it.len())
                    && module != here
                    && !found.contains(module)
                {
                    found.push(module.clone());
                }
            }
        }
    }
    found
}

/// What stands behind each such word, which is not the end of a longer one.
fn behind<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_whole =
        |at: usize| !code[..at].ends_with(|it: char| it.is_alphanumeric() || it == '_' || it == ':');
    code.match_indices(word).filter(move |it| is_whole(it.0)).map(move |it| &code[it.0 + word.len()..])
}

/// The paths with which a text begins: one, or all that its braces hold, however deep.
fn paths(text: &str) -> Vec<String> {
    let is_name = |it: char| it.is_alphanumeric() || it == '_' || it == ':';
    let end = text.find(|it| !is_name(it)).unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    if !(rest.starts_with('{') && (first.is_empty() || first.ends_with("::"))) {
        return vec![first.to_owned()];
    }
    pieces(&rest[1..]).into_iter().flat_map(|it| paths(it.trim())).map(|it| format!("{first}{it}")).collect()
}

/// What stands between the commas, up to the brace that closes.
fn pieces(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, it) in text.char_indices() {
        match it {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(&text[from..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
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
    fn a_circle_is_seen_however_its_files_name_each_other() {
        let circle = |import: &str, back: &str| {
            complaints(&[
                ("a.rs", import),
                ("a/b.rs", back),
                ("c.rs", "struct C;"),
                ("c/d.rs", "use crate::a::A;"),
            ])
        };
        let told = ["lockkeeper-core: a circle of imports: a → a::b → a"];
        for import in [
            "use self::b::B;",
            "use crate::{c::C, a::{b::{self, B}}};",
            "use crate::a::{b::B, x};",
            "fn a() { self::b::b() }",
        ] {
            for back in [
                "use super::A;",
                "use crate::a::{A, B};",
                "use crate::{\n    a::A,\n};",
                "fn b() { super::a() }",
            ] {
                assert_eq!(circle(import, back), told, "{import} and {back}");
            }
        }
        assert_eq!(circle("use self::b::B;", "use crate::c::C;"), [""; 0]);
        assert_eq!(
            circle("use crate::c::d::D;", "struct B;"),
            ["lockkeeper-core: a circle of imports: a → c::d → a"]
        );
        assert_eq!(circle("use self::other::B;", "use super::super::c::C;\nuse my_crate::a;"), [""; 0]);
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
