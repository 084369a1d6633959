//! What a fork takes along without any server: ids that were drawn, a guard, a locker.
//!
//! A test's own process has threads of the harness. So each case runs in a process of its own, which is this same test.
//! What forks do on real stores is told in `lockkeeper/tests/fork.rs`.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fork::Fork;
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{ClaimId, Error, Locker, Memory};

const FOLDER: &str = "LOCKKEEPER_TEST_FORK_FOLDER";
const IDS: usize = 8;

/// Do `work` in a process with one thread, in a folder that its forks share.
fn alone(test: &str, work: impl FnOnce(&Path)) {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        return work(&folder);
    }
    let folder = std::env::temp_dir().join(format!("lockkeeper-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(FOLDER, &folder);
    let out = command.output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let said = [out.stdout, out.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    assert!(out.status.success(), "{said}");
}

/// Do something in a fork, which must end well.
fn forked(work: impl FnOnce()) {
    match fork::fork().unwrap() {
        Fork::Parent(pid) => assert_eq!(fork::waitpid(pid).unwrap(), 0, "a fork fails: see above"),
        Fork::Child => {
            // Nobody of the harness may find itself in two processes.
            let ended = catch_unwind(AssertUnwindSafe(work));
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn draw() -> Vec<String> {
    (0..IDS).map(|_| ClaimId::random().unwrap().to_hex()).collect()
}

#[test]
fn no_id_is_drawn_on_both_sides_of_a_fork() {
    alone("no_id_is_drawn_on_both_sides_of_a_fork", |folder| {
        // Many are drawn at once: what is left of them comes along.
        let mut all = draw();
        for child in ["one", "two"] {
            forked(|| fs::write(folder.join(child), draw().join("\n")).unwrap());
            let drawn = fs::read_to_string(folder.join(child)).unwrap();
            all.extend(drawn.lines().map(str::to_owned));
        }
        all.extend(draw());
        let different: BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), IDS * 4, "an id was drawn twice: {all:?}");
    });
}

/// How many idle locks were given back.
#[derive(Clone, Debug, Default)]
struct Cooled(Arc<AtomicU32>);

impl Observer for Cooled {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Cooled { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_is_idle_stays_with_the_process_that_keeps_it() {
    alone("what_is_idle_stays_with_the_process_that_keeps_it", |_| {
        let (store, cooled) = (Memory::default(), Cooled::default());
        let locker = Locker::builder(store.clone()).warm(true).observer(cooled.clone()).build();
        locker.lock("kept").blocking().unwrap().release_blocking().unwrap();
        let mut came_along = Some(locker);
        // It drops its copy, and ends: neither gives back what is not its own.
        forked(|| {
            drop(came_along.take());
            assert_eq!(cooled.0.load(Ordering::Relaxed), 0, "a fork gives back what its parent keeps");
        });
        assert_eq!((came_along.as_ref().map(Locker::lines), store.len()), (Some(1), 1));
        drop(came_along);
        assert_eq!(cooled.0.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_guard_and_its_locker_are_refused_in_a_fork() {
    alone("a_guard_and_its_locker_are_refused_in_a_fork", |_| {
        let locker = Locker::new(Memory::default());
        let guard = locker.lock("kept").blocking().unwrap();
        let mut came_along = Some(guard);
        forked(|| {
            let guard = came_along.take().unwrap();
            assert!(!guard.is_valid(), "a fork says that its parent's guard is valid");
            assert_eq!(guard.remaining(), Duration::ZERO);
            assert!(matches!(guard.check(), Err(Error::Forked { .. })));
            let error = locker.lock("other").blocking().unwrap_err();
            assert!(matches!(error, Error::Forked { .. }), "a fork uses its parent's locker: {error}");
        });
        came_along.unwrap().check().unwrap();
    });
}

#[test]
fn what_is_remembered_is_not_written_by_a_fork() {
    alone("what_is_remembered_is_not_written_by_a_fork", |_| {
        let locker = Locker::new(Memory::default());
        let tick = locker.once("job", "tick").tick().unwrap();
        let leadership = locker.campaign("role", "the parent").win_blocking().unwrap();
        let mut came_along = Some(leadership);
        forked(|| {
            let told = tick.set_done_blocking();
            assert!(matches!(told, Err(Error::Forked { .. })), "a fork writes for its parent: {told:?}");
            assert!(matches!(tick.is_done_blocking(), Err(Error::Forked { .. })));
            let told = locker.leader_blocking("role");
            assert!(matches!(told, Err(Error::Forked { .. })), "a fork reads for its parent: {told:?}");
            drop(came_along.take());
        });
        // Kept: once it is dropped, whoever asks finds nobody, soon.
        let leadership = came_along.unwrap();
        assert!(leadership.is_valid());
        assert!(!tick.is_done_blocking().unwrap());
        assert_eq!(locker.leader_blocking("role").unwrap().unwrap().value, "the parent");
    });
}
