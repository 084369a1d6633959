//! Fenced writes: a stale fence is refused in the transaction that would have written.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Fixture, PATIENCE, child_command, join, role, run};
use lockkeeper_core::{Fence, FencedError, Key, Locker, Memory, SharedFence};
use lockkeeper_sqlite::{Sqlite, SqliteFences, SqliteOptions};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use rustix::process::{Pid, Signal, kill_process};

const LOCK: &str = "stock/7";

fn key() -> Key {
    Key::new(LOCK).unwrap()
}

/// The data, in a file of their own beside the locks.
fn shop(path: &Path) -> Connection {
    let shop = Connection::open(path.with_file_name("shop.db")).unwrap();
    shop.busy_timeout(PATIENCE).unwrap();
    shop.pragma_update(None, "journal_mode", "wal").unwrap();
    shop.execute_batch("CREATE TABLE IF NOT EXISTS stock (writer INTEGER NOT NULL)").unwrap();
    shop
}

fn begin(shop: &mut Connection) -> Transaction<'_> {
    shop.transaction_with_behavior(TransactionBehavior::Deferred).unwrap()
}

/// A fenced write: whether it was let through.
fn write(shop: &mut Connection, fence: Fence) -> bool {
    let writing = begin(shop);
    match SqliteFences.check(&writing, &key(), fence) {
        Ok(()) => {
            writing.execute("INSERT INTO stock VALUES (?1)", [fence.get().cast_signed()]).unwrap();
            writing.commit().unwrap();
            true
        }
        Err(FencedError::Stale { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_stale_fence_is_refused_and_a_read_raises_it() {
    let fixture = Fixture::new();
    let mut shop = shop(&fixture.path());
    let at = Fence::from_u64;
    // The table is made by the first check, and a check that is rolled back leaves nothing.
    let dropped = begin(&mut shop);
    SqliteFences.check(&dropped, &key(), at(99)).unwrap();
    dropped.rollback().unwrap();
    assert!(write(&mut shop, at(10)) && write(&mut shop, at(10)));

    // The new holder has only read, and the old one is already refused.
    let reading = begin(&mut shop);
    SqliteFences.check(&reading, &key(), at(11)).unwrap();
    reading.commit().unwrap();
    let writing = begin(&mut shop);
    let refused = SqliteFences.check(&writing, &key(), at(10)).unwrap_err();
    assert!(matches!(refused, FencedError::Stale { seen, .. } if seen == at(11)), "{refused}");
    writing.rollback().unwrap();
    // Names do not meet, however alike they look.
    let writing = begin(&mut shop);
    for other in ["Stock/7", "stock/7 ", "stock/70"] {
        SqliteFences.check(&writing, &Key::new(other).unwrap(), at(1)).unwrap();
    }
    let refused = SqliteFences.check(&writing, &key(), at(u64::MAX)).unwrap_err();
    assert!(matches!(refused, FencedError::TooLarge { .. }), "{refused}");
}

/// A fenced read by one who shares: whether it was let through.
fn read(shop: &mut Connection, fence: SharedFence) -> bool {
    let reading = begin(shop);
    match SqliteFences.check_shared(&reading, &key(), fence) {
        Ok(()) => {
            reading.commit().unwrap();
            true
        }
        Err(FencedError::Stale { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A writer's fence, those of two who read beside each other after it, and that of a writer after them.
fn fences() -> (Fence, [SharedFence; 2], Fence) {
    let mut fences = None;
    run(async {
        let store = Memory::default();
        let (here, there) = (Locker::new(store.clone()), Locker::new(store));
        let before = here.lock(LOCK).await.unwrap().fence();
        let readers = (here.read(LOCK).await.unwrap(), there.read(LOCK).await.unwrap());
        let shared = [readers.0.fence(), readers.1.fence()];
        drop(readers);
        fences = Some((before, shared, here.lock(LOCK).await.unwrap().fence()));
    });
    fences.unwrap()
}

#[test]
fn readers_refuse_older_writers_and_not_each_other() {
    let fixture = Fixture::new();
    let mut shop = shop(&fixture.path());
    let (before, [one, two], after) = fences();
    assert!(write(&mut shop, before));
    for reader in [one, two, one, two] {
        assert!(read(&mut shop, reader), "of living readers none is refused");
    }
    assert!(!write(&mut shop, before), "it was over when they read");
    assert!(write(&mut shop, after) && write(&mut shop, after));
    assert!(!read(&mut shop, one) && !read(&mut shop, two), "somebody wrote since");
}

/// The statement that stands below this heading of the guide.
fn printed(heading: &str) -> &'static str {
    let guide = include_str!("../../../docs/guides/fenced-writes.md");
    let section = guide.split_once(heading).unwrap().1;
    section.split_once("```sql\n").unwrap().1.split_once("\n```").unwrap().0
}

#[test]
fn the_statements_of_the_guide_do_as_it_says() {
    let fixture = Fixture::new();
    let mut shop = shop(&fixture.path());
    SqliteFences.create(&shop).unwrap();
    let (before, [one, two], after) = fences();
    let let_in = |shop: &Connection, kind: &str, fence: u64| {
        let sql = printed(&format!("### SQLite, a {kind}\n"));
        let row = shop.prepare(sql).unwrap().exists((LOCK, fence.cast_signed()));
        row.unwrap()
    };
    assert!(let_in(&shop, "writer", before.get()));
    assert!(let_in(&shop, "reader", one.get()) && let_in(&shop, "reader", two.get()));
    assert!(let_in(&shop, "reader", one.get()) && !let_in(&shop, "writer", before.get()));
    // They meet the checker in the same table.
    assert!(!write(&mut shop, before) && read(&mut shop, two) && write(&mut shop, after));
    assert!(!let_in(&shop, "reader", one.get()) && let_in(&shop, "writer", after.get()));
}

/// As it was before readers had a number of their own.
const OLD: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence (
    resource TEXT NOT NULL PRIMARY KEY COLLATE BINARY, fence INTEGER NOT NULL) STRICT, WITHOUT ROWID";

#[test]
fn an_old_table_is_upgraded_and_keeps_its_fences() {
    for first in ["check", "check_shared", "create", "by hand"] {
        let fixture = Fixture::new();
        let mut shop = shop(&fixture.path());
        let (before, [reader, _], after) = fences();
        shop.execute_batch(OLD).unwrap();
        let fence = after.get().cast_signed();
        shop.execute("INSERT INTO lockkeeper_fence VALUES (?1, ?2)", (LOCK, fence)).unwrap();
        match first {
            "check" => assert!(write(&mut shop, after)),
            "check_shared" => assert!(!read(&mut shop, reader)),
            "create" => SqliteFences.create(&shop).unwrap(),
            _ => shop.execute_batch(SqliteFences::UPGRADE).unwrap(),
        }
        assert!(!write(&mut shop, before) && !read(&mut shop, reader), "after {first}");
        assert!(write(&mut shop, after), "after {first}");
    }
}

#[test]
fn from_check_to_commit_nobody_else_gets_in_between() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (shop(&fixture.path()), shop(&fixture.path()));
    other.busy_timeout(Duration::ZERO).unwrap();
    let holding = begin(&mut one);
    SqliteFences.check(&holding, &key(), Fence::from_u64(10)).unwrap();
    let waiting = begin(&mut other);
    let busy = SqliteFences.check(&waiting, &key(), Fence::from_u64(11)).unwrap_err();
    assert!(matches!(busy, FencedError::Database(_)), "{busy}");
    drop(waiting);
    holding.commit().unwrap();
    assert!(write(&mut other, Fence::from_u64(11)) && !write(&mut one, Fence::from_u64(10)));
}

#[test]
fn many_who_come_first_make_the_table_together() {
    let fixture = Fixture::new();
    let path = fixture.path();
    drop(shop(&path));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || write(&mut shop(&path), Fence::from_u64(10)))
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap());
    }
}

#[test]
fn a_user_who_may_not_make_tables_is_told_so() {
    let fixture = Fixture::new();
    drop(shop(&fixture.path()));
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let mut shop = Connection::open_with_flags(fixture.path().with_file_name("shop.db"), flags).unwrap();
    let error = SqliteFences.check(&begin(&mut shop), &key(), Fence::from_u64(1)).unwrap_err();
    assert!(error.to_string().contains("readonly"), "{error}");
}

#[test]
fn a_frozen_holders_late_write_is_refused() {
    let locker = async |path: &Path| {
        let backend = Sqlite::with(SqliteOptions::new(path)).await.unwrap();
        Locker::builder(backend).ttl(Duration::from_secs(1)).wait_at_most(PATIENCE / 2).build()
    };
    if let Some(path) = role() {
        return run(async {
            let guard = locker(&path).await.lock(LOCK).await.unwrap();
            let mut shop = shop(&path);
            // It writes whenever it is told to, without looking whether the lock is still its own.
            for _ in std::io::stdin().lines() {
                let written = write(&mut shop, guard.fence());
                println!("\nsays {}", if written { "written" } else { "refused" });
            }
        });
    }
    run(async {
        let fixture = Fixture::new();
        let test = "a_frozen_holders_late_write_is_refused";
        let mut holder = child_command(test, &fixture.path()).stdin(Stdio::piped()).spawn().unwrap();
        let (mut orders, said) = (holder.stdin.take().unwrap(), holder.stdout.take().unwrap());
        let mut said =
            BufReader::new(said).lines().map_while(Result::ok).filter(|it| it.starts_with("says "));
        writeln!(orders, "write").unwrap();
        assert_eq!(said.next().unwrap(), "says written");
        let pid = Pid::from_child(&holder);
        kill_process(pid, Signal::STOP).unwrap();
        let guard = locker(&fixture.path()).await.lock(LOCK).await.unwrap();
        let mut shop = shop(&fixture.path());
        assert!(write(&mut shop, guard.fence()));
        kill_process(pid, Signal::CONT).unwrap();
        writeln!(orders, "write").unwrap();
        assert_eq!(said.next().unwrap(), "says refused");
        drop(orders);
        assert!(holder.wait().unwrap().success());
        let writers: i64 = shop.query_row("SELECT count(*) FROM stock", [], |row| row.get(0)).unwrap();
        assert_eq!(writers, 2);
    });
}

#[test]
fn the_documents_hold_the_ddl() {
    assert!(include_str!("../../../docs/backends/sqlite.md").contains(SqliteFences::DDL));
}

/// What four instances of a program do when they start together on a file that has no table yet, or an old one.
fn start_together(path: &Path, round: usize) {
    let mut shop = Connection::open(path.with_file_name(format!("shop-{round}.db"))).unwrap();
    if round % 3 == 1 {
        shop.execute_batch(OLD).unwrap();
    }
    if round.is_multiple_of(2) {
        SqliteFences.create(&shop).unwrap();
    }
    // Every other time the first check finds no table and makes it.
    let write = begin(&mut shop);
    match SqliteFences.check(&write, &key(), Fence::from_u64(7)) {
        Ok(()) => write.commit().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn four_processes_make_the_table_at_the_same_moment() {
    const ROUNDS: usize = 40;
    let test = "four_processes_make_the_table_at_the_same_moment";
    if let Some(path) = role() {
        let mut line = String::new();
        for round in 0..ROUNDS {
            // The parent's word that all are ready.
            std::io::stdin().read_line(&mut line).unwrap();
            start_together(&path, round);
            println!("\ndone");
        }
        return;
    }
    let fixture = Fixture::new();
    let start = || child_command(test, &fixture.path()).stdin(Stdio::piped()).spawn().unwrap();
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    let mut heard: Vec<_> =
        children.iter_mut().map(|it| BufReader::new(it.stdout.take().unwrap()).lines()).collect();
    for round in 0..ROUNDS {
        for child in &mut children {
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        for lines in &mut heard {
            let done = lines.any(|it| it.unwrap() == "done");
            assert!(done, "a process fails in round {round}: see below");
        }
    }
    join(children);
}
