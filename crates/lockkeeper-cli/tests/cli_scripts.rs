//! What scripts and users of `flock` need: codes for free and held, waiting without taking, short options, and what is said
//! to those who write something else.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Store, Talking, code, failed, lockkeeper, output, text};

#[test]
fn whether_a_lock_is_free_is_told_by_the_code() {
    let store = Store::new();
    let free = store.output(["status", "job"]);
    assert_eq!((code(&free), text(&free.stdout).as_str()), (0, "free\n"), "{free:?}");
    let (holding, _) = store.holding(&["job"]);
    let held = store.output(["status", "job"]);
    assert_eq!(code(&held), 75, "{held:?}");
    assert!(text(&held.stdout).starts_with("held by "), "{held:?}");
    let quiet = store.output(["status", "-q", "job"]);
    assert_eq!(code(&quiet), 75);
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{quiet:?}");
    assert_eq!(code(&store.output(["status", "-q", "another"])), 0);
    holding.let_go();
    assert_eq!(code(&store.output(["status", "-q", "job"])), 0);
    failed(&store.output(["status", "-q", ""]), 64);
    failed(&store.output(["status"]), 64);
    store.expect_empty();
}

#[test]
fn waiting_takes_nothing_and_ends_when_the_lock_is_free() {
    let store = Store::new();
    assert_eq!(code(&store.output(["wait", "job"])), 0, "it is free");
    let (holding, _) = store.holding(&["job"]);
    for args in [["wait", "--wait", "10ms", "job"], ["wait", "-w", "0.01", "job"]] {
        let ended = store.output(args);
        failed(&ended, 75);
        assert!(text(&ended.stderr).contains("`job` is not free yet\nhint: held by "), "{ended:?}");
    }
    let waiting = Talking::start(&mut store.lockkeeper(["wait", "job"]));
    assert!(store.shown("job")["waiters"].as_array().unwrap().is_empty(), "it stands in no line");
    holding.let_go();
    assert_eq!(waiting.finish(), (0, String::new()));
    failed(&store.output(["wait", "-w", "5s", "job"]), 64);
    store.expect_empty();
}

#[test]
fn users_of_flock_are_at_home() {
    let store = Store::new();
    let piped = store.output(["run", "job", "-c", "echo one two | wc -w"]);
    assert_eq!((code(&piped), text(&piped.stdout).trim()), (0, "2"), "{piped:?}");
    assert_eq!(code(&store.output(["run", "job", "-c", "exit 7"])), 7);
    let (holding, _) = store.holding(&["job"]);
    for args in [&["-n"][..], &["-w", "0"], &["-w", "0.01"], &["-n", "-s"]] {
        assert_eq!(store.code_of(&[args, &["job"]].concat()), 75, "{args:?}");
    }
    for (args, code) in [(&["-n", "-E", "0"][..], 0), (&["-w", "0.01", "-E3"], 3), (&["-E", "3", "-n"], 3)] {
        assert_eq!(store.code_of(&[args, &["job"]].concat()), code, "{args:?}");
    }
    assert_eq!(store.code_of(&["-E", "256", "job"]), 64);
    holding.let_go();
    let own = store.output(["run", "-E", "3", "job", "-c", "exit 75"]);
    assert_eq!(code(&own), 75, "the code of the command stays its own");
    let (reader, _) = store.holding(&["-s", "job"]);
    assert_eq!(store.code_of(&["-n", "-s", "job"]), 0, "beside another that shares");
    assert_eq!(store.code_of(&["-n", "job"]), 75);
    reader.let_go();
    store.expect_empty();
}

#[test]
fn who_forgets_the_dashes_is_told_what_to_write() {
    let store = Store::new();
    for (args, usage) in [
        (&["run", "x", "echo", "hi"][..], "lockkeeper run [OPTIONS] NAME -- CMD [ARG]..."),
        (&["run", "x"], "lockkeeper run [OPTIONS] NAME -- CMD [ARG]..."),
        (&["--url", "memory:", "run", "x", "ls", "-l"], "lockkeeper run [OPTIONS] NAME -- CMD [ARG]..."),
        (&["once", "x", "1", "true"], "lockkeeper once [OPTIONS] NAME TICK -- CMD [ARG]..."),
        (&["elect", "x", "true"], "lockkeeper elect [OPTIONS] NAME -- CMD [ARG]..."),
        (&["run", "-w", "5", "x", "sh", "-c", "make"], "lockkeeper run [OPTIONS] NAME -- CMD [ARG]..."),
        (&["run", "show", "status"], "lockkeeper run [OPTIONS] NAME -- CMD [ARG]..."),
    ] {
        let end = store.output(args);
        failed(&end, 64);
        let hint = format!("hint: write `--` before the command: `{usage}`");
        assert!(text(&end.stderr).contains(&hint), "{args:?}: {end:?}");
    }
}

