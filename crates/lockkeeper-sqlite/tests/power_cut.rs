//! What a power cut may undo: the file is cut back to an earlier moment, and the host starts again.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::*;
use lockkeeper_core::backend::Place;
use lockkeeper_sqlite::{Durability, SqliteOptions};

/// The numbers of a block begin here: before the disk is looked at none of the next few begins another.
const BLOCK_BEGINS: &str = "UPDATE lockkeeper_store SET counter = (counter / 16384 + 1) * 16384";

/// What the disk holds at this moment, as the host finds it when it starts again.
fn after_a_power_cut(fixture: &Fixture) -> Fixture {
    let copy = Fixture::new();
    for end in ["", "-wal"] {
        let name = |it: PathBuf| PathBuf::from(format!("{}{end}", it.display()));
        fs::copy(name(fixture.path()), name(copy.path())).unwrap();
    }
    copy.execute("UPDATE lockkeeper_store SET boot = 'before the power cut'");
    copy
}

#[test]
fn fences_grow_over_a_power_cut_that_undoes_the_last_grants() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        assert_eq!(fixture.options(), SqliteOptions::new(fixture.path()).durability(Durability::Normal));
        fixture.execute(BLOCK_BEGINS);
        hold(&backend, claim("first")).await.0.leave().await.unwrap();
        let cut = after_a_power_cut(&fixture);
        let mut last = 0;
        for at in 0..500 {
            let (mut place, grant) = hold(&backend, claim(&format!("orders/{}", at % 7))).await;
            assert!(last < grant.counter);
            last = grant.counter;
            place.leave().await.unwrap();
        }
        let (_held, grant) = hold(&backend, claim("held")).await;
        let backend = cut.open().await;
        let (_place, next) = hold(&backend, claim("held")).await;
        assert!(grant.counter < next.counter, "a power cut made the fences go back");
    });
}

#[test]
fn so_do_versions_of_memos() {
    use lockkeeper_core::Key;
    use lockkeeper_core::memos::{Memos, Swap};

    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        fixture.execute(BLOCK_BEGINS);
        let (key, keep) = (Key::new("memo").unwrap(), 100 * SECOND);
        let Swap::Done(first) = backend.swap(&key, None, b"one", keep).await.unwrap() else { panic!() };
        let cut = after_a_power_cut(&fixture);
        let Swap::Done(second) = backend.swap(&key, Some(first), b"two", keep).await.unwrap() else {
            panic!()
        };
        let backend = cut.open().await;
        let found = backend.read(&key).await.unwrap().unwrap();
        assert_eq!((found.version, found.value.as_slice()), (first, b"one".as_slice()));
        let Swap::Done(third) = backend.swap(&key, Some(first), b"three", keep).await.unwrap() else {
            panic!()
        };
        assert!(second < third, "a version was given twice");
    });
}
