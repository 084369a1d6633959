//! Bad usage, help, completions, the default store, and what is never printed.

mod common;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use common::{Store, code, failed, lockkeeper, output, text};
use tempfile::TempDir;

#[test]
fn help_and_version_go_to_standard_output_and_succeed() {
    for args in
        [&["--help"][..], &["-h"], &["--version"], &["run", "--help"], &["ls", "--help"], &["help", "break"]]
    {
        let end = output(&mut lockkeeper(args));
        assert_eq!(code(&end), 0, "{args:?}");
        assert!(!end.stdout.is_empty() && end.stderr.is_empty(), "{args:?}");
    }
    let help = text(&output(&mut lockkeeper(["run", "--help"])).stdout);
    for taught in ["Examples:", "Exit codes:", "LOCKKEEPER_FENCE", "75 ", "76 ", "--max-hold"] {
        assert!(help.contains(taught), "{taught}");
    }
    for command in ["ls", "show", "break", "doctor", "completions"] {
        let help = text(&output(&mut lockkeeper([command, "--help"])).stdout);
        assert!(help.contains("Examples:"), "{command}");
    }
}

#[test]
fn who_says_nothing_is_told_what_there_is() {
    for url in [None, Some("memory:")] {
        let mut command = lockkeeper([""; 0]);
        command.env_remove("LOCKKEEPER_URL");
        if let Some(url) = url {
            command.env("LOCKKEEPER_URL", url);
        }
        let end = output(&mut command);
        assert_eq!(code(&end), 64, "{url:?}");
        let told = text(&end.stderr);
        assert!(told.contains("\nCommands:\n  run ") && told.contains("Examples:"), "{url:?}: {told}");
        assert!(!told.contains("names"), "{told}");
    }
}

/// The help of this command and of all below it.
fn helps(path: &[&str], value: Option<(&[String], &str)>) -> Vec<(String, String)> {
    let args: Vec<&str> = path.iter().copied().chain(["--help"]).collect();
    let mut command = lockkeeper(&args);
    for name in value.iter().flat_map(|it| it.0) {
        command.env(name, value.map_or("", |it| it.1));
    }
    let end = output(&mut command);
    assert_eq!(code(&end), 0, "{args:?}: {}", text(&end.stderr));
    let help = text(&end.stdout);
    let listed =
        help.split_once("\nCommands:\n").map_or("", |it| it.1).split("\n\n").next().unwrap_or_default();
    let names = listed.lines().filter(|it| it.starts_with("  ") && !it.starts_with("   "));
    let names = names.filter_map(|it| it.split_whitespace().next()).filter(|it| *it != "help");
    let below = names.flat_map(|it| helps(&[path, &[it]].concat(), value)).collect::<Vec<_>>();
    std::iter::once((path.join(" "), help.clone())).chain(below).collect()
}

#[test]
fn no_help_shows_what_is_in_a_variable() {
    let all = helps(&[], None);
    let mut names: Vec<String> = Vec::new();
    for (_, help) in &all {
        let named = help.split("[env: ").skip(1).filter_map(|it| it.split([']', '=']).next());
        names.extend(named.map(str::to_owned));
    }
    names.sort();
    names.dedup();
    assert!(all.len() > 12 && names.iter().any(|it| it == "LOCKKEEPER_URL"), "{names:?}");
    #[cfg(feature = "twophase")]
    assert!(names.iter().any(|it| it == "LOCKKEEPER_2PC_LOG"), "{names:?}");
    for (command, help) in helps(&[], Some((&names, "postgres://shop:hunter2@db-1/log"))) {
        assert!(!help.contains("hunter2"), "lockkeeper {command} --help: {help}");
    }
}

#[test]
fn bad_usage_exits_with_64() {
    let store = Store::new();
    for args in [
        &["walk"][..],
        &["run"],
        &["run", "x"],
        &["run", "x", "true"],
        &["run", "--try", "--wait", "1s", "x", "--", "true"],
        &["run", "--frobnicate", "x", "--", "true"],
        &["run", "--ttl", "soon", "x", "--", "true"],
        &["run", "--ttl", "0s", "x", "--", "true"],
        &["run", "--ttl", "1ns", "x", "--", "true"],
        &["run", "--ttl", "-5s", "x", "--", "true"],
        &["run", "--ttl", "18446744073709551615s", "x", "--", "true"],
        &["run", "--ttl", "99999999999999999999y", "x", "--", "true"],
        &["run", "--max-hold", "0s", "x", "--", "true"],
        &["run", "--wait", "-1s", "x", "--", "true"],
        &["show"],
        &["break"],
        &["completions", "tcl"],
    ] {
        failed(&store.output(args), 64);
    }
    assert_eq!(text(&store.output(["ls"]).stdout), "", "nothing was locked");
    let empty = text(&store.output(["ls"]).stderr);
    assert!(empty.contains(&format!("no lock is held or waited for in {}", store.url())), "{empty}");
    // Also where a variable names the store: it need not be written.
    let usage = failed(&store.output(["show"]), 64);
    assert!(usage.contains("Usage: lockkeeper show <NAME>"), "{usage}");
}

