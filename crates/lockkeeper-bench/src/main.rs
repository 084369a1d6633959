//! Benchmarks: ours beside the limit or a rival, in one run, as ratios. `cargo xtask bench` calls this.

mod coord;
mod crowd;
mod growth;
mod in_process;
mod load;
mod lost;
mod macros;
mod measure;
mod names;
mod processes;
mod redis;
mod report;
mod ring;
mod rival;
mod rivals;
mod rooms;
mod serve;
mod site;
mod sql;
mod sqlite;
mod twophase;
mod warm;

use std::error::Error;
use std::process::ExitCode;

use report::Row;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Outcome = Answer<Vec<Row>>;
/// The name that the command line knows, the heading on the page, and the work.
type Suite = (&'static str, &'static str, fn() -> Outcome);

const SUITES: &[Suite] = &[
    ("in-process", "In process", in_process::run),
    ("macros", "`#[locked]`", macros::run),
    ("names", "A million names", names::run),
    ("sqlite", "SQLite", sqlite::run),
    ("processes", "SQLite, eight processes", processes::run),
    ("postgres", "PostgreSQL", sql::postgres),
    ("session-postgres", "PostgreSQL, session locks", sql::sessions::postgres),
    ("session-mariadb", "MariaDB, session locks", sql::sessions::mariadb),
    ("session-mysql", "MySQL, session locks", sql::sessions::mysql),
    ("mysql", "MariaDB", sql::mysql),
    ("redis", "Redis, free locks", redis::free),
    ("redis-wanted", "Redis, one key that many want", redis::wanted),
    ("redis-kept", "Redis, 10,000 locks held", redis::kept),
    ("warm", "Warm locks", warm::run),
    ("lost", "From a break to `lost()`", lost::run),
    ("rooms", "Rooms: shared locks, permits, several keys, barriers, elections", rooms::run),
    ("serve", "Locks over HTTP, and the console", serve::run),
    ("waiting", "One lock, many waiting processes", load::waiting),
    ("burst", "Many names at once in one process", load::names),
    ("etcd", "etcd, one node", coord::etcd_alone),
    ("etcd-3", "etcd, three nodes", coord::etcd_of_three),
    ("zookeeper", "ZooKeeper, one server", coord::zookeeper_alone),
    ("zookeeper-3", "ZooKeeper, three servers", coord::zookeeper_of_three),
    ("twophase", "Two-phase commit", twophase::run),
    ("twophase-recovery", "Two-phase commit, recovery", twophase::recovered),
];

/// One word for several suites.
const GROUPS: &[(&str, &[&str])] =
    &[("session", &["session-postgres", "session-mariadb", "session-mysql", "sqlite"])];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        // A suite started this program once more.
        Some((first, rest)) if first == crowd::WORKER => ended(crowd::work(rest)),
        Some((first, rest)) if first == rivals::CHILD => ended(rivals::work(rest)),
        Some((first, rest)) if first == rivals::RIVALS => ended(rivals::run(rest)),
        Some((first, rest)) if first == growth::GROWTH => ended(growth::run(rest)),
        Some((first, rest)) if first == rooms::CHILD => ended(rooms::work(rest)),
        Some((first, rest)) if first == serve::SERVER => ended(serve::work(rest)),
        Some((first, rest)) if first == serve::HOLDER => ended(serve::hold(rest)),
        _ => {
            if let Some(done) = twophase::child(&words) {
                return ended(done);
            }
            let words: Vec<String> = words.into_iter().filter(|it| !rooms::scaled(it)).collect();
            ended(run(&words))
        }
    }
}

/// The suites that a word means.
fn meant(word: &str) -> Vec<&'static str> {
    let group = GROUPS.iter().find(|it| it.0 == word).map(|it| it.1.to_vec());
    group.unwrap_or_else(|| SUITES.iter().map(|it| it.0).filter(|it| *it == word).collect())
}

/// Suites, and after them perhaps a word that the wanted steps of a suite have in them: for those who try something.
fn run(words: &[String]) -> Answer<()> {
    let words = match words.split_last() {
        Some((step, suites)) if !suites.is_empty() && meant(step).is_empty() => {
            report::only(step);
            suites
        }
        _ => words,
    };
    if let Some(unknown) = words.iter().find(|it| meant(it).is_empty()) {
        let suites = SUITES.iter().map(|it| it.0);
        let known: Vec<_> = GROUPS.iter().map(|it| it.0).chain(suites).collect();
        return Err(format!("there is no suite `{unknown}`; known are {}", known.join(", ")).into());
    }
    let wanted: Vec<&str> = words.iter().flat_map(|it| meant(it)).collect();
    let mut broken = Vec::new();
    for (name, title, suite) in SUITES.iter().filter(|it| wanted.is_empty() || wanted.contains(&it.0)) {
        report::say(&format!("running {name}"));
        match suite() {
            Ok(rows) => {
                report::print(title, &rows);
                let beyond = rows.iter().filter(|it| !it.within());
                broken.extend(beyond.map(|it| format!("{title}: {}", it.what)));
            }
            // The others may still have something to show.
            Err(error) => broken.push(format!("{title}: {error}")),
        }
    }
    match broken.as_slice() {
        [] => Ok(()),
        some => Err(format!("bounds are not kept: {}", some.join("; ")).into()),
    }
}

fn ended(outcome: Answer<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}
