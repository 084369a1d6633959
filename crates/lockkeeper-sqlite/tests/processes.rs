//! Several real processes on one file.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use common::*;
use lockkeeper_core::backend::{Backend, Place, Renewal, Turn};
use lockkeeper_core::inspect::{Inspect, Severity};
use lockkeeper_core::{Clock, Key, Moment};
use lockkeeper_sqlite::{Durability, Sqlite, SqliteOptions};
use rustix::process::{Pid, Signal, kill_process};

/// Wait for the parent to close our input.
fn wait_for_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn pid(child: &std::process::Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

async fn until_held(backend: &Sqlite, key: &str) {
    let key = Key::new(key).unwrap();
    while backend.show(&key).await.unwrap().is_none() {
        Clock::boot().sleep(Duration::from_millis(2)).await;
    }
}

async fn until_waiting(backend: &Sqlite, key: &str, count: usize) {
    let key = Key::new(key).unwrap();
    while backend.show(&key).await.unwrap().is_none_or(|it| it.waiters.len() != count) {
        Clock::boot().sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn eight_processes_add_to_a_plain_file_and_no_addition_is_lost() {
    const ROUNDS: usize = 200;
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let sum = path.with_file_name("sum");
            let mut last = 0;
            for _ in 0..ROUNDS {
                let mut place = backend.enter(claim("sum"));
                let grant = acquire(&mut place).await;
                assert!(last < grant.counter);
                last = grant.counter;
                let old: usize = fs::read_to_string(&sum).unwrap().parse().unwrap();
                fs::write(&sum, (old + 1).to_string()).unwrap();
                place.leave().await.unwrap();
            }
        });
    }
    let fixture = Fixture::new();
    let sum = fixture.path().with_file_name("sum");
    fs::write(&sum, "0").unwrap();
    let test = "eight_processes_add_to_a_plain_file_and_no_addition_is_lost";
    join(children(8, test, &fixture.path()));
    assert_eq!(fs::read_to_string(&sum).unwrap(), (8 * ROUNDS).to_string());
    assert_eq!(fixture.claims(), 0);
}

#[test]
fn sixty_four_processes_open_a_fresh_file_at_once_and_never_find_it_locked() {
    if let Some(path) = role() {
        wait_for_parent();
        return run(async {
            // Without waiting for the disk they get in each other's way more often.
            let options = SqliteOptions::new(&path).durability(Durability::Normal);
            let backend = Sqlite::with(options).await.unwrap();
            for round in 0..20 {
                let mut own = backend.enter(claim(&format!("own {}", std::process::id())));
                held(own.turn().await.unwrap());
                let mut shared = backend.enter(impatient(&format!("shared {}", round % 4)));
                if let Turn::Held(_) = shared.turn().await.unwrap() {
                    assert!(matches!(shared.renew().await.unwrap(), Renewal::Held { .. }));
                }
                shared.leave().await.unwrap();
                own.leave().await.unwrap();
            }
        });
    }
    let fixture = Fixture::new();
    let test = "sixty_four_processes_open_a_fresh_file_at_once_and_never_find_it_locked";
    let start = || child_command(test, &fixture.path()).stdin(Stdio::piped()).spawn().unwrap();
    let mut children: Vec<_> = (0..64).map(|_| start()).collect();
    let inputs: Vec<_> = children.iter_mut().map(|it| it.stdin.take()).collect();
    drop(inputs);
    join(children);
    assert_eq!(fixture.claims(), 0);
    assert_eq!(fixture.number("SELECT count(*) FROM lockkeeper_store"), 1);
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let mut place = backend.enter(claim("line"));
            acquire(&mut place).await;
            let order = path.with_file_name("order");
            let before = fs::read_to_string(&order).unwrap_or_default();
            fs::write(&order, format!("{before}{} ", std::process::id())).unwrap();
            place.leave().await.unwrap();
        });
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, short("line", PATIENCE)).await;
        let mut line = Vec::new();
        for count in 1..=6 {
            let test = "processes_are_served_in_the_order_in_which_they_came";
            line.extend(children(1, test, &fixture.path()));
            until_waiting(&backend, "line", count).await;
        }
        holder.leave().await.unwrap();
        let expected: Vec<_> = line.iter().map(|it| it.id().to_string()).collect();
        join(line);
        let order = fs::read_to_string(fixture.path().with_file_name("order")).unwrap();
        assert_eq!(order.split_whitespace().collect::<Vec<_>>(), expected);
    });
}

