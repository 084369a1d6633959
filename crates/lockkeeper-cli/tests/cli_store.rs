//! A store that cannot be used: exit code 69, what is wrong, and what to do.

mod common;

use common::{Store, failed, lockkeeper, output};

/// All commands that need a store.
const COMMANDS: [&[&str]; 5] = [
    &["run", "--wait", "1s", "x", "--", "echo", "ran"],
    &["ls"],
    &["show", "x"],
    &["break", "x"],
    &["doctor"],
];

fn refused(url: &str, commands: &[&[&str]]) {
    for args in commands {
        let error = failed(&output(lockkeeper(["--url", url]).args(*args)), 69);
        assert!(error.contains("\nhint: "), "{url} {args:?}: {error}");
    }
}

#[test]
fn a_corrupt_file_is_refused() {
    let store = Store::new();
    std::fs::write(store.path("locks.db"), "this is no database, it is a letter".repeat(100)).unwrap();
    refused(&store.url(), &COMMANDS);
    let kept = std::fs::read_to_string(store.path("locks.db")).unwrap();
    assert!(kept.starts_with("this is no database"), "it was not overwritten");
}

#[test]
fn a_folder_in_which_nothing_can_be_made_is_refused() {
    // Not even root can make a file there.
    refused("sqlite:/proc/lockkeeper/locks.db", &COMMANDS);
    refused("sqlite:/proc/locks.db", &COMMANDS);
}

#[test]
fn a_path_that_leads_through_a_file_or_to_a_folder_is_refused() {
    let store = Store::new();
    std::fs::write(store.path("file"), "").unwrap();
    refused(&format!("sqlite:{}/locks.db", store.path("file").display()), &COMMANDS);
    refused(&format!("sqlite:{}", store.folder.path().display()), &COMMANDS);
}

#[test]
fn a_state_folder_that_cannot_be_made_is_refused() {
    let mut command = lockkeeper(["ls"]);
    let error = failed(&output(command.env("XDG_STATE_HOME", "/proc/nowhere")), 69);
    assert!(error.contains("hint: make it yourself"), "{error}");
}
