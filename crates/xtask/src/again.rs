//! A test that failed is asked once more, alone, and told as unsteady if it then passes.
//!
//! Hundreds of our tests kill, stop and starve real servers. One of them that a slow machine got wrong is a mistake of
//! that test and must be mended, but it does not make the change wrong that is being tested. What may never be put down
//! to the machine is final at once: two holders, a fence that fell, or a bank that lost a coin.

use crate::programs::{Program, Run};
use crate::shell;

/// More than this many in one run are no accident.
const TESTS_MAX: usize = 3;
/// What the checkers of histories, and the short tortures, say when a promise was broken. Chance finds such a thing, and
/// chance hides it again.
const FINAL: &[&str] = &["Exclusion broken for", "Fence broken for", PROMISE];
const PROMISE: &str = "A promise was broken";

/// The result of a whole run: `Ok` if nothing failed, or if everything that did passes alone.
pub(crate) fn judge(what: &str, run: &Run) -> Result<(), String> {
    let ends = run.failed.iter().filter_map(|it| it.1.as_ref().ok());
    let asked: usize = ends.map(|it| tests_of(&it.printed).len()).sum();
    let mut bad = Vec::new();
    let mut unsteady = Vec::new();
    for (program, end) in &run.failed {
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                bad.push(format!("{} ({error})", program.name));
                continue;
            }
        };
        let tests = tests_of(&end.printed);
        let hopeless = tests.is_empty() || asked > TESTS_MAX || is_final(&end.printed);
        if !hopeless && passes_alone(program, &tests)? {
            unsteady.extend(tests.iter().map(|it| format!("{}::{it}", program.name)));
        } else {
            bad.push(format!("{} ({})", program.name, end.status));
        }
    }
    if !unsteady.is_empty() {
        let list = unsteady.join("\n  ");
        shell::say(&format!(
            "xtask: {what}: UNSTEADY, failed beside others and passed alone; mend them:\n  {list}"
        ));
    }
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort();
    Err(format!("{what}: {} of {} programs failed:\n  {}", bad.len(), run.count, bad.join("\n  ")))
}

fn is_final(printed: &str) -> bool {
    FINAL.iter().any(|it| printed.contains(it))
}

/// The tests that a program says have failed. None if it ended before it could say so.
fn tests_of(printed: &str) -> Vec<String> {
    if !printed.lines().any(|it| it.starts_with("test result: FAILED")) {
        return Vec::new();
    }
    let failed = printed.lines().filter_map(|it| it.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    failed.map(|it| it.split(" - ").next().unwrap_or(it).to_owned()).collect()
}

fn passes_alone(program: &Program, tests: &[String]) -> Result<bool, String> {
    let mut alone = program.clone();
    alone.words.push("--exact".to_owned());
    alone.words.extend_from_slice(tests);
    shell::say(&format!("xtask: {}: once more, alone: {}", program.name, tests.join(", ")));
    let end = alone.run()?;
    let ran = end.printed.lines().filter(|it| it.starts_with("test ") && it.ends_with(" ... ok")).count();
    Ok(end.status.success() && ran == tests.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::programs::End;

    /// A program that prints this the first time; asked with `--exact`, it says `second`.
    fn failed(first: &str, second: &str) -> (Program, Result<End, String>) {
        let script = format!("if test \"$1\" = --exact; then {second}; else printf '{first}'; exit 101; fi");
        let words = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        let folder = std::env::temp_dir();
        let program = Program { name: "kit: odd".to_owned(), words, folder, variables: BTreeMap::new() };
        let end = program.run();
        (program, end)
    }

    fn run_of(failed: Vec<(Program, Result<End, String>)>) -> Run {
        Run { count: 9, failed }
    }

    const RED: &str = "test a::b ... FAILED\\ntest a::c ... ok\\ntest result: FAILED. 1 passed; 1 failed\\n";
    const GREEN: &str = "test \"$2\" = a::b && echo test a::b ... ok";

    #[test]
    fn what_passes_alone_is_told_and_is_no_failure() {
        assert_eq!(judge("tests", &run_of(vec![failed(RED, GREEN)])), Ok(()));
        assert_eq!(judge("tests", &run_of(vec![])), Ok(()));
    }

    #[test]
    fn what_fails_again_or_is_not_run_at_all_is_a_failure() {
        let again = judge("tests", &run_of(vec![failed(RED, "exit 101")])).unwrap_err();
        assert!(again.contains("1 of 9 programs failed") && again.contains("kit: odd"), "{again}");
        assert!(judge("tests", &run_of(vec![failed(RED, "echo test result: ok. 0 passed")])).is_err());
    }

    #[test]
    fn a_program_that_cannot_be_run_is_a_failure() {
        let (program, _) = failed(RED, GREEN);
        let why = judge("tests", &run_of(vec![(program, Err("no such file".to_owned()))])).unwrap_err();
        assert!(why.contains("no such file"), "{why}");
    }

    #[test]
    fn a_program_that_ended_without_a_word_is_a_failure() {
        assert!(judge("tests", &run_of(vec![failed("test a::b ... FAILED\\n", GREEN)])).is_err());
    }

    #[test]
    fn two_holders_are_final() {
        for word in FINAL {
            let red = format!("{word} x\\n{RED}");
            assert!(judge("tests", &run_of(vec![failed(&red, GREEN)])).is_err());
        }
    }

    #[test]
    fn the_short_tortures_say_the_words_that_are_final() {
        for told in [
            include_str!("../../lockkeeper-nemesis/tests/short.rs"),
            include_str!("../../lockkeeper-nemesis/tests/two_phase.rs"),
        ] {
            assert!(told.contains(PROMISE), "{told}");
        }
    }

    #[test]
    fn many_at_once_are_no_accident() {
        let several = |count| run_of((0..count).map(|_| failed(RED, GREEN)).collect());
        assert!(judge("tests", &several(TESTS_MAX + 1)).is_err());
        assert_eq!(judge("tests", &several(TESTS_MAX)), Ok(()));
    }
}
