//! The container image, built and run as the `Containerfile` says: `cargo xtask image`.
//!
//! Where docker or podman works, it does both. Elsewhere the last stage of the file is put together by hand: the same static
//! program, the same files, run in a folder with nothing else around. Either way the size is judged. Not part of `test`: it
//! builds everything once more, for another target, and needs what tests do not.

mod elf;
mod file;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use file::Containerfile;

use crate::shell;

const FILE: &str = "Containerfile";
/// All files of the image together.
const BYTES_MAX: u64 = 30_000_000;
/// What the program is asked in the image: its version, and to run a command under a lock. The only one there is itself.
const VERSION: &[&str] = &["--version"];
const RUN: &[&str] = &["--url", "memory:", "run", "hello", "--", "/usr/local/bin/lockkeeper", "--version"];

pub(crate) fn make() -> Result<(), String> {
    let root = shell::root();
    let text = fs::read_to_string(root.join(FILE)).map_err(|it| format!("{FILE}: {it}"))?;
    let file = Containerfile::parse(&text)?;
    let engine = ["docker", "podman"].into_iter().find(|it| answers(it));
    let bytes = if let Some(engine) = engine { by_engine(engine)? } else { by_hand(&root, &file)? };
    let size = format!("{:.1} MB of at most {:.0}", in_megabytes(bytes), in_megabytes(BYTES_MAX));
    if BYTES_MAX < bytes {
        return Err(format!("the image is too large: {size}"));
    }
    shell::say(&format!("xtask: the image has {size}"));
    Ok(())
}

/// Whether there is an engine that works, not only its program.
fn answers(engine: &str) -> bool {
    Command::new(engine).arg("info").output().is_ok_and(|it| it.status.success())
}

fn by_engine(engine: &str) -> Result<u64, String> {
    const TAG: &str = "lockkeeper-xtask";
    shell::step("image", engine, &["build", "--file", FILE, "--tag", TAG, "."])?;
    for words in [VERSION, RUN] {
        shell::step("the image runs", engine, &[&["run", "--rm", TAG][..], words].concat())?;
    }
    let size = shell::output(engine, &["image", "inspect", "--format", "{{.Size}}", TAG])?;
    size.trim().parse().map_err(|it| format!("{engine} says that the image has {size:?} bytes: {it}"))
}

fn by_hand(root: &Path, file: &Containerfile) -> Result<u64, String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    shell::say("xtask: neither docker nor podman answers, so the image is put together by hand");
    let missing = missing(&target, file)?;
    if !missing.is_empty() {
        return Err(format!("this machine cannot build the image by hand:\n  {}", missing.join("\n  ")));
    }
    let mut build: Vec<&str> = file.build.iter().map(String::as_str).collect();
    build.extend(["--target", &target]);
    let compiler = format!("CC_{}", target.replace('-', "_"));
    shell::step_with("the static program", "cargo", &build, &compiler, "musl-gcc")?;

    let image = root.join("target/image");
    let _ = fs::remove_dir_all(&image);
    for (source, inside) in &file.copied {
        copy(&origin(root, &target, source), &image.join(inside.trim_start_matches('/')))?;
    }
    let program = image.join(file.program.trim_start_matches('/'));
    let read = fs::read(&program).map_err(|it| format!("{}: {it}", program.display()))?;
    if let Some(loader) = elf::interpreter(&read)? {
        return Err(format!("{} is not static: it needs {loader}", program.display()));
    }
    for words in [VERSION, RUN] {
        run_alone(&image, file, words)?;
    }
    bytes_of(&image)
}

/// What the machine lacks, each with what to do.
fn missing(target: &str, file: &Containerfile) -> Result<Vec<String>, String> {
    let sysroot = shell::output("rustc", &["--print", "sysroot"])?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    let mut missing = Vec::new();
    if !library.exists() {
        missing.push(format!(
            "Rust's library for {target}; as the user of the toolchain: rustup target add {target}"
        ));
    }
    for (program, package) in [("musl-gcc", "musl-tools"), ("unshare", "util-linux"), ("chroot", "coreutils")]
    {
        if !is_program(program, &std::env::var("PATH").unwrap_or_default()) {
            missing.push(format!("the program {program}; as root: apt-get install {package}"));
        }
    }
    for (source, _) in file.copied.iter().filter(|it| !it.0.starts_with(file::SOURCES)) {
        if !Path::new(source).exists() {
            missing.push(format!("the file {source}; as root: apt-get install ca-certificates"));
        }
    }
    Ok(missing)
}

fn is_program(name: &str, path: &str) -> bool {
    // Where root has programs, also if others do not look there.
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|it| Path::new(it).join(name).is_file())
}

