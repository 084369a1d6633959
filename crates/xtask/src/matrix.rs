//! The servers that people run, beside those of this machine's Debian: the suites, the faults and a short torture of each
//! store on each, and the table of it in the book.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{servers, shell};

const PAGE: &str = "docs/matrix.md";
const TORTURE: &str = "lockkeeper-nemesis";
const TORTURE_TEST: &str = "short";
/// Enough for most faults of a store once.
const TORTURE_SECONDS: &str = "40";
const SEED: &str = "17";

/// A server, as `cargo xtask servers` knows it, and what is run on it.
struct Entry {
    server: &'static str,
    /// The setting by which the tests find its programs.
    setting: &'static str,
    /// Test programs, each with its package, and the word in the names of the tests that concern it.
    tests: &'static [Tests],
    /// The torture's names of what it can be.
    torture: &'static [&'static str],
    /// What is different for users, and documented.
    differs: &'static str,
}

/// Package, program, word.
type Tests = (&'static str, &'static str, &'static str);

const ON_REDIS: &str = "lockkeeper-redis";
const ON_SQL: &str = "lockkeeper-sql";

const REDIS: Entry = Entry {
    server: "redis",
    setting: "LOCKKEEPER_TEST_REDIS",
    tests: &[
        (ON_REDIS, "conformance", ""),
        (ON_REDIS, "single", ""),
        (ON_REDIS, "faults", ""),
        (ON_REDIS, "late", ""),
        (ON_REDIS, "clocks", ""),
        (ON_REDIS, "rights", ""),
        (ON_REDIS, "secured", ""),
        (ON_REDIS, "sentinel", ""),
        (ON_REDIS, "cluster", ""),
        // With the suite over several servers.
        ("lockkeeper-redlock", "redis", ""),
    ],
    torture: &["redis", "sentinel", "cluster", "redlock"],
    differs: "",
};

const POSTGRES: Entry = Entry {
    server: "postgresql-17",
    setting: "LOCKKEEPER_TEST_POSTGRES",
    tests: &[
        (ON_SQL, "conformance", "postgres"),
        (ON_SQL, "postgres_attacks", ""),
        (ON_SQL, "postgres_faults", ""),
        (ON_SQL, "postgres_lines", ""),
        (ON_SQL, "postgres_rows", ""),
        (ON_SQL, "postgres_sessions", ""),
    ],
    torture: &["postgres", "postgres-session"],
    differs: "",
};

const MYSQL: Entry = Entry {
    server: "mysql",
    setting: "LOCKKEEPER_TEST_MYSQL",
    tests: &[
        (ON_SQL, "conformance", "::mysql::"),
        (ON_SQL, "mysql_attacks", "mysql::"),
        (ON_SQL, "mysql_faults", "mysql::"),
        (ON_SQL, "mysql_rows", "mysql::"),
        (ON_SQL, "mysql_sessions", "mysql::"),
    ],
    torture: &["mysql", "mysql-session"],
    differs: "",
};

const MARIADB: Entry = Entry {
    server: "mariadb",
    setting: "LOCKKEEPER_TEST_MARIADB",
    tests: &[
        (ON_SQL, "conformance", "::mariadb::"),
        (ON_SQL, "mysql_attacks", "mariadb::"),
        (ON_SQL, "mysql_faults", "mariadb::"),
        (ON_SQL, "mysql_rows", "mariadb::"),
        (ON_SQL, "mysql_sessions", "mariadb::"),
    ],
    torture: &["mariadb", "mariadb-session"],
    differs: "a full table space ends the server itself, see [its page](backends/mysql.md)",
};

const ENTRIES: &[Entry] = &[
    MYSQL,
    MARIADB,
    POSTGRES,
    Entry { server: "postgresql-18", ..POSTGRES },
    REDIS,
    Entry { server: "valkey", ..REDIS },
    Entry {
        server: "etcd",
        setting: "LOCKKEEPER_TEST_ETCD",
        tests: &[("lockkeeper-etcd", "conformance", ""), ("lockkeeper-etcd", "real", "")],
        torture: &["etcd"],
        differs: "",
    },
    Entry {
        server: "zookeeper",
        setting: "LOCKKEEPER_TEST_ZOOKEEPER",
        tests: &[("lockkeeper-zookeeper", "conformance", ""), ("lockkeeper-zookeeper", "real", "")],
        torture: &["zookeeper"],
        differs: "",
    },
];

/// `matrix [SERVER…]`: all, or those named. Their rows of the page are written anew.
pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|it| !ENTRIES.iter().any(|entry| entry.server == **it)) {
        let known: Vec<&str> = ENTRIES.iter().map(|it| it.server).collect();
        return Err(format!("`{unknown}` is not in the matrix; these are: {}", known.join(", ")));
    }
    let chosen: Vec<&Entry> =
        ENTRIES.iter().filter(|it| names.is_empty() || names.contains(&it.server)).collect();
    let built = build(&chosen)?;
    let mut broken = Vec::new();
    for entry in chosen {
        servers::get(&[entry.server])?;
        let result = entry.run(&built)?;
        if !result.is_good() {
            broken.push(entry.server);
        }
        let path = shell::root().join(PAGE);
        let page = fs::read_to_string(&path).unwrap_or_default();
        let rows = BTreeMap::from([(entry.server, result.row(entry))]);
        fs::write(&path, renewed(&page, &rows)).map_err(|it| format!("{PAGE}: {it}"))?;
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(format!("not all is well on {}; see {PAGE}", broken.join(", ")))
    }
}

