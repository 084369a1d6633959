//! What a guide shows of a program stands in that program, which is compiled and tested.

use std::fs;
use std::path::Path;

use super::files;

/// A page, and the program that all its code is out of.
const SHOWN: &[(&str, &str)] = &[
    ("docs/guides/web-services.md", "examples/axum-shop/src"),
    ("docs/guides/scheduled-jobs.md", "examples/nightly-job/src"),
    ("docs/guides/without-async.md", "examples/plain-threads/src"),
];

pub(super) fn check(root: &Path, complaints: &mut Vec<String>) {
    for (page, program) in SHOWN {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let sources: String =
            files(&root.join(program), "rs").iter().filter_map(|it| fs::read_to_string(it).ok()).collect();
        compare(page, &text, program, &sources, complaints);
    }
}

fn compare(page: &str, text: &str, program: &str, sources: &str, complaints: &mut Vec<String>) {
    let sources = unindented(sources);
    let pieces: Vec<&str> = text.split("```rust\n").skip(1).filter_map(|it| it.split("```").next()).collect();
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
}
