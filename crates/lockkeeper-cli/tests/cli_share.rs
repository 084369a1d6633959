//! `run --shared` and `run --permits`: who runs beside whom, who waits, what is refused, and what `ls` and `show` tell.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Store, Talking, code, failed, text};
use rustix::process::Signal;
use serde_json::Value;

/// Kinds, weights and capacities of those who hold or wait.
fn kinds(occupants: &Value) -> Vec<String> {
    let all = occupants.as_array().unwrap().iter();
    all.map(|it| format!("{} {}/{}", it["kind"].as_str().unwrap(), it["weight"], it["capacity"])).collect()
}

const READER: &str = "reader 1/4294967295";

/// Readers beside each other, a plain `run` alone, and nobody passes it.
fn readers_and_one_alone(store: &Store) {
    let (before, first) = store.holding(&["x"]);
    before.let_go();
    let (one, a) = store.holding(&["--shared", "--note", "reads", "x"]);
    let (other, b) = store.holding(&["--shared", "x"]);
    assert!(first < a && first < b, "later than who was alone before: {first}, {a}, {b}");

    let error = failed(&store.output(["run", "--try", "x", "--", "true"]), 75);
    assert!(error.contains(", a reader, for ") && error.contains(" and 1 other"), "{error}");
    assert_eq!(store.code_of(&["--shared", "--try", "x"]), 0, "there is room for another reader");

    let alone = store.holder(&["x"]);
    store.await_waiters("x", 1);
    assert_eq!(store.code_of(&["--shared", "--try", "x"]), 75, "somebody waits to be alone");
    assert_eq!(store.code_of(&["--shared", "--wait", "50ms", "x"]), 75);
    let late = store.holder(&["--shared", "x"]);
    store.await_waiters("x", 2);
    let shown = store.shown("x");
    assert_eq!(kinds(&shown["holders"]), [READER, READER]);
    assert_eq!(kinds(&shown["waiters"]), ["lock 1/1", READER]);

    one.let_go();
    other.let_go();
    let c = alone.fence();
    assert!(a < c && b < c, "earlier than who is alone after: {a}, {b}, {c}");
    let shown = store.shown("x");
    assert_eq!(
        (kinds(&shown["holders"]), kinds(&shown["waiters"])),
        (vec!["lock 1/1".into()], vec![READER.into()])
    );
    alone.let_go();
    assert!(c < late.fence());
    late.let_go();
    store.expect_empty();
}

/// Two of five and two of five leave one.
fn permits(store: &Store) {
    let (one, _) = store.holding(&["--permits", "2/5", "--note", "two", "pool"]);
    let (other, _) = store.holding(&["--permits", "2/5", "pool"]);
    let error = failed(&store.output(["run", "--try", "--permits", "2/5", "pool", "--", "true"]), 75);
    assert!(error.contains(", 2 of 5 permits, for ") && error.contains("two"), "{error}");
    assert_eq!(store.code_of(&["--permits", "1/5", "--try", "pool"]), 0, "one is left");
    assert_eq!(store.code_of(&["--try", "pool"]), 75, "a plain `run` is alone");

    let big = store.holder(&["--permits", "4/5", "pool"]);
    store.await_waiters("pool", 1);
    assert_eq!(store.code_of(&["--permits", "1/5", "--try", "pool"]), 75, "the small do not pass the big");
    let shown = store.shown("pool");
    assert_eq!(kinds(&shown["holders"]), ["permits 2/5", "permits 2/5"]);
    assert_eq!(kinds(&shown["waiters"]), ["permits 4/5"]);
    one.let_go();
    other.let_go();
    big.fence();
    big.let_go();
    store.expect_empty();
}

#[test]
fn readers_run_side_by_side_and_a_plain_run_alone() {
    readers_and_one_alone(&Store::new());
}

#[test]
fn permits_are_counted_over_processes() {
    permits(&Store::new());
}

