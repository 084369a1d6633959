//! Tests that cannot fail prove nothing: mistakes are planted into a copy of the tree, and the test that each names
//! must turn red.
//!
//! A mistake is a patch under `crates/lockkeeper-testkit/mutants`, so that what ships holds nothing of it. All share
//! one copy and the build folder of the workspace: only what a patch changes is built anew. Those that need no server are
//! planted into two copies at a time, because a crate is compiled by one core for most of the time.

pub(crate) mod copy;
pub(crate) mod patch;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::shell;
use copy::Copy;
use patch::{Patch, Target};

const FOLDER: &str = "crates/lockkeeper-testkit/mutants";
/// So many commits plant all mistakes that need no server.
const SHARES: usize = 3;
/// For one test. A mistake that makes a test stand still is not caught: nobody would learn what is wrong.
const TEST_MAX: Duration = Duration::from_secs(5 * 60);

/// Plant the mistakes with these names, or all.
pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    let all = patches()?;
    if let Some(unknown) = names.iter().find(|it| !all.iter().any(|patch| patch.name == **it)) {
        let known: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        return Err(format!("no mistake is called `{unknown}`; there are {}", known.join(", ")));
    }
    let named: Vec<&Patch> =
        all.iter().filter(|it| names.is_empty() || names.contains(&it.name.as_str())).collect();
    let copies = copies_for(&named)?;
    are_green(&copies[0], &named)?;
    plant(&copies, &named)
}

/// A third of those that need no server, after all tests were green: another third with each commit. All of them would
/// take a quarter of the time that the whole command may take, and are planted once a week.
pub(crate) fn run_some() -> Result<(), String> {
    let commit = shell::output("git", &["rev-parse", "HEAD"])?;
    let all = patches()?;
    let simulated: Vec<&Patch> = all.iter().filter(|it| !it.needs_servers).collect();
    let share = share_of(&simulated, commit.trim());
    shell::say(&format!("xtask: {} of {} mistakes that need no server", share.len(), simulated.len()));
    plant(&copies_for(&share)?, &share)
}

/// Every third, beginning at the one that the commit says.
fn share_of<'a, T>(all: &[&'a T], commit: &str) -> Vec<&'a T> {
    let first = commit.bytes().map(usize::from).sum::<usize>() % SHARES;
    all.iter().copied().skip(first).step_by(SHARES).collect()
}

/// One, or two where no test has servers to look after.
fn copies_for(patches: &[&Patch]) -> Result<Vec<Copy>, String> {
    let root = shell::root();
    let mut copies = vec![Copy::make(&root.join("target/mutants"), None)?];
    if 1 < patches.len() && patches.iter().all(|it| !it.needs_servers) {
        let beside = root.join("target/mutants-beside");
        copy::share_builds(&root.join("target"), &beside.join("target"))?;
        copies.push(Copy::make(&beside, Some(beside.join("target")))?);
    }
    Ok(copies)
}

/// Every patch must fit the tree as it is; whether it is caught takes longer to tell.
pub(crate) fn check() -> Result<(), String> {
    let wrong: Vec<String> = patches()?
        .iter()
        .filter_map(|it| {
            copy::fits(&shell::root(), &it.file).err().map(|error| format!("{}: {error}", it.name))
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("mutants:\n  {}", wrong.join("\n  "))) }
}

