//! The store under the conformance suite, and the page that builds it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use file_store::{Folder, FolderOptions};
use lockkeeper_core::inspect::DynInspect;
use lockkeeper_testkit::suite::Harness;
use tempfile::TempDir;

struct Files(Arc<TempDir>);

impl Harness for Files {
    type Backend = Folder;

    async fn connect(&self) -> Folder {
        Folder::with(FolderOptions::new(self.0.path())).await.unwrap()
    }

    fn inspect<'b>(&self, backend: &'b Folder) -> Option<&'b dyn DynInspect> {
        Some(backend)
    }
}

lockkeeper_testkit::suite!(files, Files(Arc::new(tempfile::tempdir().unwrap())));

/// What the page shows is what is compiled and tested here.
#[test]
fn every_piece_of_the_page_stands_in_this_crate() {
    let page = include_str!("../../../docs/guides/writing-a-backend.md");
    let code = [
        include_str!("../src/lib.rs"),
        include_str!("../src/line.rs"),
        include_str!("../src/options.rs"),
        include_str!("conformance.rs"),
    ];
    let code = code.concat();
    let pieces: Vec<&str> =
        page.split("```rust\n").skip(1).filter_map(|it| it.split("\n```").next()).collect();
    assert!(5 < pieces.len(), "the page shows {} pieces", pieces.len());
    for piece in pieces {
        assert!(code.contains(piece), "not in this crate:\n{piece}");
    }
}
