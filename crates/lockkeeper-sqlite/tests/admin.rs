//! What an operator sees and does.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Fence, Key, Label, Load};
use lockkeeper_sqlite::{Durability, Sqlite};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

#[test]
fn show_tells_who_holds_and_who_waits() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let label = Label::of_this_process().with(Some("payer"), Some("\u{1b}[31m'note"));
        let (_holder, grant) = hold(&backend, room("a", 2, 3).labelled(Arc::new(label.clone()))).await;
        let mut waiter = backend.enter(room("a", 3, 3));
        waits(waiter.turn().await.unwrap());
        // Another process sees the same.
        let info = fixture.open().await.show(&key("a")).await.unwrap().unwrap();
        let [holder] = &info.holders[..] else { panic!("{info:?}") };
        assert_eq!(holder.label, label);
        assert_eq!(holder.fence, Some(Fence::of_grant(grant.counter)));
        assert_eq!(holder.load, Load::new(2, 3));
        assert!(holder.since.unwrap() < PATIENCE);
        assert!(Duration::ZERO < holder.valid_for && holder.valid_for <= 10 * SECOND);
        let [waiter] = &info.waiters[..] else { panic!("{info:?}") };
        assert_eq!((waiter.fence, waiter.load), (None, Load::new(3, 3)));
        assert_eq!(waiter.label, Label::of_this_process());
        assert_eq!(backend.show(&key("b")).await.unwrap(), None);
    });
}

#[test]
fn a_row_whose_name_is_not_ours_is_listed_and_named() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let _held = hold(&backend, claim("a")).await;
        let strange = rusqlite::Connection::open(fixture.path()).unwrap();
        let renamed = strange.execute("UPDATE lockkeeper_claim SET key = char(27, 97)", []).unwrap();
        assert_eq!(renamed, 1);
        let all = backend.list("").await.unwrap();
        let [info] = &all[..] else { panic!("{all:?}") };
        assert_eq!(
            (info.key.as_str(), info.holders.len(), info.foreign.len()),
            ("\\u{1b}a", 1, 1),
            "{info:?}"
        );
    });
}

#[test]
fn list_goes_by_the_bytes_of_the_prefix() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let mut places = Vec::new();
        for name in ["b%", "a/2", "A/3", "a/1", "b_", "é"] {
            places.push(hold(&backend, claim(name)).await);
        }
        places.push(hold(&backend, short("a/dead", SECOND / 100)).await);
        let names = async |prefix: &str| -> Vec<String> {
            let listed = backend.list(prefix).await.unwrap();
            listed.iter().map(|it| it.key.to_string()).collect()
        };
        while names("a/").await.len() != 2 {
            lockkeeper_core::Clock::boot().sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(names("").await, ["A/3", "a/1", "a/2", "b%", "b_", "é"]);
        assert_eq!(names("a/").await, ["a/1", "a/2"]);
        assert_eq!(names("b%").await, ["b%"]);
        assert_eq!(names("é").await, ["é"]);
        assert_eq!(names("nothing").await, [""; 0]);
    });
}

#[test]
fn breaking_takes_the_lock_from_its_holders_and_gives_it_to_the_next() {
    run(async {
        let fixture = Fixture::new();
        let (backend, operator) = (fixture.open().await, fixture.open().await);
        let (mut one, _) = hold(&backend, room("s", 1, 2)).await;
        let (mut two, second) = hold(&backend, room("s", 1, 2)).await;
        let mut next = backend.enter(room("s", 2, 2));
        waits(next.turn().await.unwrap());
        let broken = operator.break_lock(&key("s")).await.unwrap();
        assert_eq!(broken.len(), 2);
        assert_eq!(broken[1].fence, Some(Fence::of_grant(second.counter)));
        assert_eq!(one.renew().await.unwrap(), Renewal::Lost);
        assert_eq!(two.renew().await.unwrap(), Renewal::Lost);
        next.changed().await;
        let grant = held(next.turn().await.unwrap());
        assert!(second.counter < grant.counter);
        two.leave().await.unwrap();
        assert_eq!(held(next.turn().await.unwrap()).counter, grant.counter);
        assert_eq!(operator.break_lock(&key("nothing")).await.unwrap(), []);
    });
}

#[test]
fn the_cleaner_removes_what_dead_processes_left() {
    run(async {
        let fixture = Fixture::new();
        let options = fixture.options().clean_every(SECOND / 50);
        // Two cleaners at work must not disturb each other, nor the living.
        let one = Sqlite::with(options.clone()).await.unwrap();
        let two = Sqlite::with(options).await.unwrap();
        let (mut living, _) = hold(&one, short("living", PATIENCE)).await;
        let mut last = 0;
        for number in 0..600 {
            last = hold(&two, short(&format!("dead {number}"), SECOND / 100)).await.1.counter;
        }
        eventually("the dead are gone", || fixture.claims() == 1).await;
        assert!(matches!(living.renew().await.unwrap(), Renewal::Held { .. }));
        assert!(last < hold(&one, claim("dead 1")).await.1.counter);
    });
}

#[test]
fn the_doctor_names_what_endangers_locks() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let findings = backend.doctor().await.unwrap();
        assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
        let options = fixture.options().durability(Durability::Full);
        let weaker = Sqlite::with(options).await.unwrap();
        std::fs::set_permissions(fixture.path(), std::fs::Permissions::from_mode(0o666)).unwrap();
        let findings = weaker.doctor().await.unwrap();
        let warned: Vec<_> = findings.iter().filter(|it| it.severity == Severity::Warning).collect();
        assert_eq!(warned.len(), 1, "{findings:?}");
        assert!(warned[0].what.contains("666"));
    });
}

/// Who comes while others wait for the write lock is served with them.
#[test]
fn the_doctor_who_travels_along_finds_what_it_finds_alone() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let alone = backend.doctor().await.unwrap();
        let (raw, clock) = (rusqlite::Connection::open(fixture.path()).unwrap(), Clock::boot());
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        let ((_held, _), among_others, ()) = tokio::join!(
            hold(&backend, claim("x")),
            async {
                clock.sleep(SECOND / 50).await;
                backend.doctor().await.unwrap()
            },
            async {
                clock.sleep(SECOND / 10).await;
                raw.execute_batch("ROLLBACK").unwrap();
            }
        );
        assert_eq!(among_others.len(), alone.len(), "all that a doctor looks at: {among_others:?}");
    });
}
