//! What is packed compiles: the archives are unpacked side by side and checked, each with the others as its dependencies.
//!
//! `cargo package` would do it by building everything once more, for minutes. Here the crates of others are those that the
//! lints have checked already.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::shell;

/// Unpack what `cargo package` made of these crates, and check it without the repository around it.
///
/// # Errors
/// If an archive is missing or lacks a file that its crate needs.
pub(super) fn check(names: &[&str], version: &str) -> Result<(), String> {
    let root = shell::root();
    let folder = root.join("target/packed");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).map_err(|it| format!("{}: {it}", folder.display()))?;
    for name in names {
        unpack(&root.join(format!("target/package/{name}-{version}.crate")), &folder)?;
    }
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).map_err(|it| format!("{}/{name}: {it}", folder.display()))
    };
    write("Cargo.toml", &workspace(names, version))?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|it| format!("Cargo.lock: {it}"))?;
    write("Cargo.lock", &lock)?;
    let manifest = folder.join("Cargo.toml");
    let (manifest, target) = (manifest.display().to_string(), root.join("target").display().to_string());
    let args = ["check", "--quiet", "--workspace", "--all-features", "--offline"];
    let places = ["--manifest-path", &manifest, "--target-dir", &target];
    shell::step("packages, as they are packed", "cargo", &[&args[..], &places].concat())
}

fn unpack(archive: &Path, folder: &Path) -> Result<(), String> {
    let (archive, folder) = (archive.display().to_string(), folder.display().to_string());
    // With the time of now: archives have the same old one in each run, and cargo judges by it what is to be compiled again.
    shell::output("tar", &["-xzmf", &archive, "-C", &folder]).map(drop)
}

/// A workspace of the unpacked crates, in which each stands for the one that the registry would have.
fn workspace(names: &[&str], version: &str) -> String {
    let mut text = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*-");
    let _ = write!(text, "{version}\"]\n\n[patch.crates-io]\n");
    for name in names {
        let _ = writeln!(text, "{name} = {{ path = \"{name}-{version}\" }}");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_crate_stands_for_the_one_of_the_registry() {
        let text = super::workspace(&["a", "b-c"], "0.1.0");
        assert!(text.contains("members = [\"*-0.1.0\"]"), "{text}");
        assert!(text.ends_with("a = { path = \"a-0.1.0\" }\nb-c = { path = \"b-c-0.1.0\" }\n"), "{text}");
    }
}
