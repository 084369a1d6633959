//! A process of ours in a comparison; its words are those of `rivals/README.md`.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_core::{Clock, Moment};
use mysql_async::prelude::Queryable as _;

use crate::Answer;
use crate::coord::{CrateLock, ServerLock};
use crate::crowd::{answer, heard};
use crate::redis::OnRedis;
use crate::report::say;
use crate::rival::{Ours, Rival};
use crate::sql::{Advisory, Sqlx};

/// The word that makes this program a worker.
pub(crate) const CHILD: &str = "rival";

/// What one process does.
pub(crate) fn work(words: &[String]) -> Answer<()> {
    let [lock, place, key, ttl, tasks, path, _offset] = words else {
        return Err("usage: LOCK PLACE KEY TTL TASKS FILE OFFSET".into());
    };
    let file = Arc::new(OpenOptions::new().read(true).write(true).open(path)?);
    let (ttl, tasks) = (Duration::from_millis(ttl.parse()?), tasks.parse()?);
    // That of ZooKeeper's client is a path.
    let key = &if lock == "zookeeper-client" { format!("/{key}") } else { key.clone() };
    let job = Job { key, tasks, file };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match lock.as_str() {
            "ours" => job.obey(vec![Ours::connect(place).await?.ttl(ttl); tasks]).await,
            "zookeeper-client" => job.obey(vec![CrateLock::connect(place, ttl, key).await?; tasks]).await,
            "etcd-lock" => {
                let server = ServerLock::connect(place).await?;
                job.obey(each(tasks, async || server.leased(ttl).await).await?).await
            }
            // A session of the server is a holder, so that each task has its own.
            "pg-advisory" => job.obey(each(tasks, async || Advisory::open(place).await).await?).await,
            "sqlx-advisory" => job.obey(each(tasks, async || Sqlx::open(place, key).await).await?).await,
            "get-lock" => job.obey(each(tasks, async || GetLock::open(place).await).await?).await,
            other => job.obey(vec![OnRedis::named(other, place).await?; tasks]).await,
        }
    })
}

async fn each<R>(tasks: usize, open: impl AsyncFn() -> Answer<R>) -> Answer<Vec<R>> {
    let mut all = Vec::new();
    for _ in 0..tasks {
        all.push(open().await?);
    }
    Ok(all)
}

struct Job<'a> {
    key: &'a str,
    tasks: usize,
    file: Arc<File>,
}

/// One guard.
struct Round {
    asked: u64,
    had: u64,
    gave: u64,
}

impl Job<'_> {
    async fn obey<R: Rival>(&self, mut rivals: Vec<R>) -> Answer<()> {
        answer("ready")?;
        let mut kept = Vec::new();
        while let Some(line) = heard().await? {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["fight", until] => self.fight(&rivals, Moment::from_nanos(until.parse()?)).await?,
                [word @ ("hold" | "take")] => {
                    let first = rivals.first_mut().ok_or("there is no task")?;
                    kept.push(first.take(self.key).await?);
                    let had = format!("had {}", Clock::boot().now().as_nanos());
                    answer(if word == "hold" { "held" } else { &had })?;
                }
                _ => return Err(format!("{line:?} is not understood").into()),
            }
        }
        // Whoever holds need not say good-bye.
        std::process::exit(0);
    }

    async fn fight<R: Rival>(&self, rivals: &[R], until: Moment) -> Answer<()> {
        let tasks = rivals.iter().take(self.tasks).map(|rival| {
            let (rival, key, file) = (rival.clone(), self.key.to_owned(), self.file.clone());
            tokio::spawn(alone(rival, key, file, until))
        });
        let (mut text, mut count, mut refused) = (String::new(), 0, 0);
        for (task, done) in join_all(tasks).await.into_iter().enumerate() {
            let (rounds, error) = done?;
            if let Some(error) = error {
                say(&format!("refused: {error}"));
                refused += 1;
            }
            count += rounds.len();
            for Round { asked, had, gave } in rounds {
                write!(text, "\n{task} {asked} {had} {gave}")?;
            }
        }
        answer(&format!("{count} {refused}{text}"))
    }
}

/// One task, to the end or to the first refusal.
async fn alone<R: Rival>(
    mut rival: R,
    key: String,
    file: Arc<File>,
    until: Moment,
) -> (Vec<Round>, Option<String>) {
    let (clock, mut rounds) = (Clock::boot(), Vec::new());
    loop {
        let asked = clock.now();
        if until <= asked {
            return (rounds, None);
        }
        let round = async {
            let taken = rival.take(&key).await?;
            let had = clock.now();
            add_one(&file)?;
            let gave = clock.now();
            rounds.push(Round { asked: asked.as_nanos(), had: had.as_nanos(), gave: gave.as_nanos() });
            rival.give_back(taken).await
        };
        if let Err(error) = round.await {
            return (rounds, Some(error.to_string()));
        }
    }
}

/// Read and written apart, so that two holders at once lose an update.
fn add_one(file: &File) -> Answer<()> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)?)
}

/// The lock of a session of MySQL or MariaDB. For one task.
#[derive(Clone)]
struct GetLock(Arc<tokio::sync::Mutex<mysql_async::Conn>>);

impl GetLock {
    async fn open(url: &str) -> Answer<Self> {
        let conn = mysql_async::Conn::new(mysql_async::Opts::from_url(url)?).await?;
        Ok(GetLock(Arc::new(tokio::sync::Mutex::new(conn))))
    }

    async fn ask(&self, statement: &str, key: &str) -> Answer<()> {
        let said: Option<Option<i64>> = self.0.lock().await.exec_first(statement, (key,)).await?;
        if said == Some(Some(1)) { Ok(()) } else { Err(format!("{statement} says {said:?}").into()) }
    }
}

impl Rival for GetLock {
    type Taken = String;

    async fn take(&mut self, key: &str) -> Answer<String> {
        self.ask("SELECT GET_LOCK(?, 600)", key).await?;
        Ok(key.to_owned())
    }

    async fn give_back(&mut self, key: String) -> Answer<()> {
        self.ask("SELECT RELEASE_LOCK(?)", &key).await
    }
}
