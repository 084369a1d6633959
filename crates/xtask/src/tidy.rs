//! The habits of this house, as a check: taste that is not executed decays.

mod circle;
mod claims;
mod evidence;
mod leads;
mod map;
mod orderings;
mod pages;
mod shape;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{errors, examples, shell, together};

const FILE_LINES_MAX: usize = 500;
/// Only these files speak the SPI's verbs (whose names end in `_dyn`) on behalf of users; the first defines them.
const SPI_CALLERS: &[&str] = &[
    "spi/erased.rs",
    "engine/contest.rs",
    "engine/renewal.rs",
    "engine/leave.rs",
    "engine/lower.rs",
    "engine/spot.rs",
    "engine/memo.rs",
    "api/builder.rs",
];
const CORE: &str = "crates/lockkeeper-core/src/";

pub(crate) fn check() -> Result<(), String> {
    shell::say("xtask: tidy");
    let root = shell::root();
    let mut complaints = Vec::new();
    let (mut core, mut sources) = (Vec::new(), Vec::new());
    for file in files(&root, "rs") {
        let text = fs::read_to_string(&file).map_err(|it| format!("{}: {it}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        rust_file(&name, &text, &mut complaints);
        words::check(&name, &text, &mut complaints);
        orderings::check(&name, &text, &mut complaints);
        if shape::ships(&name) {
            shape::file(&name, &text, &mut complaints);
        }
        if let Some(path) = name.strip_prefix(CORE) {
            core.push((path.to_owned(), text.clone()));
        }
        sources.push((name, text));
    }
    core.sort();
    circle::check(&core, &mut complaints);
    shape::stores(&root, &mut complaints);
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    map::check(&root, &architecture, &core, &mut complaints);
    spi_callers(&architecture, &mut complaints);
    let reliability = fs::read_to_string(root.join("docs/reliability.md")).unwrap_or_default();
    evidence::check(&reliability, &sources, &mut complaints);
    claims::check(&fs::read_to_string(root.join("README.md")).unwrap_or_default(), &mut complaints);
    for file in files(&root, "md") {
        let text = fs::read_to_string(&file).map_err(|it| format!("{}: {it}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        links(&root, &file, &name, &text, &mut complaints);
        words::check(&name, &text, &mut complaints);
    }
    examples::check(&root, &mut complaints);
    errors::check(&root, &mut complaints);
    pages::check(&root, &mut complaints);
    leads::check(&root, &mut complaints);
    together::tidy(&root, &mut complaints);
    if complaints.is_empty() { Ok(()) } else { Err(format!("untidy:\n  {}", complaints.join("\n  "))) }
}

/// All files below `folder` with this ending, build output and hidden folders left out.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if name != "target" && name != "out" && !name.starts_with('.') {
                found.extend(files(&path, ending));
            }
        } else if path.extension().is_some_and(|it| it == ending) {
            found.push(path);
        }
    }
    found
}

fn rust_file(name: &str, text: &str, complaints: &mut Vec<String>) {
    let generated = text.contains("@generated");
    // Two crates are for tests: whoever drops one of their futures is a test that ends.
    let for_tests = ["/tests", "/examples/", "lockkeeper-testkit/", "lockkeeper-servers/"];
    let is_test = for_tests.iter().any(|it| name.contains(it));
    if !text.starts_with("//!") && !generated {
        complaints.push(format!("{name}: the first line must say what the file is for (`//! …`)"));
    }
    let lines = text.lines().count();
    if FILE_LINES_MAX < lines && !generated {
        complaints.push(format!("{name}: {lines} lines; at most {FILE_LINES_MAX}: has it one subject?"));
    }
    for (number, line) in text.lines().enumerate() {
        if line.ends_with(' ') || line.contains('\t') && !generated {
            complaints.push(format!("{name}:{}: trailing blank or tab", number + 1));
        }
        if line.trim_start().starts_with("#[ignore") {
            complaints.push(format!("{name}:{}: a test is run or deleted, never ignored", number + 1));
        }
    }
    if !is_test && !generated {
        cancel_safety(name, text, complaints);
    }
    if name.starts_with(CORE) && !SPI_CALLERS.iter().any(|it| name.ends_with(it)) {
        for (at, _) in text.match_indices("_dyn(") {
            let verb =
                text[..at].rsplit(|it: char| !(it.is_alphanumeric() || it == '_')).next().unwrap_or_default();
            let callers = SPI_CALLERS[1..].join(", ");
            complaints.push(format!("{name}: `{verb}_dyn(…)`: only {callers} call the SPI"));
        }
    }
}

/// The page of the architecture names the same files.
fn spi_callers(page: &str, complaints: &mut Vec<String>) {
    let line = page.lines().find(|it| it.contains("call the SPI")).unwrap_or_default();
    for file in SPI_CALLERS[1..].iter().filter_map(|it| it.rsplit('/').next()) {
        if !line.contains(&format!("`{file}`")) {
            complaints.push(format!(
                "ARCHITECTURE.md: `{file}` calls the SPI, and the line about that does not say so"
            ));
        }
    }
}

/// Every public async function says what happens when its future is dropped.
fn cancel_safety(name: &str, text: &str, complaints: &mut Vec<String>) {
    let mut docs = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("///") {
            docs.push_str(line);
        } else if line.starts_with("pub async fn") {
            if !docs.contains("# Cancel safety") {
                complaints
                    .push(format!("{name}:{}: say what dropping does under `# Cancel safety`", number + 1));
            }
            docs.clear();
        } else if !line.starts_with("#[") {
            docs.clear();
        }
    }
}

/// Links of a page to files of this repository must lead somewhere.
fn links(root: &Path, file: &Path, name: &str, text: &str, complaints: &mut Vec<String>) {
    for rest in text.split("](").skip(1) {
        let target = rest.split([')', '#']).next().unwrap_or_default();
        if target.is_empty() || target.contains(':') || target.contains(' ') {
            continue;
        }
        let base = if target.starts_with('/') { root } else { file.parent().unwrap_or(root) };
        if !base.join(target.trim_start_matches('/')).exists() {
            complaints.push(format!("{name}: the link to `{target}` leads nowhere"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        check().unwrap();
    }

    #[test]
    fn untidy_files_are_noticed() {
        let mut complaints = Vec::new();
        rust_file("x/src/a.rs", "fn a() {}\n", &mut complaints);
        rust_file("x/src/b.rs", "//! B.\n/// Does.\npub async fn b() {}\n", &mut complaints);
        rust_file("x/src/c.rs", "//! C.\n#[ignore]\n", &mut complaints);
        rust_file("crates/lockkeeper-core/src/guard.rs", "//! D.\nx.turn_dyn();\n", &mut complaints);
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(complaints[3].contains("`turn_dyn(…)`"), "{complaints:?}");
        spi_callers("Only `contest.rs` and others call the SPI.", &mut complaints);
        assert_eq!(complaints.len(), 4 + SPI_CALLERS.len() - 2, "{complaints:?}");
    }
}
