//! The servers that people run, beside those of this machine's Debian: the suites, the faults and a short torture of each
//! store on each, and the table of it in the book.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crate::{servers, shell};

const PAGE: &str = "docs/matrix.md";
const TORTURE: &str = "lockkeeper-nemesis";
/// Enough for most faults of a store once.
const TORTURE_SECONDS: &str = "40";
const SEED: &str = "17";

/// A server, as `cargo xtask servers` knows it, and what is run on it.
struct Entry {
    server: &'static str,
    /// The setting by which the tests find its programs.
    setting: &'static str,
    package: &'static str,
    /// Test programs, and the word in the names of the tests that concern it.
    tests: &'static [(&'static str, &'static str)],
    /// The torture's names of what it can be.
    torture: &'static [&'static str],
    /// What is different for users, and documented.
    differs: &'static str,
}

const REDIS: Entry = Entry {
    server: "redis",
    setting: "LOCKKEEPER_TEST_REDIS",
    package: "lockkeeper-redis",
    tests: &[
        ("conformance", ""),
        ("single", ""),
        ("faults", ""),
        ("late", ""),
        ("clocks", ""),
        ("sentinel", ""),
        ("cluster", ""),
    ],
    torture: &["redis", "sentinel", "cluster", "redlock"],
    differs: "",
};

const POSTGRES: Entry = Entry {
    server: "postgresql-17",
    setting: "LOCKKEEPER_TEST_POSTGRES",
    package: "lockkeeper-sql",
    tests: &[
        ("conformance", "postgres"),
        ("postgres_faults", ""),
        ("postgres_lines", ""),
        ("postgres_rows", ""),
        ("postgres_sessions", ""),
    ],
    torture: &["postgres"],
    differs: "",
};

const MYSQL: Entry = Entry {
    server: "mysql",
    setting: "LOCKKEEPER_TEST_MYSQL",
    package: "lockkeeper-sql",
    tests: &[("conformance", "mysql"), ("mysql_faults", ""), ("mysql_rows", "")],
    torture: &["mysql"],
    differs: "",
};

const ENTRIES: &[Entry] = &[
    MYSQL,
    Entry { server: "mariadb", setting: "LOCKKEEPER_TEST_MARIADB", torture: &["mariadb"], ..MYSQL },
    POSTGRES,
    Entry { server: "postgresql-18", ..POSTGRES },
    REDIS,
    Entry { server: "valkey", ..REDIS },
    Entry {
        server: "etcd",
        setting: "LOCKKEEPER_TEST_ETCD",
        package: "lockkeeper-etcd",
        tests: &[("conformance", ""), ("real", "")],
        torture: &["etcd"],
        differs: "",
    },
    Entry {
        server: "zookeeper",
        setting: "LOCKKEEPER_TEST_ZOOKEEPER",
        package: "lockkeeper-zookeeper",
        tests: &[("conformance", ""), ("real", "")],
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
    let mut broken = Vec::new();
    for entry in ENTRIES.iter().filter(|it| names.is_empty() || names.contains(&it.server)) {
        servers::get(&[entry.server])?;
        let result = entry.run()?;
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

/// What came of one server.
#[derive(Default)]
struct Outcome {
    version: String,
    passed: u64,
    /// The tests that failed, or test programs that could not be run.
    failed: Vec<String>,
    /// The last lines of the torture, one for each deployment.
    torture: Vec<String>,
    promises_broken: bool,
}

impl Entry {
    fn run(&self) -> Result<Outcome, String> {
        let folder = shell::root().join("target/servers").join(self.server).join("bin");
        let folder = folder.display().to_string();
        let mut outcome = Outcome { version: servers::version(self.server)?, ..Outcome::default() };
        for (program, word) in self.tests {
            shell::say(&format!("xtask: {} on {}", program, outcome.version));
            let mut cargo = Command::new("cargo");
            cargo.args(["test", "--package", self.package, "--all-features", "--no-fail-fast"]);
            cargo.args(["--test", program, "--", word]).env(self.setting, &folder);
            let (text, ended) = told(&mut cargo)?;
            outcome.count(program, &text, ended);
        }
        shell::step("build", "cargo", &["build", "--package", TORTURE])?;
        for store in self.torture {
            shell::say(&format!("xtask: torture of {store} on {}", outcome.version));
            let mut torture = Command::new(shell::root().join("target/debug").join(TORTURE));
            torture.args([*store, "--seconds", TORTURE_SECONDS, "--seed", SEED]).env(self.setting, &folder);
            let (text, ended) = told(&mut torture)?;
            outcome.promises_broken |= !ended;
            let last = text.lines().rfind(|it| it.starts_with("torture: "));
            outcome.torture.push(last.unwrap_or("it did not come to an end").to_owned());
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

    fn is_good(&self) -> bool {
        self.failed.is_empty() && !self.promises_broken
    }

    fn row(&self, entry: &Entry) -> String {
        let cases = match self.failed.len() {
            0 => format!("{} passed", self.passed),
            some => format!("{} passed, **{some} failed**", self.passed),
        };
        let torture: Vec<String> = self.torture.iter().map(|it| format!("`{it}`")).collect();
        let mut differs: Vec<String> = self.failed.iter().map(|it| format!("`{it}` fails")).collect();
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
            for (program, _) in entry.tests {
                let tests = shell::root().join("crates").join(entry.package).join("tests");
                let there = tests.join(format!("{program}.rs")).is_file()
                    || tests.join(program).join("main.rs").is_file();
                assert!(there, "{} has no tests called {program}", entry.package);
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
    fn what_failed_is_named_also_if_it_never_ran() {
        let mut outcome = Outcome::default();
        outcome.count("real", "test x::y ... FAILED\ntest result: FAILED. 3 passed; 1 failed\n", false);
        outcome.count("conformance", "", false);
        assert_eq!(outcome.failed, ["real::x::y", "conformance could not be run"]);
        assert!(!outcome.is_good() && outcome.row(&REDIS).contains("3 passed, **2 failed**"));
    }
}