/// Many processes at once: none alone beside another, never more permits out than there are.
fn crowd(store: &Store) {
    // Whoever is inside has a file in the folder.
    let inside = store.path("inside");
    std::fs::create_dir(&inside).unwrap();
    let script = "cd \"$0\" && : > $$ && set -- * && rm $$ && echo $#";
    let most = |args: &[&str]| -> usize {
        let args = [&["run"], args, &["--", "sh", "-c", script]].concat();
        let end = common::output(store.lockkeeper(args).arg(&inside));
        assert_eq!(code(&end), 0, "{end:?}");
        text(&end.stdout).trim().parse().unwrap()
    };
    std::thread::scope(|scope| {
        for at in 0..12 {
            let most = &most;
            scope.spawn(move || {
                for _ in 0..3 {
                    match at % 3 {
                        0 => assert_eq!(most(&["pool"]), 1, "somebody was beside one who is alone"),
                        1 => assert!(most(&["--permits", "1/3", "pool"]) <= 3),
                        _ => assert!(most(&["--permits", "2/3", "pool"]) <= 2),
                    }
                }
            });
        }
    });
    store.expect_empty();
}

#[test]
fn in_a_crowd_of_processes_never_more_permits_are_out_than_there_are() {
    crowd(&Store::new());
}

#[test]
fn numbers_that_make_no_sense_are_refused_in_words_and_nothing_is_left() {
    let store = Store::new();
    for (permits, said) in [
        ("0/5", "0 permits are nothing to hold; ask for at least 1"),
        ("6/5", "6 permits of 5 can never be granted"),
        ("2/0", "of 0 permits none can be granted"),
        ("x", "how many of how many"),
        ("5", "how many of how many"),
        ("-1/5", "how many of how many"),
        ("", "how many of how many"),
        ("99999999999/99999999999", "up to 4294967295"),
    ] {
        let end = store.output(["run", "--permits", permits, "pool", "--", "echo", "ran"]);
        let error = failed(&end, 64);
        assert!(error.contains(said) && error.contains("--permits"), "{permits}: {error}");
    }
    for args in [["--shared", "--permits=1/5"], ["--shared", "--alone"], ["--permits=1/5", "--alone"]] {
        let error = failed(&store.output(["run"].iter().chain(&args).chain(&["pool", "--", "true"])), 64);
        assert!(error.contains("cannot be used with"), "{error}");
    }
    store.expect_empty();
}

#[test]
fn a_share_is_kept_and_lost_as_a_lock_is() {
    let store = Store::new();
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let start = |args: &[&str]| {
        let args = [&["run"], args, &["--", "sh", "-c", script]].concat();
        let talking = Talking::start(&mut store.lockkeeper(args));
        talking.expect("ready");
        talking
    };
    let short = start(&["--permits", "2/5", "--max-hold", "6s", "pool"]);
    let (code, said) = short.finish();
    assert!(code == 76 && said.contains("max_hold"), "{code}: {said}");

    let readers = [start(&["--shared", "--ttl", "6s", "x"]), start(&["--shared", "--ttl", "6s", "x"])];
    let broken = store.output(["break", "x"]);
    assert_eq!(text(&broken.stdout).lines().filter(|it| it.ends_with(", a reader")).count(), 2, "{broken:?}");
    for reader in readers {
        let (code, said) = reader.finish();
        assert!(code == 76 && said.contains("no longer knows it as ours"), "{code}: {said}");
    }
    store.expect_empty();
}

#[test]
fn one_that_waits_for_permits_and_is_told_to_end_leaves_the_line() {
    let store = Store::new();
    let (holder, _) = store.holding(&["--permits", "3/5", "pool"]);
    let waiter = store.holder(&["--permits", "3/5", "pool"]);
    store.await_waiters("pool", 1);
    waiter.send(Signal::TERM);
    assert_eq!((waiter.line(), waiter.finish().0), (None, 143));
    assert_eq!(store.code_of(&["--permits", "2/5", "--try", "pool"]), 0, "it stands in nobody's way");
    holder.let_go();
    store.expect_empty();
}