pub(crate) fn patches() -> Result<Vec<Patch>, String> {
    let folder = shell::root().join(FOLDER);
    let entries = fs::read_dir(&folder).map_err(|it| format!("{}: {it}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|it| it.path()).collect();
    files.retain(|it| it.extension().is_some_and(|ending| ending == "patch"));
    files.sort();
    files.iter().map(|it| Patch::read(it)).collect()
}

/// What is red already would be red with any mistake.
fn are_green(copy: &Copy, patches: &[&Patch]) -> Result<(), String> {
    let targets: BTreeSet<&Target> = patches.iter().map(|it| &it.target).collect();
    for target in targets {
        shell::say(&format!("xtask: {target} on the code as it is"));
        match judge(copy, target)? {
            Verdict::Green => {}
            Verdict::Red(text) => return Err(format!("{target} fails without any mistake:\n{text}")),
            Verdict::Broken(what) => return Err(format!("{target}: {what}")),
        }
    }
    Ok(())
}

/// Each copy takes the next one that nobody has taken.
fn plant(copies: &[Copy], patches: &[&Patch]) -> Result<(), String> {
    let (next, rows) = (Mutex::new(patches.iter().enumerate()), Mutex::new(Vec::new()));
    let work = |copy: &Copy| -> Result<(), String> {
        loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((at, patch)) = taken else { return Ok(()) };
            let result = try_one(copy, patch);
            // Whatever became of it: the next one starts from sound code.
            copy.renew()?;
            let caught = result.is_ok();
            let result = result.map_or_else(|it| format!("NOT CAUGHT: {it}"), |()| "caught".to_owned());
            shell::say(&format!("xtask: {}: {result}", patch.name));
            let row = format!(
                "| {} | {} | {} | {} |",
                patch.name,
                patch.mistake,
                patch.target,
                first_line(&result)
            );
            rows.lock().unwrap_or_else(PoisonError::into_inner).push((at, row, caught));
        }
    };
    let ends: Vec<Result<(), String>> = thread::scope(|scope| {
        let workers: Vec<_> = copies.iter().map(|copy| scope.spawn(|| work(copy))).collect();
        let ended =
            |it: thread::ScopedJoinHandle<'_, _>| it.join().unwrap_or(Err("a thread panicked".into()));
        workers.into_iter().map(ended).collect()
    });
    ends.into_iter().collect::<Result<(), String>>()?;
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort();
    shell::say("\n| mutant | mistake | test | |\n|---|---|---|---|");
    for (_, row, _) in &rows {
        shell::say(row);
    }
    let survived = rows.iter().filter(|it| !it.2).count();
    if survived == 0 { Ok(()) } else { Err(format!("{survived} of {} mistakes were not caught", rows.len())) }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn try_one(copy: &Copy, patch: &Patch) -> Result<(), String> {
    shell::say(&format!("xtask: planting {}", patch.name));
    copy.apply(&patch.file)?;
    ask(copy, patch).or_else(|why| {
        // A test that races with its mistake may lose once on a slow machine; one that cannot see it loses twice.
        ask(copy, patch).inspect(|()| {
            let what = first_line(&why);
            shell::say(&format!("xtask: {}: UNSTEADY, caught the second time ({what}); mend it", patch.name));
        })
    })
}

fn ask(copy: &Copy, patch: &Patch) -> Result<(), String> {
    match judge(copy, &patch.target)? {
        Verdict::Green => Err("the test stayed green".to_owned()),
        Verdict::Broken(what) => Err(what),
        Verdict::Red(text) if text.contains(&patch.sign) => Ok(()),
        Verdict::Red(text) => Err(format!("the test fails without saying \"{}\":\n{text}", patch.sign)),
    }
}

enum Verdict {
    Green,
    /// What the test printed.
    Red(String),
    /// It could not be asked.
    Broken(String),
}

fn judge(copy: &Copy, target: &Target) -> Result<Verdict, String> {
    let built = cargo(copy, &target.arguments(&["--no-run"]), None)?;
    if !built.0 {
        return Ok(Verdict::Broken(format!("it does not compile:\n{}", built.1)));
    }
    let (good, text) = cargo(copy, &target.arguments(&[]), Some(TEST_MAX))?;
    Ok(match good {
        true if 0 < passed(&text) => Verdict::Green,
        true => Verdict::Broken("no test has that name".to_owned()),
        false if text.contains("test result: FAILED") => Verdict::Red(text),
        false => {
            Verdict::Broken(format!("the test ended without a result, or not within {TEST_MAX:?}:\n{text}"))
        }
    })
}

/// How many tests passed, by the runner's own words.
fn passed(text: &str) -> usize {
    let counts = text.split("test result: ok. ").skip(1);
    counts.filter_map(|it| it.split(' ').next()?.parse::<usize>().ok()).sum()
}

fn cargo(copy: &Copy, args: &[&str], limit: Option<Duration>) -> Result<(bool, String), String> {
    let mut command = Command::new("timeout");
    let seconds = limit.map_or(0, |it| it.as_secs()).to_string();
    command.args(["--kill-after=10", &seconds, "cargo"]).args(args);
    command.current_dir(copy.tree()).stdin(Stdio::null());
    // The crates that everybody uses are built there already. Names of ours differ, because their path does.
    command.env("CARGO_TARGET_DIR", copy.target()).env("RUST_BACKTRACE", "0");
    let out = command.output().map_err(|it| format!("cannot run {command:?}: {it}"))?;
    let text = [out.stdout, out.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    Ok((out.status.success(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_are_counted_over_all_programs() {
        let text = "test result: ok. 0 passed; 0 failed\n\ntest result: ok. 12 passed; 0 failed\n";
        assert_eq!(passed(text), 12);
        assert_eq!(passed("test result: FAILED. 3 passed; 1 failed"), 0);
    }

    #[test]
    fn three_commits_plant_all() {
        let all: Vec<u32> = (0..10).collect();
        let all: Vec<&u32> = all.iter().collect();
        let mut planted: Vec<&u32> = ["a", "b", "c"].iter().flat_map(|it| share_of(&all, it)).collect();
        planted.sort();
        assert_eq!(planted, all);
    }

    #[test]
    fn every_mistake_is_described_and_can_be_planted() {
        assert!(!patches().unwrap().is_empty());
        check().unwrap();
    }
}
