//! Opening a file: what is made on first use, and what is said when it cannot be used.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use common::*;
use lockkeeper_core::Error;
use lockkeeper_core::backend::{Backend, Place, Renewal};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};

async fn refused(options: SqliteOptions) -> Error {
    let error = Sqlite::with(options).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    error
}

fn assert_says(error: &Error, path: &Path, words: &str) {
    let said = error.to_string();
    assert!(said.contains(words), "{said}");
    assert!(said.contains(&path.display().to_string()), "{said}");
    assert!(!error.is_transient(), "{said}");
}

#[test]
fn the_first_use_makes_the_folder_the_file_and_its_tables() {
    run(async {
        let fixture = Fixture::new();
        let path = fixture.folder.path().join("deep/er/what?%.db");
        let url = format!("sqlite:{}/deep/er/what%3F%25.db", fixture.folder.path().display());
        for _ in 0..2 {
            let backend = Sqlite::with(SqliteOptions::parse(&url).unwrap()).await.unwrap();
            hold(&backend, claim("a")).await.0.leave().await.unwrap();
        }
        assert!(path.is_file());
    });
}

#[test]
fn a_folder_is_no_lock_file() {
    run(async {
        let fixture = Fixture::new();
        let error = refused(SqliteOptions::new(fixture.folder.path())).await;
        assert_says(&error, fixture.folder.path(), "is a folder");
        let below = fixture.folder.path().join("file");
        fs::write(&below, "").unwrap();
        let path = below.join("locks.db");
        assert_says(&refused(SqliteOptions::new(&path)).await, &path, "cannot be made");
    });
}

#[test]
fn a_file_that_is_no_database_is_left_as_it_was() {
    run(async {
        let fixture = Fixture::new();
        let text = "this is somebody's diary\n".repeat(500);
        fs::write(fixture.path(), &text).unwrap();
        assert_says(&refused(fixture.options()).await, &fixture.path(), "not an SQLite database");
        assert_eq!(fs::read_to_string(fixture.path()).unwrap(), text);
    });
}

#[test]
fn a_damaged_file_gives_faults_and_no_panic() {
    run(async {
        let fixture = Fixture::new();
        drop(hold(&fixture.open().await, claim("a")).await);
        eventually("the file is closed", || !fixture.folder.path().join("locks.db-wal").exists()).await;
        let mut bytes = fs::read(fixture.path()).unwrap();
        bytes[4096..].fill(0xa5);
        fs::write(fixture.path(), bytes).unwrap();
        let fault = match Sqlite::with(fixture.options()).await {
            Err(error) => error,
            Ok(backend) => backend.enter(claim("a")).turn().await.unwrap_err().into(),
        };
        let said = fault.to_string();
        assert!(said.contains("damaged"), "{said}");
        assert!(!fault.is_transient());
    });
}

#[test]
fn a_newer_version_is_refused_and_not_touched() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut place, _) = hold(&backend, claim("a")).await;
        fixture.execute("UPDATE lockkeeper_store SET version = 7");
        let error = refused(fixture.options()).await;
        assert_says(&error, &fixture.path(), "schema version 7");
        // Somebody who was there before the upgrade takes no new lock, and can still give his up.
        let fault = backend.enter(claim("b")).turn().await.unwrap_err();
        assert!(fault.to_string().contains("schema version 7"), "{fault}");
        place.leave().await.unwrap();
        assert_eq!(fixture.number("SELECT version FROM lockkeeper_store"), 7);
    });
}

#[test]
fn claims_of_an_earlier_boot_are_void_and_fences_go_on() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (_place, grant) = hold(&backend, short("a", PATIENCE)).await;
        drop(backend);
        fixture.execute("UPDATE lockkeeper_store SET boot = 'another boot'");
        let backend = fixture.open().await;
        assert_eq!(fixture.claims(), 0);
        let (_place, next) = hold(&backend, claim("a")).await;
        assert!(grant.counter < next.counter);
    });
}

#[test]
fn a_file_that_another_host_took_over_gives_no_more_locks_here() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        fixture.execute("UPDATE lockkeeper_store SET boot = 'another host'");
        let fault = backend.enter(claim("a")).turn().await.unwrap_err();
        assert!(fault.to_string().contains("one host only"), "{fault}");
        assert!(!fault.is_transient());
        assert_eq!(fixture.claims(), 0);
    });
}

