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
    let ours = fs::read_to_string(root.join("Cargo.toml")).map_err(|it| format!("Cargo.toml: {it}"))?;
    write("Cargo.toml", &(workspace(names, version) + &profile(&ours)))?;
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

/// How the lints compile: with another profile nothing that they have checked could be used again.
fn profile(manifest: &str) -> String {
    let of_dev = manifest.split("\n[").find(|it| it.starts_with("profile.dev]"));
    of_dev.map(|it| format!("\n[{it}\n")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_compiled_as_the_lints_compile() {
        let manifest = "[workspace]\n\n[profile.dev]\ndebug = 1\n\n[profile.dev.package.x]\nopt-level = 1\n\n[profile.release]\n";
        assert_eq!(super::profile(manifest), "\n[profile.dev]\ndebug = 1\n\n");
        let ours = std::fs::read_to_string(crate::shell::root().join("Cargo.toml")).unwrap();
        assert!(super::profile(&ours).contains("debug ="));
    }

    #[test]
    fn each_crate_stands_for_the_one_of_the_registry() {
        let text = super::workspace(&["a", "b-c"], "0.1.0");
        assert!(text.contains("members = [\"*-0.1.0\"]"), "{text}");
        assert!(text.ends_with("a = { path = \"a-0.1.0\" }\nb-c = { path = \"b-c-0.1.0\" }\n"), "{text}");
    }
}