/// Where a file of the first stage is on this machine.
fn origin(root: &Path, target: &str, source: &str) -> PathBuf {
    match source.strip_prefix(file::SOURCES).and_then(|it| it.strip_prefix("target/")) {
        Some(built) => root.join("target").join(target).join(built),
        None => PathBuf::from(source),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let said = |it| format!("{} cannot be copied to {}: {it}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(said)?;
    fs::copy(from, to).map(drop).map_err(said)
}

/// What an engine adds to every image: the processes that it can see, and the devices.
const GIVEN: [&str; 2] = ["proc", "dev"];
/// `$0` is the image, `$1` its user, the rest the program.
const ALONE: &str =
    "mount --bind /dev \"$0/dev\" && who=$1 && shift && exec chroot --userspec=\"$who\" \"$0\" \"$@\"";

/// Run the program with the image's files for its world, as the image's user, with no network and no process but its own.
fn run_alone(image: &Path, file: &Containerfile, words: &[&str]) -> Result<(), String> {
    for folder in GIVEN.map(|it| image.join(it)) {
        fs::create_dir_all(&folder).map_err(|it| format!("{}: {it}", folder.display()))?;
    }
    let (image, proc) =
        (image.display().to_string(), format!("--mount-proc={}", image.join("proc").display()));
    let alone =
        ["--mount", "--net", "--pid", "--fork", &proc, "sh", "-c", ALONE, &image, &file.user, &file.program];
    shell::step("the image runs with nothing around it", "unshare", &[&alone[..], words].concat())
}

fn bytes_of(folder: &Path) -> Result<u64, String> {
    let said = |it| format!("{}: {it}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(said)? {
        let entry = entry.map_err(said)?;
        let about = entry.metadata().map_err(said)?;
        bytes += if about.is_dir() { bytes_of(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn in_megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Containerfile {
        Containerfile::parse(&fs::read_to_string(shell::root().join(FILE)).unwrap()).unwrap()
    }

    #[test]
    fn what_the_image_is_built_with_is_there() {
        let file = file();
        let [cargo_build, profile, profile_name, package, package_name, features, names, locked] =
            &file.build.iter().map(String::as_str).collect::<Vec<_>>()[..]
        else {
            panic!("it is built in another way now: {:?}", file.build)
        };
        assert_eq!(
            [*cargo_build, *profile, *package, *features, *locked],
            ["build", "--profile", "--package", "--features", "--locked"]
        );
        let manifest = fs::read_to_string(shell::root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("\n[profile.{profile_name}]\n")), "{profile_name}");
        let manifest =
            fs::read_to_string(shell::root().join("crates").join(package_name).join("Cargo.toml")).unwrap();
        for name in names.split(',') {
            assert!(manifest.contains(&format!("\n{name} = [")), "there is no feature {name}");
        }
    }

    #[test]
    fn the_image_holds_the_program_and_certificates_and_its_user_is_nobody_special() {
        let file = file();
        let inside: Vec<&str> = file.copied.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(inside, ["/usr/local/bin/lockkeeper", "/etc/ssl/certs/ca-certificates.crt"]);
        assert_eq!((file.program.as_str(), file.user.as_str()), ("/usr/local/bin/lockkeeper", "65534:65534"));
        let built = origin(Path::new("/clone"), "x-musl", &file.copied[0].0);
        assert_eq!(built, Path::new("/clone/target/x-musl/dist/lockkeeper"));
        assert_eq!(origin(Path::new("/clone"), "x-musl", "/etc/x"), Path::new("/etc/x"));
    }

    #[test]
    fn what_a_machine_lacks_is_said_with_what_to_do() {
        let mut file = file();
        file.copied.push(("/nowhere/at/all".into(), "/x".into()));
        let lacks = missing("pdp11-unknown-linux-musl", &file).unwrap();
        assert!(lacks[0].contains("rustup target add pdp11-unknown-linux-musl"), "{lacks:?}");
        assert!(lacks.last().unwrap().contains("/nowhere/at/all"), "{lacks:?}");
        assert!(is_program("sh", "/usr/bin:/bin") && !is_program("no-such-program", "/usr/bin:/bin"));
    }

    #[test]
    fn all_files_of_a_folder_are_counted() {
        let folder = std::env::temp_dir().join(format!("lockkeeper-image-{}", std::process::id()));
        copy(&shell::root().join("rustfmt.toml"), &folder.join("a/b")).unwrap();
        fs::write(folder.join("c"), [0; 1000]).unwrap();
        let bytes = bytes_of(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let copied = fs::metadata(shell::root().join("rustfmt.toml")).unwrap().len();
        assert_eq!(bytes, 1000 + copied);
    }
}
