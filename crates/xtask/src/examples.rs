//! Every public function, type, trait and macro that users touch is shown by an example that compiles.
//!
//! What counts is written down in CONTRIBUTING.md: an example on the item, on the type that a method belongs to, or
//! elsewhere in the same file if it names the item.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::tidy::files;

/// The crates that users name, and what those re-export.
const CRATES: &[&str] = &[
    "lockkeeper",
    "lockkeeper-core",
    "lockkeeper-cache",
    "lockkeeper-macros",
    "lockkeeper-metrics",
    "lockkeeper-otel",
];
/// Hidden from the reference: called by what the attribute makes, never by people.
const HIDDEN: &[&str] = &["lockkeeper/src/locked.rs"];

/// A public item.
struct Item {
    file: String,
    line: usize,
    kind: &'static str,
    name: String,
    /// The type that a method belongs to.
    parent: Option<String>,
    has_example: bool,
}

/// What one crate shows.
#[derive(Default)]
struct Shown {
    items: Vec<Item>,
    /// Each word of each example, with its file.
    words: BTreeSet<(String, String)>,
}

pub(crate) fn check(root: &Path, complaints: &mut Vec<String>) {
    for name in CRATES {
        let folder = root.join("crates").join(name).join("src");
        let mut shown = Shown::default();
        for file in files(&folder, "rs") {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            if !HIDDEN.iter().any(|it| name.ends_with(it)) {
                shown.read(&name, &fs::read_to_string(&file).unwrap_or_default());
            }
        }
        complaints.extend(shown.complaints());
    }
}

impl Shown {
    /// Read a file, as far as its tests.
    fn read(&mut self, file: &str, text: &str) {
        let (mut docs, mut parent, mut exported) = (Docs::default(), None, false);
        let mut in_attribute = false;
        for (number, line) in text.lines().enumerate() {
            if line.starts_with("mod tests") {
                break;
            }
            if line.starts_with("impl") {
                parent = type_of_impl(line);
            } else if line.starts_with('}') {
                parent = None;
            }
            let trimmed = line.trim_start();
            if let Some(doc) = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")) {
                docs.line(doc, |word| _ = self.words.insert((file.to_owned(), word.to_owned())));
                continue;
            }
            if in_attribute || trimmed.starts_with("#[") {
                in_attribute = !trimmed.ends_with(']');
                exported |= trimmed.starts_with("#[macro_export");
                continue;
            }
            if let Some((kind, name)) = item(trimmed).filter(|it| it.0 != "macro_rules!" || exported) {
                let parent = parent.clone().filter(|_| line.starts_with(' '));
                let (file, line, name) = (file.to_owned(), number + 1, name.to_owned());
                self.items.push(Item { file, line, kind, name, parent, has_example: docs.has_example });
            }
            (docs, exported) = (Docs::default(), false);
        }
    }

    fn complaints(&self) -> Vec<String> {
        let with_example: BTreeSet<&str> = self
            .items
            .iter()
            .filter(|it| it.has_example && it.parent.is_none())
            .map(|it| it.name.as_str())
            .collect();
        let is_shown = |it: &Item| {
            it.has_example
                || it.parent.as_deref().is_some_and(|parent| with_example.contains(parent))
                || self.words.contains(&(it.file.clone(), it.name.clone()))
        };
        self.items
            .iter()
            .filter(|it| !is_shown(it))
            .map(|Item { file, line, kind, name, .. }| {
                format!("{file}:{line}: no example shows the {kind} `{name}`, see CONTRIBUTING.md")
            })
            .collect()
    }
}

/// The doc comment before an item.
#[derive(Default)]
struct Docs {
    in_code: bool,
    is_rust: bool,
    has_example: bool,
}

impl Docs {
    /// One more line; tells the words of examples.
    fn line(&mut self, text: &str, mut word: impl FnMut(&str)) {
        if let Some(tag) = text.trim_start().strip_prefix("```") {
            self.in_code = !self.in_code;
            // What is not compiled proves nothing.
            self.is_rust = matches!(tag.trim(), "" | "rust" | "no_run" | "should_panic");
            self.has_example |= self.in_code && self.is_rust;
        } else if self.in_code && self.is_rust {
            text.split(|it: char| !it.is_alphanumeric() && it != '_').for_each(&mut word);
        }
    }
}

/// The kind and the name of a public item that begins here.
fn item(line: &str) -> Option<(&'static str, &str)> {
    let (kinds, mut rest): (&[&'static str], _) = match line.strip_prefix("pub ") {
        Some(rest) => (&["fn", "struct", "enum", "trait"], rest),
        None => (&["macro_rules!"], line),
    };
    while let Some(shorter) = rest.strip_prefix("async ").or_else(|| rest.strip_prefix("const ")) {
        rest = shorter;
    }
    let (kind, rest) = rest.split_once(' ')?;
    let kind = kinds.iter().find(|it| **it == kind)?;
    rest.split(|it: char| !it.is_alphanumeric() && it != '_').next().map(|name| (*kind, name))
}

/// The name of the type in `impl<T> Name<T> {`; for a trait it does not matter, as its functions are not `pub`.
fn type_of_impl(line: &str) -> Option<String> {
    let mut depth = 0;
    let mut rest = line.strip_prefix("impl")?.char_indices();
    let start = rest.find(|(_, it)| {
        depth += i32::from(*it == '<') - i32::from(*it == '>');
        depth == 0 && it.is_alphanumeric()
    })?;
    let name = &line["impl".len() + start.0..];
    name.split(|it: char| !it.is_alphanumeric() && it != '_').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        let mut shown = Shown::default();
        shown.read("a.rs", text);
        shown.complaints()
    }

    #[test]
    fn an_example_counts_on_the_item_on_its_type_and_where_it_is_named() {
        let on_the_item =
            "/// Does.\n///\n/// ```no_run\n/// x();\n/// ```\n#[inline]\npub async fn a() {}\n";
        let on_the_type =
            "/// ```\n/// ```\npub struct A<T>(T);\nimpl<T: Into<u8>> A<T> {\n    pub fn b(&self) {}\n}\n";
        let by_name =
            "/// ```\n/// let it: Kind = f();\n/// ```\npub struct A;\n/// What.\npub enum Kind {}\n";
        let long_attribute = "/// ```\n/// ```\n#[expect(\n    dead_code,\n)]\npub fn a() {}\n";
        for text in [
            long_attribute,
            on_the_item,
            on_the_type,
            by_name,
            "pub(crate) fn a() {}\n",
            "fn a() {}\n",
            "mod tests\npub fn a() {}",
        ] {
            assert_eq!(complaints(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_item_that_nothing_shows_is_noticed() {
        let text_only = "/// ```text\n/// a\n/// ```\npub fn a() {}\n";
        let ignored = "/// ```ignore\n/// a();\n/// ```\npub const fn a() {}\n";
        let of_another = "/// ```\n/// ```\npub struct A;\nimpl B {\n    pub fn c(&self) {}\n}\n";
        let prose = "/// ```\n/// ```\npub struct A;\n/// A `Kind`.\npub trait Kind {}\n";
        for text in
            [text_only, ignored, of_another, prose, "pub struct A;\n", "#[macro_export]\nmacro_rules! a {}\n"]
        {
            assert_eq!(complaints(text).len(), 1, "{text}");
        }
    }
}