#[test]
fn the_kind_is_told_in_words() {
    let store = Store::new();
    let held = [
        store.holding(&["--shared", "a"]).0,
        store.holding(&["--permits", "2/5", "b"]).0,
        store.holding(&["c"]).0,
    ];
    let waiting = [&["a"][..], &["--shared", "a"]].map(|args| {
        let waiting = store.shown("a")["waiters"].as_array().unwrap().len();
        let holder = store.holder(args);
        store.await_waiters("a", waiting + 1);
        holder
    });
    let listed = text(&store.output(["ls"]).stdout);
    let rows: Vec<_> = listed.lines().collect();
    assert!(rows[0].contains("  KIND  "), "{listed}");
    for (row, kind) in [(1, "  reader  "), (2, "  2 of 5 permits  "), (3, "  lock  ")] {
        assert!(rows[row].contains(kind), "{listed}");
    }
    assert!(rows[1].ends_with("  2 (1 lock, 1 reader)") && rows[3].ends_with("  0"), "{listed}");
    let words = text(&store.output(["show", "a"]).stdout);
    for said in ["  kind:     reader\n", "waiters:    2 (1 lock, 1 reader)\n", "  1. lock: ", "  2. reader: "]
    {
        assert!(words.contains(said), "{said}: {words}");
    }
    assert!(text(&store.output(["show", "b"]).stdout).contains("  kind:     2 of 5 permits\n"));
    held.into_iter().for_each(Talking::let_go);
    for it in waiting {
        it.fence();
        it.let_go();
    }
}

#[test]
fn the_configuration_may_say_how_a_lock_is_shared() {
    let store = Store::new();
    let words = "[locks.\"pool\"]\npermits = \"2/5\"\n[locks.\"prices\"]\nshared = true\n";
    std::fs::write(store.path("lockkeeper.toml"), words).unwrap();
    let start = |args: &[&str]| {
        let args = ["run"].iter().chain(args).chain(&["--", "sh", "-c", "echo held; exec cat"]);
        let mut command = store.lockkeeper(args);
        // Named, so that nothing is said about it.
        command.env("LOCKKEEPER_CONFIG", store.path("lockkeeper.toml")).stdin(std::process::Stdio::piped());
        let talking = Talking::start(&mut command);
        talking.expect("held");
        talking
    };
    for (args, kind) in [
        (&["pool"][..], "permits 2/5"),
        (&["prices"], READER),
        (&["other"], "lock 1/1"),
        (&["--alone", "pool"], "lock 1/1"),
        (&["--permits", "1/5", "pool"], "permits 1/5"),
        (&["--shared", "pool"], READER),
    ] {
        let talking = start(args);
        assert_eq!(kinds(&store.shown(args.last().unwrap())["holders"]), [kind], "{args:?}");
        talking.let_go();
    }
    let both = start(&["other", "--also", "pool"]);
    assert_eq!(kinds(&store.shown("pool")["holders"]), ["permits 2/5"]);
    both.let_go();
    std::fs::write(store.path("lockkeeper.toml"), "[locks.\"pool\"]\npermit = \"2/5\"").unwrap();
    let mut command = store.lockkeeper(["run", "pool", "--", "true"]);
    let error = failed(&common::output(command.current_dir(store.folder.path())), 64);
    assert!(error.contains("lockkeeper.toml:2") && error.contains("did you mean `permits`?"), "{error}");
    store.expect_empty();
}

#[cfg(feature = "redis")]
mod on_redis {
    use lockkeeper_servers::{Redis, RedisOptions};

    use super::{Store, crowd, failed, permits, readers_and_one_alone};

    /// Do it while the server goes on.
    async fn on(url: String, test: impl FnOnce(&Store) + Send + 'static) {
        tokio::task::spawn_blocking(move || test(&Store::at(url))).await.unwrap();
    }

    #[tokio::test]
    async fn readers_permits_and_a_crowd() {
        let server = Redis::start(RedisOptions::default()).await.unwrap();
        on(server.url(), readers_and_one_alone).await;
        on(server.url(), permits).await;
        on(server.url(), crowd).await;
    }

    #[cfg(feature = "redlock")]
    #[tokio::test]
    async fn a_majority_of_servers_has_one_holder_at_a_time_and_says_so() {
        let servers = Redis::masters(3).await.unwrap();
        let hosts: Vec<_> = servers.iter().map(|it| it.address()).collect();
        let url = format!("redlock://{}?restart_guard=off", hosts.join(","));
        on(url, |store| {
            for args in [&["--shared"][..], &["--permits", "2/5"], &["--shared", "--also", "y"]] {
                let args = ["run"].iter().chain(args).chain(&["x", "--", "echo", "ran"]);
                let error = failed(&store.output(args), 64);
                assert!(error.contains("one holder at a time"), "{error}");
                assert!(error.contains("hint: leave out --shared and --permits"), "{error}");
            }
            store.expect_empty();
            assert_eq!(store.code_of(&["--try", "x"]), 0);
        })
        .await;
    }
}