#[test]
fn who_made_another_mistake_is_not_told_of_dashes() {
    let store = Store::new();
    for args in [
        &["run", "--frobnicate", "x", "--", "true"][..],
        &["run", "--frobnicate", "x", "true"],
        &["run", "--wait", "5", "job", "-c", "make"],
        &["run", "--wait", "5", "job", "make"],
        &["run", "-n", "-w", "5", "job", "-c", "x"],
        &["run", "-c", "make"],
        &["run", "-nc", "make"],
        &["run", "job", "-c", "make", "extra"],
        &["show", "run", "extra"],
        &["status", "--bogus", "run"],
        &["--url", "run", "show", "x", "y"],
    ] {
        let error = failed(&store.output(args), 64);
        assert!(!error.contains("hint: write `--`"), "{args:?}: {error}");
    }
}

/// All that can be built in, and whether it is.
const FEATURES: [(&str, bool); 13] = [
    ("demo", cfg!(feature = "demo")),
    ("etcd", cfg!(feature = "etcd")),
    ("mysql", cfg!(feature = "mysql")),
    ("postgres", cfg!(feature = "postgres")),
    ("redis", cfg!(feature = "redis")),
    ("redlock", cfg!(feature = "redlock")),
    ("serve", cfg!(feature = "serve")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("tls", cfg!(feature = "tls")),
    ("torture", cfg!(feature = "torture")),
    ("twophase", cfg!(feature = "twophase")),
    ("zookeeper", cfg!(feature = "zookeeper")),
    ("zookeeper-tls", cfg!(feature = "zookeeper-tls")),
];

#[test]
fn the_version_tells_what_was_built_in() {
    let long = text(&output(&mut lockkeeper(["--version"])).stdout);
    assert!(long.starts_with(concat!("lockkeeper ", env!("CARGO_PKG_VERSION"), "\n")), "{long}");
    let (built, not): (Vec<_>, Vec<_>) = FEATURES.iter().partition(|it| it.1);
    let list = |them: Vec<&(&str, bool)>| {
        let names: Vec<&str> = them.iter().map(|it| it.0).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let told: Vec<&str> = long.lines().skip(1).collect();
    let expected = [format!("features: {}", list(built)), format!("not built in: {}", list(not))];
    assert_eq!(told, expected, "{long}");
    assert_eq!(text(&output(&mut lockkeeper(["version"])).stdout), long);
    let short = text(&output(&mut lockkeeper(["-V"])).stdout);
    assert_eq!(short, concat!("lockkeeper ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn settings_that_nobody_named_are_named() {
    let store = Store::new();
    let folder = store.folder.path().canonicalize().unwrap();
    std::fs::write(folder.join("lockkeeper.toml"), format!("url = \"{}\"", store.url())).unwrap();
    let found = output(lockkeeper(["ls"]).current_dir(&folder));
    let expected = format!("lockkeeper: settings of {}\n", folder.join("lockkeeper.toml").display());
    assert!(code(&found) == 0 && text(&found.stderr).starts_with(&expected), "{found:?}");
    let named = output(lockkeeper(["--config", "lockkeeper.toml", "ls"]).current_dir(&folder));
    assert!(!text(&named.stderr).contains("settings of"), "{named:?}");
}

#[test]
fn a_hint_leads_to_a_page_that_everybody_can_read() {
    let end = output(lockkeeper(["ls"]).env("LOCKKEEPER_TTL", "soon"));
    failed(&end, 64);
    let said = text(&end.stderr);
    assert!(said.contains("https://") && said.contains("docs/guides/configuration.md"), "{said}");
    let help = text(&output(&mut lockkeeper(["ls", "--help"])).stdout);
    assert!(help.contains("https://"), "{help}");
    for option in ["--url <URL>", "--config <FILE>"] {
        assert!(help.contains(&format!("\n      {option}\n")), "{option}: {help}");
    }
}

#[test]
fn who_runs_it_is_known_without_an_environment() {
    let store = Store::new();
    let args = ["run", "job", "--", "sh", "-c", "echo $LOCKKEEPER_FENCE; exec cat"];
    let mut command = store.lockkeeper(args);
    command.env_remove("USER").env_remove("LOGNAME").stdin(std::process::Stdio::piped());
    let holding = Talking::start(&mut command);
    holding.fence();
    let whoami = std::process::Command::new("id").arg("-un").output().unwrap();
    let expected = match code(&whoami) {
        0 => text(&whoami.stdout).trim().to_owned(),
        _ => format!("uid:{}", rustix::process::getuid()),
    };
    assert_eq!(store.shown("job")["holders"][0]["owner"], expected);
    holding.let_go();
}

#[test]
fn there_are_manual_pages() {
    let folder = tempfile::TempDir::new().unwrap();
    let pages = folder.path().join("man1");
    let end = output(&mut lockkeeper(["man", pages.to_str().unwrap()]));
    assert_eq!(code(&end), 0, "{end:?}");
    for (page, says) in [
        ("lockkeeper.1", "holding a lock"),
        ("lockkeeper-run.1", "Exit codes"),
        ("lockkeeper-break.1", "Take a lock away"),
    ] {
        let page = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(page.starts_with('.') && page.contains(says), "{says}: {page}");
    }
    let help = text(&output(&mut lockkeeper(["--help"])).stdout);
    let commands = help.split_once("\nCommands:\n").unwrap().1.split("\n\n").next().unwrap();
    let named: Vec<&str> = commands
        .lines()
        .filter_map(|it| it.strip_prefix("  ")?.split(' ').next())
        .filter(|it| !it.is_empty())
        .collect();
    assert!(named.contains(&"run") && named.contains(&"wait"), "{help}");
    for command in named.iter().filter(|it| **it != "help") {
        assert!(pages.join(format!("lockkeeper-{command}.1")).exists(), "{command} has no page");
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    failed(&output(&mut lockkeeper(["man", file.to_str().unwrap()])), 71);
}

/// What bash offers at the end of a line: a word per line.
fn offered(store: &Store, line: &str) -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap().to_str().unwrap();
    let script = text(&output(&mut lockkeeper(["completions", "bash"])).stdout);
    // As bash itself calls it: words end at blanks, and at colons, too.
    let call = r#"COMP_POINT=${#COMP_LINE} COMP_WORDS=(${COMP_LINE//:/ : }) last="${COMP_LINE##*[[:space:]:]}"
        [[ -n "$last" ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _lockkeeper_names lockkeeper "$last" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = std::process::Command::new("bash");
    bash.args(["--norc", "-c", &format!("{script}\n{call}")]).env("COMP_LINE", line);
    bash.env("PATH", format!("{folder}:/usr/bin:/bin")).env("LOCKKEEPER_URL", store.url());
    bash.env_remove("LOCKKEEPER_CONFIG").current_dir(store.folder.path());
    let end = output(&mut bash);
    assert_eq!((code(&end), text(&end.stderr).as_str()), (0, ""), "{line}: {end:?}");
    text(&end.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn names_of_locks_are_completed() {
    let (store, other) = (Store::new(), Store::new());
    assert!(!offered(&store, "lockkeeper show o").contains(&"orders/42".to_owned()));
    assert!(!store.path("locks.db").exists(), "a key that is pressed makes no file");
    let (order, _) = store.holding(&["orders/42", "--also", "shop:product:7", "--also", "two words"]);
    for command in ["run", "run --ttl 5s", "run x --also", "show", "status -q", "wait", "break", "ls", "top"]
    {
        assert_eq!(offered(&store, &format!("lockkeeper {command} o")), ["orders/42"], "{command}");
    }
    assert_eq!(
        offered(&store, "lockkeeper show "),
        ["orders/42", "shop:product:7"],
        "those that need no quotes"
    );
    assert_eq!(offered(&store, "lockkeeper show shop:pro"), ["product:7"], "what follows the colon");
    let elsewhere = format!("lockkeeper --url {} show o", other.url());
    for line in ["lockkeeper run --ttl ", "lockkeeper config ", "lockkeeper run x -- o", elsewhere.as_str()] {
        assert!(!offered(&store, line).contains(&"orders/42".to_owned()), "{line}");
    }
    assert!(!other.path("locks.db").exists());
    order.let_go();
    // A store that cannot be used offers nothing, and says nothing.
    offered(&Store::at("redis://127.0.0.1:1"), "lockkeeper show o");
}
