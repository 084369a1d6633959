//! A copy of the tree, in which mistakes may be planted: what git knows of, as it is now.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

pub(crate) struct Copy {
    source: PathBuf,
    tree: PathBuf,
    target: PathBuf,
    /// Held for as long as we use the copy: two runs would plant into each other's.
    _lock: File,
}

impl Copy {
    /// Make it, or bring it up to date. Files that are the same stay untouched, so that they are not built again. It is built
    /// in the folder of the workspace, or in one of its own.
    pub(crate) fn make(folder: &Path, target: Option<PathBuf>) -> Result<Self, String> {
        let tree = folder.join("tree");
        fs::create_dir_all(&tree).map_err(|it| of(&tree, &it))?;
        let lock = File::create(folder.join("lock")).map_err(|it| of(folder, &it))?;
        lock.lock().map_err(|it| of(folder, &it))?;
        let source = shell::root();
        let target = target.unwrap_or_else(|| source.join("target"));
        let copy = Copy { source, tree, target, _lock: lock };
        copy.renew()?;
        Ok(copy)
    }

    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Make it equal to the tree again.
    pub(crate) fn renew(&self) -> Result<(), String> {
        let source = self.source.display().to_string();
        let listed = ["-C", &source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let listed = shell::output("git", &listed)?;
        let mut wanted = Vec::new();
        for name in listed.split('\0').filter(|it| !it.is_empty()) {
            let (from, to) = (self.source.join(name), self.tree.join(name));
            // Git also lists what was deleted and not yet told to it.
            let Ok(bytes) = fs::read(&from) else { continue };
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                let folder = to.parent().unwrap_or(&self.tree);
                fs::create_dir_all(folder).map_err(|it| of(folder, &it))?;
                fs::write(&to, bytes).map_err(|it| of(&to, &it))?;
            }
            wanted.push(to);
        }
        remove_all_but(&wanted, &self.tree)
    }

    /// Plant a mistake.
    pub(crate) fn apply(&self, patch: &Path) -> Result<(), String> {
        git_apply(&self.tree, patch, &[])
    }
}

/// Let a second build folder begin with what the first one has of everybody's crates: without it two builds at a time would
/// wait for each other, and with an empty one everything would be built again. What was compiled is linked, not copied:
/// its name says what it was made of, so neither build writes the other's.
pub(super) fn share_builds(from: &Path, to: &Path) -> Result<(), String> {
    let (from, to) = (from.join("debug"), to.join("debug"));
    if to.is_dir() {
        return Ok(());
    }
    let half = to.with_extension("half");
    drop(fs::remove_dir_all(&half));
    fs::create_dir_all(&half).map_err(|it| of(&half, &it))?;
    for (folder, how) in [("deps", "-al"), ("build", "-a"), (".fingerprint", "-a")] {
        let (from, half) = (from.join(folder).display().to_string(), half.display().to_string());
        shell::output("cp", &[how, &from, &half])?;
    }
    // Only what is whole has the name.
    fs::rename(&half, &to).map_err(|it| of(&to, &it))
}

/// Whether a patch can be applied to this tree.
pub(super) fn fits(tree: &Path, patch: &Path) -> Result<(), String> {
    git_apply(tree, patch, &["--check"])
}

fn git_apply(tree: &Path, patch: &Path, more: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    // A copy lies inside the repository, and is none of it.
    command.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
    command.current_dir(tree).arg("apply").args(more).arg(patch);
    let out = command.output().map_err(|it| format!("cannot run {command:?}: {it}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("the patch no longer applies: {}", said.trim())) }
}

fn remove_all_but(wanted: &[PathBuf], folder: &Path) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|it| of(folder, &it))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_all_but(wanted, &path)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path).map_err(|it| of(&path, &it))?;
        }
    }
    Ok(())
}

fn of(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