#[test]
fn a_name_that_is_none_exits_with_64() {
    let store = Store::new();
    let names = [
        (OsString::new(), "empty"),
        ("x".repeat(513).into(), "at most 512"),
        ("a\nb".into(), "control character"),
        ("\x1b[31m".into(), "control character"),
        ("\u{85}".into(), "control character"),
        (OsString::from_vec(b"a\xffb".to_vec()), "not UTF-8"),
    ];
    for (name, said) in names {
        let run: [OsString; 5] = ["run".into(), "--try".into(), name.clone(), "--".into(), "true".into()];
        for args in [&run[..], &["show".into(), name.clone()], &["break".into(), name.clone()]] {
            let error = failed(&store.output(args), 64);
            assert!(error.contains(said), "{name:?}: {error}");
            assert!(!error.contains('\x1b'));
        }
    }
    let prefix = [OsString::from("ls"), OsString::from_vec(vec![0xff])];
    assert!(failed(&store.output(&prefix), 64).contains("not UTF-8"));
}

#[test]
fn an_unknown_store_or_option_exits_with_64() {
    let store = Store::new();
    for (url, said) in [
        ("teapot://x", "teapot"),
        ("locks.db", "no scheme"),
        ("memory:x", "memory:"),
        (&format!("{}?speed=fast", store.url()), "speed"),
        ("sqlite:", "file"),
    ] {
        let error = failed(&output(&mut lockkeeper(["--url", url, "ls"])), 64);
        assert!(error.contains(said), "{url}: {error}");
        assert!(error.contains("\nhint: "), "{url}: {error}");
    }
}

#[test]
fn no_secret_is_ever_printed() {
    let secret = "hunter2";
    for url in [
        "teapot://user:hunter2@host/x",
        "sqlite://user:hunter2@host/x",
        "sqlite:/nowhere/at/all?password=hunter2",
        "user:hunter2@host",
    ] {
        for args in [&["ls"][..], &["run", "x", "--", "true"], &["doctor"], &["--help"], &["walk"]] {
            let by_option = output(lockkeeper(["--url", url]).args(args));
            let by_variable = output(lockkeeper(args).env("LOCKKEEPER_URL", url));
            for end in [by_option, by_variable] {
                let printed = text(&end.stdout) + &text(&end.stderr);
                assert!(!printed.contains(secret), "{url} {args:?}: {printed}");
            }
        }
    }
    // Also not when it stands where no URL belongs.
    let error = failed(&output(&mut lockkeeper(["ls", "x", "redis://user:hunter2@host"])), 64);
    assert!(!error.contains(secret), "{error}");
}

#[test]
fn completions_know_the_commands_and_not_the_helpers() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let end = output(&mut lockkeeper(["completions", shell]));
        let script = text(&end.stdout);
        assert_eq!(code(&end), 0);
        assert!(script.contains("max-hold") && script.contains("doctor"), "{shell}");
        assert!(!script.contains("__warden"), "{shell}");
    }
}

#[test]
fn the_default_store_is_made_in_the_state_folder_for_its_user_alone() {
    let home = TempDir::new().unwrap();
    let state = home.path().join("deep/state");
    for (variable, value, made) in [
        ("XDG_STATE_HOME", state.as_path(), state.join("lockkeeper")),
        ("HOME", home.path(), home.path().join(".local/state/lockkeeper")),
    ] {
        let mut command = lockkeeper(["run", "hello", "--", "echo", "held"]);
        command.env_remove("XDG_STATE_HOME").env_remove("HOME").env(variable, value);
        let end = output(&mut command);
        assert_eq!((code(&end), text(&end.stdout)), (0, "held\n".into()), "{end:?}");
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(made.join("locks.db").is_file());
    }
}

#[test]
fn without_a_home_it_says_what_to_do() {
    let mut command = lockkeeper(["ls"]);
    command.env_remove("HOME").env("XDG_STATE_HOME", "not/absolute");
    let error = failed(&output(&mut command), 64);
    assert!(error.contains("HOME") && error.contains("hint: name a store with --url"), "{error}");
    // An empty variable is no URL but none.
    assert_eq!(failed(&output(command.env("LOCKKEEPER_URL", "")), 64), error);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_and_a_full_disk_is() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = lockkeeper(["completions", "bash"]);
    let end = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let end = common::finish(end);
    assert_eq!((code(&end), text(&end.stderr)), (0, String::new()));

    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let end = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let end = common::finish(end);
    assert!(failed(&end, 74).contains("standard output"));
}
