//! Copy the core's files without their unit tests, and its root as one that this program can include.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let core = Path::new("../lockkeeper-core/src");
    println!("cargo::rerun-if-changed={}", core.display());
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo names no folder"))?;
    let copy = PathBuf::from(out).join("core");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    copy_folder(core, &copy)?;
    // What speaks to whoever reads or documents the crate has no place in the middle of another.
    let root = fs::read_to_string(copy.join("lib.rs"))?;
    let lines = root.lines().filter(|it| !it.starts_with("//!") && !it.starts_with("#!["));
    fs::write(copy.join("root.rs"), lines.map(|it| format!("{it}\n")).collect::<String>())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            // Unit tests run where the core lives; here every lock belongs to a search.
            fs::write(&target, fs::read_to_string(&path)?.replace("#[cfg(test)]", "#[cfg(any())]"))?;
        }
    }
    Ok(())
}
