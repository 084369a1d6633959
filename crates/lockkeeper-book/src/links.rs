//! Links of a finished book that lead nowhere. Looked for in the pages as they are read, not as they are written:
//! what the builder makes of a link counts.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Made of all pages together, where links between pages are not kept.
const WHOLE_BOOK: &str = "print.html";
/// Shown for any address, so its links are of no place.
const NOT_FOUND: &str = "404.html";

/// All files below `folder` with this ending, in order.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|it| it.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|it| it == ending) {
            found.push(path);
        }
    }
    found
}

/// What is wrong with the links of the book in this folder.
pub(crate) fn dead(book: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in files(book, "html") {
        let name = page.strip_prefix(book).unwrap_or(&page);
        if name == Path::new(WHOLE_BOOK) || name == Path::new(NOT_FOUND) {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap_or_default();
        let mut targets: Vec<String> = [r#" href=""#, r#" src=""#]
            .iter()
            .flat_map(|it| text.split(it).skip(1))
            .filter_map(|it| it.split('"').next())
            .map(|it| it.replace("&amp;", "&"))
            .filter(|it| !leads_somewhere(book, name, &text, it))
            .collect();
        targets.sort();
        targets.dedup();
        complaints
            .extend(targets.iter().map(|it| format!("{}: the link to `{it}` leads nowhere", name.display())));
    }
    complaints
}

/// Whether a link of the page `name` leads to a file of the book and to a heading of it, or out of our sight.
fn leads_somewhere(book: &Path, name: &Path, text: &str, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let has = |text: &str| heading.is_empty() || text.contains(&format!(r#"id="{heading}""#));
    if file.is_empty() {
        return has(text);
    }
    let Some(path) = inside(name.parent().unwrap_or(Path::new("")), file) else { return false };
    let path = book.join(path);
    if heading.is_empty() { path.is_file() } else { fs::read_to_string(path).is_ok_and(|it| has(&it)) }
}

/// The path of `file` seen from `folder`, unless it leaves the book.
fn inside(folder: &Path, file: &str) -> Option<PathBuf> {
    let mut path = folder.to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::Normal(it) => path.push(it),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path)
}
