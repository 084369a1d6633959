//! The tutorial `docs/guides/first-ten-minutes.md`, done as it is written.
//!
//! Every command, program and file comes from the page. Two things differ: the folder is not `/tmp/first`, and the
//! command is not installed but the one that was just built. `cargo xtask tutorial` does without the second: everything is
//! built anew, as for a reader with an empty clone, and the minutes are judged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{code, finish, until};
use lockkeeper::spi::Clock;
use tempfile::TempDir;

const PAGE: &str = include_str!("../../../docs/guides/first-ten-minutes.md");
/// A first build of the tutorial's program on a busy machine.
const BUILD_HANG: Duration = Duration::from_secs(20 * 60);
/// Set if everything is to be built anew. No `LOCKKEEPER_…`: the command would take it for a setting that it does not know.
const COLD: &str = "TUTORIAL_COLD";
/// What the page promises. Judged only where nothing was built before: otherwise the figure says nothing.
const MINUTES_MAX: u32 = 10;

/// The blocks of the page in one language, in order.
fn blocks(language: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Between two fences is prose or code, in turns.
    for block in PAGE.split("```").skip(1).step_by(2) {
        if let Some((first, text)) = block.split_once('\n')
            && first == language
        {
            found.push(text.to_owned());
        }
    }
    found
}

/// What the page says to type, in order.
fn commands() -> Vec<String> {
    let typed = |block: String| {
        block.lines().filter_map(|it| it.strip_prefix("$ ").map(str::to_owned)).collect::<Vec<_>>()
    };
    blocks("console").into_iter().flat_map(typed).collect()
}

/// Somebody who follows the page.
struct Reader {
    folder: TempDir,
    clone: PathBuf,
    exports: String,
    is_cold: bool,
}

impl Reader {
    fn new() -> Self {
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf();
        let is_cold = std::env::var_os(COLD).is_some();
        Reader { folder: TempDir::new().unwrap(), clone, exports: String::new(), is_cold }
    }

    /// A text of the page with this reader's folders.
    fn here(&self, text: &str) -> String {
        let folder = self.folder.path().to_str().unwrap();
        text.replace("/tmp/first", folder).replace("CLONE", self.clone.to_str().unwrap())
    }

    /// What `cargo install` would do, without building everything once more; or that itself.
    fn install(&self, command: &str) {
        if self.is_cold {
            return self.built(self.clone.to_str().unwrap(), command);
        }
        let bin = self.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_lockkeeper"), bin.join("lockkeeper")).unwrap();
    }

