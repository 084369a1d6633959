//! `--config`, `config check`, `config show`, and who is stronger: file, variable or option.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;

use common::{Store, code, failed, lockkeeper, output, text};

fn write(store: &Store, words: &str) -> std::path::PathBuf {
    let path = store.path("shop.toml");
    std::fs::write(&path, words).unwrap();
    path
}

fn with(store: &Store, words: &str, args: &[&str]) -> Command {
    let mut command = lockkeeper(args);
    command.env("LOCKKEEPER_CONFIG", write(store, words)).env("REDIS_PASSWORD", "hunter2");
    command
}

#[test]
fn the_settings_are_shown_without_secrets_and_with_their_origin() {
    let store = Store::new();
    let words =
        "url = \"redis://u:${REDIS_PASSWORD}@h\"\nttl = \"3s\"\n[store]\nsentinel_password = \"hunter2\"";
    for args in [["config", "show"], ["config", "check"]] {
        let end = output(with(&store, words, &args).env("LOCKKEEPER_WAIT", "5s"));
        assert_eq!(code(&end), 0, "{end:?}");
        assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
    }
    let shown = text(&output(with(&store, words, &["config", "show"]).env("LOCKKEEPER_WAIT", "5s")).stdout);
    for part in ["shop.toml:2", "wait = \"5s\"  # LOCKKEEPER_WAIT", "***@h", "default: system"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_run() {
    let store = Store::new();
    for (words, said) in [
        ("tll = \"3s\"", "did you mean `ttl`?"),
        ("url = \"redis://${NO_SUCH_VARIABLE}@h\"", "NO_SUCH_VARIABLE"),
        ("url_file = \"/no/such/file\"", "/no/such/file"),
        ("ttl = ", "this is not TOML"),
    ] {
        for args in [&["config", "check"][..], &["config", "show"], &["ls"]] {
            let end = output(&mut with(&store, words, args));
            failed(&end, 64);
            assert!(text(&end.stderr).contains(said), "{words}: {end:?}");
        }
    }
    let missing = output(&mut lockkeeper(["--config", "/no/such.toml", "config", "check"]));
    failed(&missing, 64);
}

#[test]
fn the_file_names_the_store_and_the_options_are_stronger() {
    let store = Store::new();
    let words = format!("url = \"{}\"\nttl = \"2s\"\nwait = \"10ms\"", store.url());
    let file = write(&store, &words);
    let mut taken = lockkeeper(["--config", file.to_str().unwrap(), "run", "job", "--"]);
    taken.arg(env!("CARGO_BIN_EXE_lockkeeper")).args([
        "--config",
        file.to_str().unwrap(),
        "run",
        "job",
        "--",
        "true",
    ]);
    assert_eq!(code(&output(&mut taken)), 75, "the inner one waits 10 ms, as the file says");
    let other = format!("sqlite:{}", store.path("other.db").display());
    let end = output(
        lockkeeper(["--config", file.to_str().unwrap(), "--url", &other, "config", "check"]).env("X", ""),
    );
    assert!(text(&end.stdout).contains("other.db"), "{end:?}");
}

#[test]
fn a_file_in_the_current_folder_is_read() {
    let store = Store::new();
    std::fs::write(store.path("lockkeeper.toml"), format!("url = \"{}\"", store.url())).unwrap();
    let end = output(lockkeeper(["config", "show"]).current_dir(store.folder.path()));
    assert!(text(&end.stdout).starts_with("# lockkeeper.toml\nurl = "), "{end:?}");
}

#[test]
fn a_lock_of_a_command_is_never_one_that_stays() {
    let store = Store::new();
    let words = format!("url = \"{}\"\nwarm = true\n", store.url());
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    for kind in [&["run", "x"][..], &["run", "--shared", "x"], &["run", "--permits", "1/2", "x"]] {
        let show = ["--", program, "show", "--json", "x"];
        let end = output(&mut with(&store, &words, &[kind, &show].concat()));
        let shown = text(&end.stdout);
        assert_eq!(code(&end), 0, "{end:?}");
        assert!(shown.contains("\"holders\":") && !shown.contains("\"may_be_idle\":true"), "{shown}");
        store.expect_empty();
    }
}