#[test]
fn a_killed_holder_is_replaced_after_its_ttl_and_not_before() {
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let (_place, _) = hold(&backend, short("a", SECOND)).await;
            std::future::pending::<()>().await;
        });
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let test = "a_killed_holder_is_replaced_after_its_ttl_and_not_before";
        let mut child = child_command(test, &fixture.path()).spawn().unwrap();
        until_held(&backend, "a").await;
        let expires = u64::try_from(fixture.number("SELECT expires FROM lockkeeper_claim")).unwrap();
        let counter = fixture.number("SELECT counter FROM lockkeeper_claim").unsigned_abs();
        child.kill().unwrap();
        child.wait().unwrap();
        let grant = acquire(&mut backend.enter(claim("a"))).await;
        assert!(Moment::from_nanos(expires) <= Clock::boot().now());
        assert!(counter < grant.counter);
    });
}

#[test]
fn processes_killed_in_the_middle_of_their_work_leave_a_sound_file() {
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            loop {
                let mut place = backend.enter(short("a", SECOND / 10));
                acquire(&mut place).await;
                place.leave().await.unwrap();
            }
        });
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let test = "processes_killed_in_the_middle_of_their_work_leave_a_sound_file";
        let mut victims = children(3, test, &fixture.path());
        let mut last = 0;
        for round in 0..24 {
            // Whatever they were doing, the lock comes round to us again.
            let mut place = backend.enter(claim("a"));
            let grant = acquire(&mut place).await;
            assert!(last < grant.counter);
            last = grant.counter;
            place.leave().await.unwrap();
            let victim = &mut victims[round % 3];
            victim.kill().unwrap();
            let killed = victim.wait().unwrap();
            assert_eq!(killed.code(), None, "it had failed before it was killed");
            *victim = child_command(test, &fixture.path()).spawn().unwrap();
        }
        for victim in &mut victims {
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        let findings = backend.doctor().await.unwrap();
        assert!(findings.iter().all(|it| it.severity == Severity::Fine), "{findings:?}");
    });
}

#[test]
fn a_stopped_holder_learns_on_waking_that_it_lost_the_lock() {
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let (mut place, _) = hold(&backend, short("a", SECOND / 2)).await;
            wait_for_parent();
            assert_eq!(place.renew().await.unwrap(), Renewal::Lost);
            place.leave().await.unwrap();
        });
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let test = "a_stopped_holder_learns_on_waking_that_it_lost_the_lock";
        let mut child = child_command(test, &fixture.path()).stdin(Stdio::piped()).spawn().unwrap();
        until_held(&backend, "a").await;
        kill_process(pid(&child), Signal::STOP).unwrap();
        let mut next = backend.enter(claim("a"));
        let grant = acquire(&mut next).await;
        kill_process(pid(&child), Signal::CONT).unwrap();
        drop(child.stdin.take());
        join(vec![child]);
        assert_eq!(held(next.turn().await.unwrap()).counter, grant.counter);
    });
}

#[test]
fn a_lock_passes_between_processes_by_looking_alone() {
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let mut place = backend.enter(short("a", PATIENCE));
            waits(place.turn().await.unwrap());
            // No recheck here: `changed` alone must find out.
            place.changed().await;
            held(place.turn().await.unwrap());
        });
    }
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut holder, _) = hold(&backend, short("a", PATIENCE)).await;
        let child = children(1, "a_lock_passes_between_processes_by_looking_alone", &fixture.path());
        until_waiting(&backend, "a", 1).await;
        holder.leave().await.unwrap();
        join(child);
    });
}

#[test]
fn the_thread_ends_with_the_backend_and_its_places() {
    fn threads() -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let name = |it: std::io::Result<fs::DirEntry>| fs::read_to_string(it.ok()?.path().join("comm")).ok();
        tasks.filter_map(name).filter(|it| it.trim() == "lockkeeper-sql").count()
    }
    if let Some(path) = role() {
        return run(async {
            let backend = Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
            let (mut place, _) = hold(&backend, claim("a")).await;
            assert_eq!(threads(), 1);
            drop(backend);
            place.leave().await.unwrap();
            drop(place);
            eventually("the thread ends", || threads() == 0).await;
            // Who forgets the backend does not keep the process alive.
            let blocking = std::thread::spawn(move || Sqlite::with_blocking(SqliteOptions::new(path)));
            std::mem::forget(blocking.join().unwrap().unwrap());
            assert_eq!(threads(), 1);
        });
    }
    let fixture = Fixture::new();
    join(children(1, "the_thread_ends_with_the_backend_and_its_places", &fixture.path()));
}
