//! Several real processes share one file of locks and one cache of files: one load per key and generation.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::{Cache, CacheError, Found, Rebuild};
use lockkeeper_core::{Clock, Locker, Moment};
use lockkeeper_sqlite::{Sqlite, SqliteOptions};
use tempfile::TempDir;

const FOLDER: &str = "LOCKKEEPER_TEST_CACHE_FOLDER";
const PROCESSES: usize = 4;
const CALLERS: usize = 1000;
const HANG: Duration = Duration::from_secs(120);

/// A cache of files; all processes of this machine share its clock.
#[derive(Clone)]
struct FileCache(PathBuf);

impl FileCache {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.entry"))
    }
}

impl Cache<String> for FileCache {
    async fn get(&self, key: &str) -> Result<Option<Found<String>>, CacheError> {
        let Ok(text) = fs::read_to_string(self.path(key)) else { return Ok(None) };
        let (ends, value) = text.split_once(' ').unwrap();
        let (ends, now) = (Moment::from_nanos(ends.parse().map_err(CacheError::new)?), Clock::boot().now());
        let value = Some(value.to_owned());
        Ok((now < ends).then(|| Found::new(value, ends - now)))
    }

    async fn put(&self, key: &str, value: Option<&String>, expires_in: Duration) -> Result<(), CacheError> {
        let ends = Clock::boot().now().after(expires_in).as_nanos();
        let whole = self.0.join(format!("{key}.{}", std::process::id()));
        fs::write(&whole, format!("{ends} {}", value.unwrap()))?;
        Ok(fs::rename(whole, self.path(key))?)
    }

    async fn remove(&self, key: &str) -> Result<(), CacheError> {
        Ok(fs::remove_file(self.path(key))?)
    }
}

/// The folder, if this process is a child.
fn role() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn child(test: &str, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(FOLDER, folder);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Wait until the parent closes our input.
fn wait_for_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn note_load(folder: &Path, key: &str) -> usize {
    let file = folder.join(format!("{key}.loads"));
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(b"x").unwrap();
    usize::try_from(file.metadata().unwrap().len()).unwrap()
}

fn loads(folder: &Path, key: &str) -> u64 {
    fs::metadata(folder.join(format!("{key}.loads"))).map_or(0, |it| it.len())
}

async fn rebuild(folder: &Path) -> Rebuild<FileCache> {
    let backend = Sqlite::with(SqliteOptions::new(folder.join("locks.db"))).await.unwrap();
    let locker = Locker::builder(backend).ttl(Duration::from_secs(2)).build();
    Rebuild::new(FileCache(folder.to_owned()), locker).ttl(Duration::from_secs(3600)).wait_at_most(HANG)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// All callers of this process ask for the key at once.
async fn ask(folder: &Path, key: &'static str) {
    let rebuild = Arc::new(rebuild(folder).await);
    let folder = Arc::new(folder.to_owned());
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (rebuild, folder) = (rebuild.clone(), folder.clone());
            tokio::spawn(async move {
                let loader = || async {
                    let load = note_load(&folder, key);
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>(Some(format!("load {load}")))
                };
                rebuild.get_or_load(key, loader).await.unwrap().unwrap()
            })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "all got the same: {answers:?}");
}

#[test]
fn four_thousand_callers_in_four_processes_make_one_load_per_generation() {
    if let Some(folder) = role() {
        return run(async {
            wait_for_parent();
            ask(&folder, "k").await;
        });
    }
    let folder = TempDir::new().unwrap();
    let test = "four_thousand_callers_in_four_processes_make_one_load_per_generation";
    for generation in 1..=2 {
        let mut children: Vec<_> = (0..PROCESSES).map(|_| child(test, folder.path())).collect();
        for child in &mut children {
            drop(child.stdin.take());
        }
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(loads(folder.path(), "k"), generation);
        run(FileCache(folder.path().to_owned()).remove("k")).unwrap();
    }
}

#[test]
fn a_loading_process_that_is_killed_costs_one_more_load_and_no_more() {
    if let Some(folder) = role() {
        return run(async {
            if loads(&folder, "k") == 0 {
                let stuck = || async {
                    note_load(&folder, "k");
                    std::future::pending::<Result<Option<String>, Infallible>>().await
                };
                let _never = rebuild(&folder).await.get_or_load("k", stuck).await;
            }
            ask(&folder, "k").await;
        });
    }
    let folder = TempDir::new().unwrap();
    let test = "a_loading_process_that_is_killed_costs_one_more_load_and_no_more";
    let mut first = child(test, folder.path());
    run(async {
        let loading = async {
            while loads(folder.path(), "k") == 0 {
                Clock::boot().sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG, loading).await.unwrap();
    });
    let others: Vec<_> = (0..PROCESSES).map(|_| child(test, folder.path())).collect();
    first.kill().unwrap();
    first.wait().unwrap();
    for mut child in others {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(loads(folder.path(), "k"), 2);
}
