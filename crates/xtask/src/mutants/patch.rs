//! A patch that plants a mistake, and what its head says: the mistake, the test that must turn red, and its words.
//!
//! ```text
//! mistake: A deadline counts from the answer, not from before the request.
//! test: lockkeeper-testkit sim no_seed_breaks_the_rules
//! sign: was given fence
//!
//! --- a/crates/…
//! ```
//! `test` names package, test program (`lib` for that of the library) and a part of the test's name, then perhaps
//! features. `needs: servers` keeps it out of the quick run. `torture: redis --faults calm` says that the torture must catch
//! it, too, and what to run it with.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Patch {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) mistake: String,
    pub(super) target: Target,
    /// Without it the test is red for another reason.
    pub(super) sign: String,
    pub(super) needs_servers: bool,
    /// What to run the torture with, if it must catch this.
    pub(crate) torture: Option<String>,
}

/// Which test must turn red.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    package: String,
    program: String,
    filter: String,
    features: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}::{}", self.package, self.program, self.filter)
    }
}

impl Target {
    fn read(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (names, features) = match words.as_slice() {
            [names @ .., features] if names.len() == 3 => (names, Some((*features).to_owned())),
            names => (names, None),
        };
        let [package, program, filter] = *names else { return None };
        let [package, program, filter] = [package, program, filter].map(str::to_owned);
        Some(Target { package, program, filter, features })
    }

    /// The words for cargo.
    pub(super) fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec!["test", "--package", &self.package];
        match self.program.as_str() {
            "lib" => words.push("--lib"),
            "bin" => words.push("--bins"),
            program => words.extend(["--test", program]),
        }
        if let Some(features) = &self.features {
            words.extend(["--features", features]);
        }
        words.extend(more);
        words.push(&self.filter);
        words
    }
}

impl Patch {
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|it| format!("{}: {it}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Patch::parse(&name, &text, file).map_err(|it| format!("{}: {it}", file.display()))
    }

    fn parse(name: &str, text: &str, file: &Path) -> Result<Self, String> {
        let (head, _) = text.split_once("\n--- ").ok_or("there is no patch in it")?;
        let said = |what: &str| head.lines().find_map(|it| it.strip_prefix(what)).map(str::trim);
        let must =
            |what: &str| said(what).filter(|it| !it.is_empty()).ok_or(format!("its head has no `{what}`"));
        let target = Target::read(must("test:")?).ok_or("`test:` names package, test program and filter")?;
        Ok(Patch {
            name: name.to_owned(),
            file: file.to_owned(),
            mistake: must("mistake:")?.to_owned(),
            target,
            sign: must("sign:")?.to_owned(),
            needs_servers: said("needs:") == Some("servers"),
            torture: said("torture:").map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "mistake: It forgets.\ntest: a-package sim some_test\nsign: lost\n\n--- a/x\n+++ b/x\n";

    fn parse(text: &str) -> Result<Patch, String> {
        Patch::parse("name", text, Path::new("name.patch"))
    }

    #[test]
    fn a_head_names_the_mistake_the_test_and_its_words() {
        let patch = parse(GOOD).unwrap();
        assert_eq!(
            (patch.mistake.as_str(), patch.sign.as_str(), patch.needs_servers),
            ("It forgets.", "lost", false)
        );
        let words = patch.target.arguments(&["--no-run"]);
        assert_eq!(words, ["test", "--package", "a-package", "--test", "sim", "--no-run", "some_test"]);
        let patch = parse(
            &GOOD.replace("sim some_test", "lib some_test a,b").replace("\n\n", "\nneeds: servers\n\n"),
        );
        let patch = patch.unwrap();
        assert!(patch.needs_servers && patch.torture.is_none());
        let tortured = parse(&GOOD.replace("\n\n", "\ntorture: redis --faults calm\n\n")).unwrap();
        assert_eq!(tortured.torture.as_deref(), Some("redis --faults calm"));
        let words = patch.target.arguments(&[]);
        assert_eq!(words, ["test", "--package", "a-package", "--lib", "--features", "a,b", "some_test"]);
    }

    #[test]
    fn a_head_that_lacks_something_is_refused() {
        for part in
            ["mistake: It forgets.", "test: a-package sim some_test", "sign: lost", "--- a/x", " some_test"]
        {
            assert!(parse(&GOOD.replace(part, "")).is_err(), "without {part}");
        }
    }
}