#[test]
fn an_application_may_keep_its_own_tables_in_the_file() {
    run(async {
        let fixture = Fixture::new();
        fixture.execute(
            "CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (42); PRAGMA user_version = 9",
        );
        let backend = fixture.open().await;
        hold(&backend, claim("a")).await;
        assert_eq!(fixture.number("SELECT id FROM orders"), 42);
        assert_eq!(fixture.number("PRAGMA user_version"), 9);
    });
}

#[test]
fn a_file_that_is_replaced_while_in_use_is_followed() {
    run(async {
        let fixture = Fixture::new();
        let backend = fixture.open().await;
        let (mut place, grant) = hold(&backend, claim("a")).await;
        for suffix in ["", "-wal", "-shm"] {
            fs::remove_file(format!("{}{suffix}", fixture.path().display())).unwrap();
        }
        assert_eq!(place.renew().await.unwrap(), Renewal::Lost, "the lock went with the file");
        let other = fixture.open().await;
        let (_place, next) = hold(&other, claim("a")).await;
        assert!(grant.counter < next.counter, "fences go on in a new file");
        assert_eq!(waits(backend.enter(claim("a")).turn().await.unwrap()), 1, "both use the same file again");
    });
}

/// Run this test again as a user without special rights, who finds what `prepare` made.
fn as_ordinary_user(test: &str, fixture: &Fixture, path: &Path) {
    fs::set_permissions(fixture.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = child_command(test, path);
    if rustix::process::geteuid().is_root() {
        // The build folder may be closed to others.
        let copy = fixture.folder.path().join("test");
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = std::process::Command::new(copy);
        command.args(arguments).env("LOCKKEEPER_TEST_CHILD", path).uid(65534).gid(65534);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    }
    join(vec![spawned(command.current_dir("/"))]);
}

/// Start a program that was just written. A child that another test forks meanwhile has the file open for writing until it
/// runs its own program, and so long the system refuses.
fn spawned(command: &mut std::process::Command) -> std::process::Child {
    loop {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            started => return started.unwrap(),
        }
    }
}

#[test]
fn a_read_only_folder_is_named_as_the_reason() {
    if let Some(path) = role() {
        return run(async {
            assert_says(&refused(SqliteOptions::new(&path)).await, &path, "allow this user");
        });
    }
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("closed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    as_ordinary_user("a_read_only_folder_is_named_as_the_reason", &fixture, &folder.join("locks.db"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_file_in_a_read_only_folder_is_refused_too() {
    if let Some(path) = role() {
        return run(async {
            assert_says(&refused(SqliteOptions::new(&path)).await, &path, "allow this user");
        });
    }
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("closed");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    run(async {
        Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
        eventually("the file is closed", || !folder.join("locks.db-wal").exists()).await;
    });
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    as_ordinary_user("a_file_in_a_read_only_folder_is_refused_too", &fixture, &path);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    if let Some(path) = role() {
        return run(async {
            assert_says(&refused(SqliteOptions::new(&path)).await, &path, "cannot be made");
        });
    }
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("closed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    as_ordinary_user("a_folder_that_cannot_be_made_is_named", &fixture, &folder.join("new/locks.db"));
}

#[test]
fn an_unreadable_or_unwritable_file_is_refused() {
    if let Some(path) = role() {
        return run(async {
            assert_says(&refused(SqliteOptions::new(&path)).await, &path, "allow this user");
        });
    }
    let fixture = Fixture::new();
    let folder = fixture.folder.path().join("open");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    run(async {
        Sqlite::with(SqliteOptions::new(&path)).await.unwrap();
        eventually("the file is closed", || !folder.join("locks.db-wal").exists()).await;
    });
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    for mode in [0o000, 0o444] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        as_ordinary_user("an_unreadable_or_unwritable_file_is_refused", &fixture, &path);
    }
}

#[test]
fn somebody_elses_long_transaction_is_a_fault_that_passes() {
    run(async {
        let fixture = Fixture::new();
        let options = fixture.options().timeout(SECOND / 10);
        let backend = Sqlite::with(options).await.unwrap();
        let mut place = backend.enter(claim("a"));
        let intruder = rusqlite::Connection::open(fixture.path()).unwrap();
        intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
        let fault = place.turn().await.unwrap_err();
        assert!(fault.is_transient());
        assert!(fault.to_string().contains("raise `timeout`"), "{fault}");
        intruder.execute_batch("COMMIT").unwrap();
        held(place.turn().await.unwrap());
    });
}