/// The programs of tests, by package and name, and where they are.
type Built = BTreeMap<(String, String), PathBuf>;

/// Build once for all, as the ordinary tests are built, so that nothing is built twice.
fn build(entries: &[&Entry]) -> Result<Built, String> {
    let mut all = Built::new();
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--workspace", "--all-features", "--no-run", "--message-format", "json"]);
    for (_, program, _) in entries.iter().flat_map(|it| it.tests) {
        cargo.args(["--test", program]);
    }
    // With a test of the torture cargo builds its program, too.
    cargo.args(["--test", TORTURE_TEST]);
    shell::say("xtask: building the tests");
    let (text, ended) = told(&mut cargo)?;
    if !ended {
        return Err("the tests cannot be built".to_owned());
    }
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap_or_default();
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        if let Some(file) = row["executable"].as_str() {
            let folder = PathBuf::from(text(&row["manifest_path"]));
            let package = folder.parent().and_then(|it| it.file_name()).unwrap_or_default();
            let at = (package.to_string_lossy().into_owned(), text(&row["target"]["name"]));
            if row["profile"]["test"] == true {
                all.insert(at, file.into());
            }
        }
    }
    Ok(all)
}

/// What came of one server.
#[derive(Default)]
struct Outcome {
    version: String,
    passed: u64,
    /// The tests that failed, or test programs that could not be run.
    failed: Vec<String>,
    /// The last lines of the torture, one for each deployment.
    torture: Vec<String>,
    /// Those of them in which a promise was broken.
    broken: Vec<String>,
    /// Deployments of which it says nothing, because it could not be run.
    unrun: Vec<String>,
}

impl Entry {
    fn run(&self, built: &Built) -> Result<Outcome, String> {
        let folder = shell::root().join("target/servers").join(self.server).join("bin");
        let folder = folder.display().to_string();
        let mut outcome = Outcome { version: servers::version(self.server)?, ..Outcome::default() };
        for (package, program, word) in self.tests {
            shell::say(&format!("xtask: {package}: {program} on {}", outcome.version));
            let at = ((*package).to_owned(), (*program).to_owned());
            let file = built.get(&at).ok_or_else(|| format!("{package} has no tests {program}"))?;
            let place = shell::root().join("crates").join(package);
            // As cargo would run it.
            let run = |words: &[&str]| {
                let mut tests = Command::new(file);
                tests.args(words).env(self.setting, &folder);
                tests.current_dir(&place).env("CARGO_MANIFEST_DIR", &place);
                told(&mut tests)
            };
            let (text, ended) = run(&[word])?;
            outcome.count(program, &text, ended);
            // Once more, alone: as in the ordinary tests a busy machine is no difference of the server.
            outcome.again(program, |test| run(&["--exact", test]))?;
        }
        for store in self.torture {
            shell::say(&format!("xtask: torture of {store} on {}", outcome.version));
            let mut torture = Command::new(shell::root().join("target/debug").join(TORTURE));
            torture.args([*store, "--seconds", TORTURE_SECONDS, "--seed", SEED]).env(self.setting, &folder);
            let (text, kept) = told(&mut torture)?;
            outcome.tortured(store, &text, kept);
        }
        Ok(outcome)
    }
}

