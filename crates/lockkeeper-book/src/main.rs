//! Builds the book of all guides: `docs/` into `target/book`. `cargo xtask book` calls this.
//!
//! It fails if a page is missing from `docs/SUMMARY.md`, if a page listed there does not exist, and if a link in the
//! finished book leads nowhere.

mod book;
mod links;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let root: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).into();
    let out = root.join("target").join("book");
    let (text, code) = match book::build(&root, &out) {
        Ok(pages) => (format!("{pages} pages in {}", out.join("index.html").display()), ExitCode::SUCCESS),
        Err(complaints) => (format!("error: {}", complaints.join("\n  ")), ExitCode::FAILURE),
    };
    let _ = writeln!(std::io::stderr(), "book: {text}");
    code
}
