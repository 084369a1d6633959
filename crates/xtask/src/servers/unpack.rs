//! Packages become a folder whose programs run on this machine: with the loader and the libraries that came with them.

use std::fs::{self, File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::{files, of, remove};
use crate::shell;

/// What no server needs: half of what is unpacked.
const NEEDLESS: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/gdb",
    "usr/share/perl",
    "usr/share/perl5",
    "usr/include",
    "var",
    "etc",
];

pub(super) fn all(packages: &[PathBuf], folder: &Path) -> Result<(), String> {
    let target = folder.display().to_string();
    fs::create_dir_all(folder).map_err(|it| of(folder, &it))?;
    for package in packages {
        shell::output("dpkg-deb", &["--extract", &package.display().to_string(), &target])?;
    }
    Ok(())
}

/// Remove what these programs do not need.
pub(super) fn prune(folder: &Path, programs: &[(&str, &str)]) -> Result<(), String> {
    NEEDLESS.iter().try_for_each(|it| remove(&folder.join(it)))?;
    for place in ["usr/bin", "usr/sbin"] {
        if !programs.iter().any(|it| Path::new(it.1).starts_with(place)) {
            remove(&folder.join(place))?;
        }
    }
    let libraries = loader(folder)?.parent().map(|it| folder.join(it)).unwrap_or_default();
    for entry in fs::read_dir(&libraries).map_err(|it| of(&libraries, &it))?.flatten() {
        let name = entry.file_name();
        if entry.path().is_dir() && (name == "gconv" || name.to_string_lossy().starts_with("perl")) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Put a script in the place of every program in the folders of these, and links to the latter into `bin/`.
pub(super) fn wrap(folder: &Path, programs: &[(&str, &str)]) -> Result<(), String> {
    let loader = loader(folder)?;
    let mut done = Vec::new();
    for (_, path) in programs {
        let Some(place) = Path::new(path).parent().filter(|it| !done.contains(it)) else { continue };
        done.push(place);
        for file in files(&folder.join(place))? {
            if is_program(&file) {
                script(folder, &loader, &file)?;
            }
        }
    }
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).map_err(|it| of(&bin, &it))?;
    for (name, path) in programs {
        let link = bin.join(name);
        symlink(Path::new("..").join(path), &link).map_err(|it| of(&link, &it))?;
    }
    Ok(())
}

/// The loader of the C library in this folder, as a path within it.
fn loader(folder: &Path) -> Result<PathBuf, String> {
    let found = files(&folder.join("usr/lib"))?.into_iter().find(|it| {
        let name = it.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ld-linux") && name.contains(".so") && it.is_file()
    });
    let found = found.ok_or("the packages bring no loader")?;
    found.strip_prefix(folder).map(Path::to_owned).map_err(|it| it.to_string())
}

fn is_program(file: &Path) -> bool {
    let Ok(about) = fs::symlink_metadata(file) else { return false };
    let mut first = [0; 4];
    let read = File::open(file).and_then(|mut it| it.read_exact(&mut first));
    about.is_file() && about.permissions().mode() & 0o111 != 0 && read.is_ok() && first == *b"\x7fELF"
}

/// Rename the program to `NAME.elf` and write a script under its name that runs it. It finds everything by its own
/// place, so that the folder can be moved; some programs look for their files beside the name by which they are called.
fn script(folder: &Path, loader: &Path, program: &Path) -> Result<(), String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let libraries = loader.parent().unwrap_or(loader).display();
    let depth = program.strip_prefix(folder).map_or(0, |it| it.components().count());
    let up = "/..".repeat(depth.saturating_sub(1));
    let text = format!(
        "#!/bin/sh\n\
         # With the loader and the libraries that came with it: those of the system may be older.\n\
         here=$(readlink -f \"$0\")\n\
         place=${{here%/*}}\n\
         root=$place{up}\n\
         exec \"$root/{loader}\" --library-path \"$root/{libraries}\" --argv0 \"$place/${{0##*/}}\" \"$here.elf\" \"$@\"\n",
        loader = loader.display(),
    );
    let moved = program.with_file_name(format!("{name}.elf"));
    fs::rename(program, &moved).map_err(|it| of(&moved, &it))?;
    fs::write(program, text).map_err(|it| of(program, &it))?;
    fs::set_permissions(program, Permissions::from_mode(0o755)).map_err(|it| of(program, &it))
}
