//! What a guide shows of a program stands in that program, which is compiled and tested; and all of it is shown, so that
//! who reads the page can build it. Pieces of other pages stand in a test, and there is no page whose code stands nowhere.

use std::fs;
use std::path::Path;

use super::files;

/// A page, and the program that all its code is out of.
const SHOWN: &[(&str, &str)] = &[
    ("docs/guides/web-services.md", "examples/axum-shop"),
    ("docs/guides/scheduled-jobs.md", "examples/nightly-job"),
    ("docs/guides/without-async.md", "examples/plain-threads"),
];

/// The code of these stands here, between what makes it a program.
const PIECES: &[&str] = &["crates/lockkeeper/tests/guides", "crates/lockkeeper-otel/tests"];
const IN_PIECES: &[&str] = &[
    "README.md",
    "crates/lockkeeper/README.md",
    "docs/backends/redlock.md",
    "docs/guides/cache-rebuild.md",
    "docs/guides/choose-a-primitive.md",
    "docs/guides/configuration.md",
    "docs/guides/fenced-writes.md",
    "docs/guides/leader-election.md",
    "docs/guides/library.md",
    "docs/guides/locked-functions.md",
    "docs/guides/monitoring.md",
    "docs/guides/several-locks.md",
    "docs/guides/shared-locks.md",
    "docs/guides/splitting-hot-locks.md",
    "docs/guides/testing.md",
    "docs/guides/two-phase-commit.md",
    "docs/guides/warm-locks.md",
];
/// These are compared by tests of their own.
const TRIED: &[&str] = &["docs/guides/first-ten-minutes.md", "docs/guides/writing-a-backend.md"];
/// Here alone is code that is not compiled with this workspace: `cargo xtask together` makes programs of it.
const TOGETHER: &str = "docs/guides/fenced-writes.md";

pub(super) fn check(root: &Path, complaints: &mut Vec<String>) {
    for (page, program) in SHOWN {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let folder = root.join(program);
        let sources: String =
            files(&folder.join("src"), "rs").iter().filter_map(|it| fs::read_to_string(it).ok()).collect();
        compare(page, &text, program, &sources, complaints);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        whole(page, &text, &sources, &manifest, complaints);
    }
    let sources = PIECES.iter().flat_map(|it| files(&root.join(it), "rs"));
    let sources: String = sources.filter_map(|it| fs::read_to_string(it).ok()).collect();
    for page in IN_PIECES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        compare(page, &text, PIECES[0], &sources, complaints);
    }
    for file in files(root, "md") {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        unseen(&name, &fs::read_to_string(&file).unwrap_or_default(), complaints);
    }
}

/// Code that nothing compares: it may have stopped to compile long ago.
fn unseen(page: &str, text: &str, complaints: &mut Vec<String>) {
    let compared = SHOWN.iter().map(|it| it.0).chain(IN_PIECES.iter().chain(TRIED).copied());
    let shows = text.contains("```rust\n");
    if shows && !compared.into_iter().any(|it| it == page) {
        complaints
            .push(format!("{page}: no test compiles its code; put it into {} and list it here", PIECES[0]));
    }
    if text.contains("```rust,") && page != TOGETHER {
        complaints.push(format!("{page}: code that is not compiled is no example"));
    }
}

/// Every line of the program stands on the page, and so does what it depends on.
fn whole(page: &str, text: &str, sources: &str, manifest: &str, complaints: &mut Vec<String>) {
    let lines = |text: &str| -> Vec<String> { text.lines().map(|it| it.trim().to_owned()).collect() };
    let shown = lines(&pieces(text, "rust").concat());
    let code = lines(sources).into_iter().filter(|it| !it.is_empty() && !it.starts_with("//!"));
    for line in code.filter(|it| !shown.contains(it)) {
        complaints.push(format!("{page}: who builds the program by it lacks `{line}`"));
    }
    let needs = pieces(text, "toml").concat();
    let dependencies = manifest.split("[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next();
    let names = dependencies.unwrap_or_default().lines().filter_map(|it| it.split([' ', '.']).next());
    for name in names.filter(|it| !it.is_empty() && !needs.contains(&format!("\n{it} = "))) {
        complaints.push(format!("{page}: it does not say that the program needs `{name}`"));
    }
}

/// What stands between the fences of this language.
fn pieces<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    text.split(&format!("```{language}\n")).skip(1).filter_map(|it| it.split("```").next()).collect()
}

fn compare(page: &str, text: &str, program: &str, sources: &str, complaints: &mut Vec<String>) {
    let sources = unindented(sources);
    let pieces = pieces(text, "rust");
    if pieces.is_empty() {
        complaints.push(format!("{page}: it shows nothing of {program}"));
    }
    for piece in pieces.iter().filter(|it| !sources.contains(&unindented(it))) {
        let first = piece.lines().next().unwrap_or_default();
        complaints.push(format!("{page}: the piece that begins with `{first}` does not stand in {program}"));
    }
}

/// A method is shown without the indentation that it has in its `impl`.
fn unindented(code: &str) -> String {
    code.lines().fold(String::new(), |all, it| all + it.trim() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_shows_something_else_is_noticed() {
        let page = "# X\n\n```rust\nfn a() {\n    b();\n}\n```\n\n```sh\nls\n```\n";
        let complaints = |sources: &str, page: &str| {
            let mut complaints = Vec::new();
            compare("p.md", page, "examples/x", sources, &mut complaints);
            complaints.len()
        };
        assert_eq!(complaints("impl X {\n    fn a() {\n        b();\n    }\n}\n", page), 0);
        assert_eq!(complaints("fn a() {\n    c();\n}\n", page), 1);
        assert_eq!(complaints("fn a() {}\n", "# X\n"), 1);
    }

    #[test]
    fn code_that_nothing_compiles_is_noticed() {
        let complaints = |page: &str, text: &str| {
            let mut complaints = Vec::new();
            unseen(page, text, &mut complaints);
            complaints.len()
        };
        assert_eq!(complaints("docs/guides/new.md", "```rust\nf();\n```\n"), 1);
        assert_eq!(complaints("docs/guides/new.md", "```rust,ignore\nf();\n```\n"), 1);
        assert_eq!(complaints("docs/guides/new.md", "```sh\nls\n```\n"), 0);
        for page in ["README.md", "docs/guides/web-services.md", "docs/guides/first-ten-minutes.md", TOGETHER]
        {
            assert_eq!(complaints(page, "```rust\nf();\n```\n"), 0, "{page}");
        }
    }

    #[test]
    fn a_page_that_leaves_something_out_is_noticed() {
        let page = "```toml\n[dependencies]\na = \"1\"\n```\n\n```rust\nuse a::B;\n\nfn c() {}\n```\n";
        let complaints = |sources: &str, manifest: &str| {
            let mut complaints = Vec::new();
            whole("p.md", page, sources, manifest, &mut complaints);
            complaints.len()
        };
        let manifest = "[package]\n\n[dependencies]\na.workspace = true\n\n[lints]\nx = 1\n";
        assert_eq!(complaints("//! A file.\n\nuse a::B;\n\nfn c() {}\n", manifest), 0);
        assert_eq!(complaints("type D = B;\n", manifest), 1);
        assert_eq!(complaints("", "[dependencies]\na = \"1\"\nb = \"2\"\n"), 1);
    }
}
