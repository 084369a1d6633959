//! From the pages of a folder to a finished book, or to a list of what is wrong with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mdbook::MDBook;
use mdbook::book::BookItem;

use crate::links;

/// The list of all pages. It is no page itself.
const SUMMARY: &str = "SUMMARY.md";

/// Build the book that `root/book.toml` describes into `out`; tells how many pages it has.
pub(crate) fn build(root: &Path, out: &Path) -> Result<usize, Vec<String>> {
    // What an earlier build left would keep dead links alive.
    if out.exists() {
        fs::remove_dir_all(out).map_err(|it| vec![format!("{}: {it}", out.display())])?;
    }
    let mut book = MDBook::load(root).map_err(|it| vec![format!("{it:#}")])?;
    book.config.build.build_dir = out.to_path_buf();
    let folder = root.join(&book.config.book.src);
    let listed: BTreeSet<PathBuf> = book
        .iter()
        .filter_map(|it| match it {
            BookItem::Chapter(chapter) => chapter.source_path.clone(),
            _ => None,
        })
        .collect();
    let mut complaints = forgotten(&folder, &listed);
    book.build().map_err(|it| vec![format!("{it:#}")])?;
    complaints.extend(links::dead(out));
    if complaints.is_empty() { Ok(listed.len()) } else { Err(complaints) }
}

/// Pages that nobody would find: written and not listed.
fn forgotten(folder: &Path, listed: &BTreeSet<PathBuf>) -> Vec<String> {
    links::files(folder, "md")
        .iter()
        .filter_map(|it| it.strip_prefix(folder).ok())
        .filter(|it| *it != Path::new(SUMMARY) && !listed.contains(*it))
        .map(|it| format!("{}: not listed in {SUMMARY}", it.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A book of two pages, with something changed.
    fn book(change: impl Fn(&Path)) -> Result<usize, Vec<String>> {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        fs::create_dir_all(root.path().join("docs/guides")).unwrap();
        write("book.toml", "[book]\nsrc = \"docs\"\n[build]\ncreate-missing = false\n");
        write("docs/SUMMARY.md", "# Summary\n\n[One](README.md)\n\n- [Two](guides/two.md)\n");
        write("docs/README.md", "# One\n\n[two](guides/two.md#its-end)\n");
        write(
            "docs/guides/two.md",
            "# Two\n\n## Its end\n\n[above](#two) and [elsewhere](https://example.org)\n",
        );
        change(root.path());
        build(root.path(), &root.path().join("out"))
    }

    #[test]
    fn a_book_in_order_is_built() {
        assert_eq!(book(|_| ()), Ok(2));
    }

    #[test]
    fn a_page_that_is_not_listed_is_noticed() {
        let complaints =
            book(|it| fs::write(it.join("docs/guides/three.md"), "# Three\n").unwrap()).unwrap_err();
        assert_eq!(complaints, ["guides/three.md: not listed in SUMMARY.md"]);
    }

    #[test]
    fn a_listed_page_that_does_not_exist_is_noticed() {
        let complaints = book(|it| fs::remove_file(it.join("docs/guides/two.md")).unwrap()).unwrap_err();
        assert!(complaints[0].contains("two.md"), "{complaints:?}");
    }

    #[test]
    fn dead_links_are_noticed_to_pages_out_of_the_book_and_to_headings() {
        for (link, said) in [
            ("guides/gone.md", "guides/gone.html"),
            ("guides/two.md#gone", "guides/two.html#gone"),
            ("#gone", "#gone"),
            ("../Cargo.toml", "../Cargo.toml"),
            ("/docs/guides/two.md", "/docs/guides/two.html"),
            ("picture.svg", "picture.svg"),
        ] {
            let text = format!("# One\n\n[there]({link}) [two](guides/two.md)\n");
            let complaints = book(|it| {
                fs::write(it.join("Cargo.toml"), "").unwrap();
                fs::write(it.join("docs/README.md"), &text).unwrap();
            });
            assert_eq!(complaints, Err(vec![format!("index.html: the link to `{said}` leads nowhere")]));
        }
    }

    #[test]
    fn the_book_of_this_repository_is_in_order() {
        let out = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        assert!(build(root, &out.path().join("book")).unwrap() > 20);
    }
}
