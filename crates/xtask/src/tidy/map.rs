//! The map in ARCHITECTURE.md names every crate and every file of the core, and nothing that is not there; the files of the
//! engine stand there in the order in which they call each other.

use std::path::Path;

use super::circle;

/// Files that need no place on a map.
const UNNAMED: &[&str] = &["lib", "mod"];

pub(super) fn check(root: &Path, page: &str, core: &[(String, String)], complaints: &mut Vec<String>) {
    let Some(map) = page.split("## The map").nth(1).and_then(|it| it.split("```").nth(1)) else {
        complaints.push("ARCHITECTURE.md: there is no map".to_owned());
        return;
    };
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    for name in crates.map(|it| it.file_name().to_string_lossy().into_owned()) {
        if !map.contains(&format!("{name}/")) {
            complaints.push(format!("ARCHITECTURE.md: the map lacks crates/{name}"));
        }
    }
    for word in map.split_whitespace().filter(|it| it.starts_with("lockkeeper") && it.ends_with('/')) {
        if !root.join("crates").join(word).exists() {
            complaints.push(format!("ARCHITECTURE.md: the map shows {word}, which is not there"));
        }
    }
    let words: Vec<&str> = map.split(|it: char| !(it.is_alphanumeric() || it == '_')).collect();
    for (path, _) in core {
        if !UNNAMED.contains(&stem(path)) && !words.contains(&stem(path)) {
            complaints.push(format!("ARCHITECTURE.md: the map of the core lacks {path}"));
        }
    }
    let named: Vec<&str> = rows(map).into_iter().flat_map(names).collect();
    for name in named.iter().filter(|name| !core.iter().any(|it| stem(&it.0) == **name)) {
        complaints.push(format!("ARCHITECTURE.md: the map of the core shows {name}, which is not there"));
    }
    let mut engine = rows(map).into_iter().skip_while(|it| !it.contains("── engine/")).enumerate();
    let engine =
        engine.by_ref().take_while(|it| it.0 == 0 || !it.1.contains("──")).flat_map(|it| names(it.1));
    order(&engine.collect::<Vec<_>>(), core, complaints);
}

fn stem(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// The rows of the core.
fn rows(map: &str) -> Vec<&str> {
    let of_core = map.split("lockkeeper-core/").nth(1).and_then(|it| it.split("\n├──").next());
    of_core.unwrap_or_default().lines().skip(1).collect()
}

/// The files that a row names: those behind its colon, all of a row that only goes on, or those that end with `.rs`.
fn names(row: &str) -> Vec<&str> {
    let row = row.split(" (").filter_map(|it| it.rsplit(") ").next());
    let row: Vec<&str> = row.flat_map(str::split_whitespace).filter(|it| *it != "│").collect();
    let is_first = row.first().is_some_and(|it| it.starts_with(['├', '└']));
    let colon = row.iter().position(|it| it.ends_with(':') && !it.ends_with("/:")).map(|it| it + 1);
    let from = if is_first { colon.unwrap_or(row.len()) } else { 0 };
    let listed = row[from..].iter().filter(|it| !it.ends_with("/:"));
    let by_ending = row[..from].iter().filter(|it| is_rust(it.trim_end_matches(';')));
    by_ending.chain(listed).map(|it| stem(it.trim_end_matches(';'))).collect()
}

fn is_rust(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|it| it == "rs")
}

/// Each file of the engine calls only those that stand behind it.
fn order(named: &[&str], core: &[(String, String)], complaints: &mut Vec<String>) {
    let place = |module: &str| {
        let file = module.strip_prefix("engine::")?;
        named.iter().position(|it| *it == file)
    };
    for (module, imports) in circle::imports(core) {
        for other in imports {
            if place(&module).zip(place(&other)).is_some_and(|it| it.1 < it.0) {
                complaints
                    .push(format!("ARCHITECTURE.md: {module} calls {other}, which the map shows before it"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    const PAGE: &str = "## The map\n\n```text\ncrates/\n├── lockkeeper/   the facade\n├── lockkeeper-core/   knows no network\n\
        │   ├── api/      what users touch: locker guard; barrier/: sheet\n\
        │   ├── engine/   how a request walks; each file calls only those to its right\n\
        │   │             contest queue\n\
        │   │             ask\n\
        │   ├── spi/      what a store does: backend (the contract) claim\n\
        │   ├── clock.rs  the only file that reads a clock\n\
        │   └── key.rs owner.rs\n├── lockkeeper-sql/   rows\n```\n";
    const CORE: &[&str] = &[
        "lib.rs",
        "api/mod.rs",
        "api/locker.rs",
        "api/guard.rs",
        "api/barrier/sheet.rs",
        "engine/contest.rs",
        "engine/queue.rs",
        "engine/ask.rs",
        "spi/backend.rs",
        "spi/claim.rs",
        "clock.rs",
        "key.rs",
        "owner.rs",
    ];

    fn said(page: &str, core: &[(&str, &str)], crates: &[&str]) -> Vec<String> {
        let root = std::env::temp_dir().join(format!(
            "lockkeeper-map-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        for name in crates {
            std::fs::create_dir_all(root.join("crates").join(name)).unwrap();
        }
        let core: Vec<_> = core.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect();
        let mut complaints = Vec::new();
        check(&root, page, &core, &mut complaints);
        std::fs::remove_dir_all(&root).unwrap();
        complaints
    }

    #[test]
    fn a_stale_map_is_noticed_both_ways() {
        let crates = ["lockkeeper", "lockkeeper-core", "lockkeeper-sql"];
        let core: Vec<_> = CORE.iter().map(|it| (*it, "struct A;")).collect();
        assert_eq!(said(PAGE, &core, &crates), [""; 0]);
        let one = |said: Vec<String>, word: &str| {
            assert!(said.len() == 1 && said[0].contains(word), "{word}: {said:?}");
        };
        one(said("# Architecture", &core, &crates), "there is no map");
        one(said(PAGE, &core, &crates[..2]), "shows lockkeeper-sql/, which is not there");
        one(said(PAGE, &core, &[&crates[..], &["lockkeeper-new"]].concat()), "lacks crates/lockkeeper-new");
        one(said(PAGE, &[&core[..], &[("engine/new.rs", "")]].concat(), &crates), "lacks engine/new.rs");
        // Whatever part of the map it stands in: a file that has gone is seen.
        for (gone, file) in CORE.iter().enumerate().skip(2) {
            let mut core = core.clone();
            core.remove(gone);
            one(said(PAGE, &core, &crates), &format!("shows {}, which is not there", super::stem(file)));
        }
    }

    #[test]
    fn a_file_of_the_engine_that_calls_one_before_it_is_noticed() {
        let crates = ["lockkeeper", "lockkeeper-core", "lockkeeper-sql"];
        let of = |file: &'static str, text: &'static str| {
            let core: Vec<_> =
                CORE.iter().map(|it| (*it, if *it == file { text } else { "struct A;" })).collect();
            said(PAGE, &core, &crates)
        };
        assert_eq!(of("engine/contest.rs", "use crate::engine::ask::Ask;"), [""; 0]);
        let told = of("engine/ask.rs", "use super::queue::Queue;");
        assert_eq!(told, ["ARCHITECTURE.md: engine::ask calls engine::queue, which the map shows before it"]);
    }
}