    /// Begin a command in a shell of its own.
    fn start(&self, folder: &str, command: &str) -> Child {
        // Built as this workspace is, so that most of it is there already; or in a folder where nothing is.
        let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_path_buf();
        let target = if self.is_cold { self.folder.path().join("target") } else { shared };
        let mut shell = Command::new("sh");
        if !self.is_cold {
            shell.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        }
        shell
            .args(["-c", &format!("{}{}", self.exports, self.here(command))])
            .current_dir(self.folder.path().join(folder))
            .env_remove("LOCKKEEPER_CONFIG")
            .env("CARGO_TARGET_DIR", target)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn run(&self, folder: &str, command: &str) -> Output {
        finish(self.start(folder, command))
    }

    /// Run a command that must succeed; what it printed.
    fn done(&self, folder: &str, command: &str) -> String {
        let output = self.run(folder, command);
        assert_eq!(code(&output), 0, "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// As [`Reader::done`], for what compiles a lot.
    fn built(&self, folder: &str, command: &str) {
        let child = self.start(folder, command);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        let output = receiver.recv_timeout(BUILD_HANG).unwrap();
        assert_eq!(code(&output), 0, "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What the headings say, in words, comes to what the page promises.
#[test]
fn the_headings_sum_to_ten_minutes() {
    const WORDS: [&str; 11] =
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let spans = PAGE
        .lines()
        .filter(|it| it.starts_with("## "))
        .filter_map(|it| it.split_once('(')?.1.split_once(" minute"));
    let minutes: Vec<&str> = spans.map(|it| it.0).collect();
    let sum: usize = minutes.iter().map(|it| WORDS.iter().position(|word| word == it).unwrap()).sum();
    assert_eq!(u32::try_from(sum), Ok(MINUTES_MAX), "{minutes:?}");
}

#[test]
fn the_first_ten_minutes_are_as_written() {
    let commands = commands();
    let [new, cd_shop, add, add_tokio, run, install, path, url, hold, ls, attempt, status, cd, demo] =
        &commands.iter().map(String::as_str).collect::<Vec<_>>()[..]
    else {
        panic!("the page has other commands than this test: {commands:#?}")
    };
    let mut reader = Reader::new();
    let (clock, began) = (Clock::boot(), Clock::boot().now());
    assert_eq!(
        *install,
        "cargo install --path crates/lockkeeper-cli --root /tmp/first --locked --features demo"
    );
    reader.install(install);
    reader.exports = reader.here(&format!("{path}\n{url}\n"));

    reader.done("", new);
    fs::copy(reader.clone.join("Cargo.lock"), reader.folder.path().join("shop/Cargo.lock")).unwrap();
    reader.done("shop", add);
    reader.done("shop", add_tokio);
    the_program(&reader, run, ls);

    the_command(&reader, hold, ls, attempt, status);
    assert_eq!([*cd, *demo, *cd_shop], ["cd /tmp/first", "lockkeeper demo flash-sale", "cd /tmp/first/shop"]);
    let table = reader.done("", &format!("{demo} --buyers 40 --stock 10"));
    assert!(["no-lock", "one-statement", "lockkeeper"].iter().all(|it| table.contains(it)), "{table}");
    assert!(reader.folder.path().join("flash-sale.svg").exists());
    let minutes = (clock.now() - began).as_secs_f64() / 60.0;
    let _ = writeln!(std::io::stderr(), "the tutorial took {minutes:.1} minutes without the reading");
    assert!(
        !reader.is_cold || minutes <= f64::from(MINUTES_MAX),
        "the page promises ten minutes: {minutes:.1}"
    );
}

fn the_command(reader: &Reader, hold: &str, ls: &str, attempt: &str, status: &str) {
    let mut first = reader.start("", &format!("exec {hold}"));
    until("the first has it", || reader.done("", ls).contains("nightly-report"));
    let table = reader.done("", ls);
    let heading = table.lines().next().unwrap();
    let shown = PAGE.split(&format!("$ {ls}\n")).nth(1).unwrap().lines().next().unwrap();
    assert!(heading.split_whitespace().eq(shown.split_whitespace()), "{heading}");
    let second = reader.run("", &format!("{attempt}\n{status}"));
    let told = format!(
        "$ {attempt}\n{}$ {status}\n{}",
        String::from_utf8(second.stderr).unwrap(),
        String::from_utf8(second.stdout).unwrap()
    );
    assert!(anybodys(PAGE).contains(&anybodys(&told)), "the page shows something else than:\n{told}");
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(reader.done("", &attempt.replace("--try ", "")), "it is mine\n");
}

/// The same text without who holds the lock, and for how long.
fn anybodys(text: &str) -> String {
    let Some((before, rest)) = text.split_once("hint: held by ") else { return text.to_owned() };
    let (_, after) = rest.split_once("; ").unwrap();
    format!("{before}hint: held by …; {after}")
}

fn the_program(reader: &Reader, run: &str, ls: &str) {
    let shop = reader.folder.path().join("shop");
    let ([program], [file]) = (&blocks("rust")[..], &blocks("toml")[..]) else {
        panic!("the page has one program and one file")
    };
    fs::write(shop.join("src/main.rs"), program).unwrap();
    let file = reader.here(file);
    fs::write(shop.join("lockkeeper.toml"), &file).unwrap();
    let (clock, began) = (Clock::boot(), Clock::boot().now());
    reader.built("shop", "cargo build");
    let minutes = (clock.now() - began).as_secs_f64() / 60.0;
    let _ = writeln!(std::io::stderr(), "the program was built in {minutes:.1} minutes");

    let both = [reader.start("shop", run), reader.start("shop", run)];
    until("the lock is listed", || reader.done("", ls).contains("shop:product:42"));
    let mut fences: Vec<Vec<u64>> = Vec::new();
    for output in both.map(finish) {
        assert_eq!(code(&output), 0, "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        fences.push(text.lines().map(|it| it.rsplit(' ').next().unwrap().parse().unwrap()).collect());
    }
    assert!(fences.iter().all(|it| it.len() == 5 && it.is_sorted()), "{fences:?}");
    let mut all = fences.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 10, "no two guards have the same fence: {fences:?}");

    fs::write(shop.join("lockkeeper.toml"), file.replace("ttl", "tll")).unwrap();
    let misspelt = reader.run("shop", run);
    assert_ne!(code(&misspelt), 0);
    let told = String::from_utf8_lossy(&misspelt.stderr);
    assert!(told.contains("there is no key `tll`; did you mean `ttl`?"), "{told}");
}