/// What a program prints, and whether it ended well.
fn told(command: &mut Command) -> Result<(String, bool), String> {
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = command.output().map_err(|it| format!("cannot run {command:?}: {it}"))?;
    Ok((String::from_utf8_lossy(&out.stdout).into_owned(), out.status.success()))
}

impl Outcome {
    /// Add what a test program printed.
    fn count(&mut self, program: &str, text: &str, ended_well: bool) {
        let results = text.lines().filter_map(|it| it.strip_prefix("test result: "));
        let passed =
            results.filter_map(|it| it.split(" passed").next()?.rsplit(' ').next()?.parse::<u64>().ok());
        self.passed += passed.sum::<u64>();
        let failed = text.lines().filter_map(|it| it.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let before = self.failed.len();
        self.failed.extend(failed.map(|it| format!("{program}::{it}")));
        if !ended_well && self.failed.len() == before {
            self.failed.push(format!("{program} could not be run"));
        }
    }

    /// Ask the tests of this program that failed once more. Those that pass have passed.
    fn again(
        &mut self,
        program: &str,
        mut run: impl FnMut(&str) -> Result<(String, bool), String>,
    ) -> Result<(), String> {
        for name in std::mem::take(&mut self.failed) {
            match name.strip_prefix(&format!("{program}::")) {
                Some(test) if run(test)?.1 => self.passed += 1,
                _ => self.failed.push(name),
            }
        }
        Ok(())
    }

    /// Add what the torture of a deployment printed.
    fn tortured(&mut self, store: &str, text: &str, kept: bool) {
        let Some(last) = text.lines().rfind(|it| it.starts_with("torture: ")) else {
            // A server that did not start has broken nothing.
            self.torture.push("it did not come to an end".to_owned());
            return self.unrun.push(store.to_owned());
        };
        self.torture.push(last.to_owned());
        self.broken.extend((!kept).then(|| store.to_owned()));
    }

    fn is_good(&self) -> bool {
        self.failed.is_empty() && self.broken.is_empty() && self.unrun.is_empty()
    }

    fn row(&self, entry: &Entry) -> String {
        let cases = match self.failed.len() {
            0 => format!("{} passed", self.passed),
            some => format!("{} passed, **{some} failed**", self.passed),
        };
        let torture: Vec<String> = self.torture.iter().map(|it| format!("`{it}`")).collect();
        let mut differs: Vec<String> = self.failed.iter().map(|it| format!("`{it}` fails")).collect();
        differs.extend(
            self.broken.iter().map(|it| format!("**a promise was broken** in the torture of `{it}`")),
        );
        differs.extend(self.unrun.iter().map(|it| format!("the torture of `{it}` could not be run")));
        differs.extend((!entry.differs.is_empty()).then(|| entry.differs.to_owned()));
        let differs = if differs.is_empty() { "nothing".to_owned() } else { differs.join("; ") };
        format!("| {} | {} | {cases} | {} | {differs} |", entry.server, self.version, torture.join("<br>"))
    }
}

/// The page with these rows in the place of the old ones. A server without a row says so.
fn renewed(page: &str, rows: &BTreeMap<&str, String>) -> String {
    let row = |entry: &Entry| {
        let old = page.lines().find(|it| it.starts_with(&format!("| {} |", entry.server)));
        let none = || format!("| {} | | not run yet | | |", entry.server);
        rows.get(entry.server).cloned().or_else(|| old.map(str::to_owned)).unwrap_or_else(none)
    };
    let all: Vec<String> = ENTRIES.iter().map(row).collect();
    format!(
        "# Servers that people run\n\nWritten by `cargo xtask matrix`, never by hand. The ordinary tests run on the servers of Debian 12 and on MySQL. These are newer\n\
         ones, from Debian's newer suites: the conformance suite and the tests of faults of the store, and a short torture of each deployment ([what its\n\
         line says](torture.md)). A server that is run alone renews its own row, so rows may come from different runs.\n\n\
         | server | version | cases | torture | what differs |\n|---|---|---|---|---|\n{}\n",
        all.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_can_be_had_and_its_setting_and_tests_are_there() {
        let kit = include_str!("../../lockkeeper-servers/src/process/installed.rs");
        for entry in ENTRIES {
            assert!(servers::is_known(entry.server), "{}", entry.server);
            assert!(kit.contains(&format!("\"{}\"", entry.setting)), "{}", entry.setting);
            for (package, program, _) in entry.tests {
                let tests = shell::root().join("crates").join(package).join("tests");
                let there = tests.join(format!("{program}.rs")).is_file()
                    || tests.join(program).join("main.rs").is_file();
                assert!(there, "{package} has no tests called {program}");
            }
        }
    }

    #[test]
    fn a_row_is_renewed_and_what_was_not_run_says_so() {
        let mut outcome = Outcome { version: "v9".to_owned(), ..Outcome::default() };
        outcome.count("faults", "test a ... ok\ntest result: ok. 12 passed; 0 failed; 0 ignored\n", true);
        let page =
            renewed("", &BTreeMap::from([("valkey", outcome.row(&REDIS).replace("| redis", "| valkey"))]));
        assert!(page.contains("| valkey | v9 | 12 passed |  | nothing |"), "{page}");
        assert!(page.contains("| etcd | | not run yet | | |"), "{page}");
        assert_eq!(renewed(&page, &BTreeMap::new()), page, "nothing grows");
    }

    #[test]
    fn a_promise_that_was_broken_is_told_beside_green_tests() {
        let mut outcome = Outcome { version: "v9".to_owned(), ..Outcome::default() };
        outcome.count("faults", "test result: ok. 12 passed; 0 failed; 0 ignored\n", true);
        outcome.tortured("redis", "torture: redis grants=9 G=0 F=0\n", true);
        assert!(outcome.is_good() && outcome.row(&REDIS).ends_with("| nothing |"));
        outcome.tortured("cluster", "torture: cluster grants=9 G=0 F=18\n", false);
        let row = outcome.row(&REDIS);
        assert!(
            !outcome.is_good() && row.ends_with("| **a promise was broken** in the torture of `cluster` |"),
            "{row}"
        );
    }

    #[test]
    fn a_torture_that_could_not_be_run_has_broken_no_promise_and_is_no_good_row() {
        let mut outcome = Outcome { version: "v9".to_owned(), ..Outcome::default() };
        outcome.tortured("sentinel", "", false);
        let row = outcome.row(&REDIS);
        assert!(!outcome.is_good() && row.contains("`it did not come to an end`"), "{row}");
        assert!(row.ends_with("| the torture of `sentinel` could not be run |"), "{row}");
    }

    #[test]
    fn what_failed_is_asked_once_more_and_only_of_its_own_program() {
        let mut outcome = Outcome::default();
        let text = "test x::y ... FAILED\ntest z ... FAILED\ntest result: FAILED. 3 passed; 2 failed\n";
        outcome.count("other", "test x::y ... FAILED\n", false);
        outcome.count("real", text, false);
        let mut asked = Vec::new();
        let again = outcome.again("real", |it| {
            asked.push(it.to_owned());
            Ok((String::new(), it == "z"))
        });
        assert_eq!((again, asked), (Ok(()), vec!["x::y".to_owned(), "z".to_owned()]));
        assert_eq!(
            (outcome.passed, outcome.failed),
            (4, vec!["other::x::y".to_owned(), "real::x::y".to_owned()])
        );
    }

    #[test]
    fn what_failed_is_named_also_if_it_never_ran() {
        let mut outcome = Outcome::default();
        outcome.count("real", "test x::y ... FAILED\ntest result: FAILED. 3 passed; 1 failed\n", false);
        outcome.count("conformance", "", false);
        assert_eq!(outcome.failed, ["real::x::y", "conformance could not be run"]);
        assert!(!outcome.is_good() && outcome.row(&REDIS).contains("3 passed, **2 failed**"));
    }
}
