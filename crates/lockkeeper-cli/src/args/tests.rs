//! The command line as it is understood, without a store.

use clap::CommandFactory as _;

use super::*;

fn run(args: &[&str]) -> std::result::Result<Run, clap::Error> {
    match Cli::try_parse_from(["lockkeeper", "run"].iter().chain(args))?.command {
        Command::Run(run) => Ok(*run),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn everything_after_the_dashes_belongs_to_the_command() {
    let run = run(&["--ttl", "5s", "a b", "--", "ls", "--url", "-l", "--", "x"]).unwrap();
    assert_eq!(run.wanted().unwrap()[0].key.as_str(), "a b");
    assert_eq!(run.command(), ["ls", "--url", "-l", "--", "x"]);
    assert_eq!(run.ttl(), Duration::from_secs(5));
}

#[test]
fn a_name_may_begin_with_a_dash() {
    for args in [&["--name=-x", "--", "true"][..], &["--name", "-x", "--", "true"]] {
        assert_eq!(run(args).unwrap().wanted().unwrap()[0].key.as_str(), "-x");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        &["x"][..],
        &["--", "true"],
        &["x", "true"],
        &["--try", "--wait", "1s", "x", "--", "true"],
        &["x", "--name", "y", "--", "true"],
        &["--ttl", "0s", "x", "--", "true"],
        &["--ttl", "-5s", "x", "--", "true"],
        &["--ttl", "soon", "x", "--", "true"],
        &["--ttl", "5", "x", "--", "true"],
        &["--ttl", "", "x", "--", "true"],
        &["--max-hold", "0s", "x", "--", "true"],
        &["--wait", "-1s", "x", "--", "true"],
        &["--shared", "--permits", "1/5", "x", "--", "true"],
        &["--permits", "0/5", "x", "--", "true"],
    ] {
        assert!(run(args).is_err(), "{args:?}");
    }
}

#[test]
fn what_is_wanted_is_named_once_and_the_stronger_wish_counts() {
    let wanted = |args: &[&str]| -> Vec<(String, Load)> {
        let all = run(&[args, &["--", "true"]].concat()).unwrap().wanted().unwrap();
        all.into_iter().map(|it| (it.key.to_string(), it.load)).collect()
    };
    let (x, y) = ("x".to_owned(), "y".to_owned());
    assert_eq!(wanted(&["x"]), [(x.clone(), Load::MUTEX)]);
    assert_eq!(wanted(&["--shared", "x"]), [(x.clone(), Load::READER)]);
    assert_eq!(wanted(&["--permits", "2/5", "x"]), [(x.clone(), Load::new(2, 5))]);
    assert_eq!(
        wanted(&["--shared", "x", "--also", "y", "--also", "y"]),
        [(x.clone(), Load::READER), (y, Load::MUTEX)]
    );
    assert_eq!(wanted(&["--shared", "x", "--also", "x"]), [(x, Load::MUTEX)]);
    assert_eq!(wanted(&["x", "--also=-z"])[1].0, "-z");
}

#[test]
fn a_wait_too_long_to_count_is_for_ever() {
    for wait in ["99999999999999999999y", "18446744073709551615s", "18446744073709551615y"] {
        let run = run(&["--wait", wait, "x", "--", "true"]).unwrap();
        assert!(run.wait.unwrap() >= Duration::from_secs(u64::MAX), "{wait}");
    }
    assert_eq!(run(&["--wait", "0s", "x", "--", "true"]).unwrap().wait, Some(Duration::ZERO));
}

#[test]
fn what_users_of_flock_write_is_understood() {
    let mut short = run(&["-n", "-s", "x", "-c", "a | b"]).unwrap();
    assert!(short.attempt);
    assert_eq!(short.command(), ["sh", "-c", "a | b"]);
    assert_eq!(short.wanted().unwrap()[0].load, Load::READER);
    for (text, wait) in [("5", 5_000), ("0.5", 500), ("0", 0)] {
        short = run(&["-w", text, "x", "--", "true"]).unwrap();
        short.adopt(&Config::default());
        assert_eq!(short.wait, Some(Duration::from_millis(wait)), "{text}");
    }
    short = run(&["-w", "1e300", "x", "--", "true"]).unwrap();
    short.adopt(&Config::default());
    assert_eq!(short.wait, Some(Duration::MAX));
    for args in [
        &["-w", "-1", "x", "--", "true"][..],
        &["-w", "5s", "x", "--", "true"],
        &["-w", "NaN", "x", "--", "true"],
        &["-w", "1", "--wait", "1s", "x", "--", "true"],
        &["-n", "-w", "1", "x", "--", "true"],
        &["-c", "true", "x", "--", "true"],
        &["-c", "true"],
    ] {
        assert!(run(args).is_err(), "{args:?}");
    }
}
