//! A process of a crowd, which does what the lines of its input say.
//!
//! ```text
//! RIVAL URL KEY TTL TASKS FILE   its arguments, and then which it is of how many; it answers `ready`
//! fight UNTIL ROUNDS             every task takes and gives back the lock, until a moment or for so many rounds; it
//!                                answers `COUNT REFUSED` and, for each guard, `ASKED HAD GAVE`
//! wait                           every task stands in line; it answers `waiting`, and goes with its input
//! ping …, relay …                bare messages between processes, on Redis: `redis/trips.rs`
//! ```
//! The ttl, which is ours alone, is in milliseconds; times are nanoseconds of the clock that all processes share.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};

use super::shared::Shared;
use super::{Limit, Party, fight};
use crate::Answer;
use crate::coord::ServerLock;
use crate::redis::{OnRedis, trips};
use crate::ring::{MariaDbRing, Member, PostgresRing, RedisRing, SqliteRing};
use crate::rival::{Ours, Rival};
use crate::sql::{Advisory, Named};

/// The word that makes this program a worker.
pub(crate) const WORKER: &str = "worker";

/// What one process of a crowd does.
pub(crate) fn work(arguments: &[String]) -> Answer<()> {
    let [rival, url, key, ttl, tasks, path, at, count] = arguments else {
        return Err("usage: RIVAL URL KEY TTL TASKS FILE AT COUNT".into());
    };
    let member = Member { at: at.parse()?, count: count.parse()? };
    let ttl = Duration::from_millis(ttl.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let job = Job { url, key, tasks: tasks.parse()?, shared: Shared::file(Path::new(path))? };
    runtime.block_on(async {
        match rival.as_str() {
            "ours" => job.obey(&Ours::connect(url).await?.ttl(ttl)).await,
            "etcd-lock" => job.obey(&ServerLock::open(url).await?).await,
            "advisory" => job.obey(&Advisory::open(url).await?).await,
            "named" => job.obey(&Named::open(url).await?).await,
            "redis-ring" => job.obey(&RedisRing::open(url, key, member)?).await,
            "sqlite-ring" => job.obey(&SqliteRing::open(url, key, member)?).await,
            "postgres-ring" => job.obey(&PostgresRing::open(url, key, member).await?).await,
            "mariadb-ring" => job.obey(&MariaDbRing::open(url, key, member).await?).await,
            other => job.obey(&OnRedis::named(other, url).await?).await,
        }
    })
}

struct Job<'a> {
    url: &'a str,
    key: &'a str,
    tasks: usize,
    shared: Shared,
}

impl Job<'_> {
    async fn obey<R: Rival>(&self, rival: &R) -> Answer<()> {
        answer("ready")?;
        while let Some(line) = heard().await? {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["fight", until, rounds] => {
                    let until = Moment::from_nanos(until.parse()?);
                    let limit = Limit { until, rounds: rounds.parse()? };
                    tell(&fight(rival, self.tasks, self.key, limit, &self.shared).await?)?;
                }
                ["wait"] => self.wait(rival).await?,
                ["hold"] => {
                    // Until this process is killed.
                    std::mem::forget(rival.clone().take(self.key).await?);
                    answer("held")?;
                }
                ["ping" | "relay", ..] => trips::obey(self.url, &words).await?,
                _ => return Err(format!("{line:?} is not understood").into()),
            }
        }
        // Whoever stands in line need not say good-bye.
        std::process::exit(0);
    }

    async fn wait<R: Rival>(&self, rival: &R) -> Answer<()> {
        for _ in 0..self.tasks {
            let (mut rival, key) = (rival.clone(), self.key.to_owned());
            tokio::spawn(async move { drop(rival.take(&key).await) });
        }
        // Until the first has reached the server and the listener listens.
        Clock::boot().sleep(Duration::from_secs(1)).await;
        answer("waiting")
    }
}

/// The next line of our input, if the parent still lives.
pub(crate) async fn heard() -> Answer<Option<String>> {
    Ok(tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?.transpose()?)
}

pub(crate) fn answer(text: &str) -> Answer<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn tell(party: &Party) -> Answer<()> {
    let mut text = format!("{} {}", party.rounds.len(), party.refused);
    for it in &party.rounds {
        write!(text, "\n{} {} {}", it.asked, it.had, it.gave)?;
    }
    answer(&text)
}
