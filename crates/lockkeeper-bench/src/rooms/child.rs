//! What a process of the rooms does.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::Locker;
use lockkeeper_core::observe::{Event, Observer};
use lockkeeper_core::{Clock, Guard, Leadership};
use lockkeeper_testkit::barriers::wait_for_ever;
use lockkeeper_testkit::chance::Chance;

use crate::Answer;

/// The word that makes this program such a process.
pub(crate) const CHILD: &str = "room";

const ACCOUNTS: u64 = 16;
const READ: Duration = Duration::from_millis(20);

/// `ROLE URL …`: says `ready`, begins when it is told to, and answers a number.
pub(crate) fn work(words: &[String]) -> Answer<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let [role, url, rest @ ..] = &words[..] else { return Err("usage: ROLE URL …".into()) };
        if *role == "bare" {
            return bare();
        }
        let locker = lockkeeper::connect(url).await?;
        if let ("party", [party, barriers]) = (*role, rest) {
            wait_for_ever(locker, party, barriers.parse()?, Duration::from_secs(1)).await;
            return Ok(());
        }
        // Connected before it counts.
        locker.read("warm-up").await?.release().await?;
        say("ready")?;
        if *role == "crowd" {
            return crowd(&locker).await;
        }
        hear()?;
        let number = match (*role, rest) {
            ("read", [tasks, span]) => read(&locker, tasks.parse()?, span.parse()?, "prices", None).await?,
            ("read-long", [tasks, span]) => read_long(&locker, tasks.parse()?, span.parse()?).await?,
            ("permits", [count]) => permits(&locker, count.parse()?).await?,
            ("triples", [count, path]) => triples(&locker, count.parse()?, Path::new(path)).await?,
            ("arrive", [parties]) => arrive(&locker, parties.parse()?).await?,
            ("lead" | "hand", [terms, path]) => {
                lead(url, *role == "lead", terms.parse()?, Path::new(path)).await?
            }
            other => return Err(format!("{other:?} is not understood").into()),
        };
        say(&number.to_string())?;
        std::process::exit(0);
    })
}

fn say(text: &str) -> Answer<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// The next line of whoever started us; `None` at its end.
fn hear() -> Answer<Option<String>> {
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line)?;
    Ok((count != 0).then(|| line.trim().to_owned()))
}

/// Do as we are told: `read NAME`, told when we are in; `write NAME`, told when we were in and when we gave it back. What is
/// read is kept until the next line, so that entering is all that anybody does meanwhile.
async fn crowd(locker: &Locker) -> Answer<()> {
    let clock = Clock::boot();
    while let Some(line) = hear()? {
        match line.split_once(' ') {
            Some(("read", name)) => {
                let guard = locker.read(name).await?;
                say(&clock.now().as_nanos().to_string())?;
                hear()?;
                guard.release().await?;
                say("0")?;
            }
            Some(("write", name)) => {
                let guard = locker.write(name).await?;
                let had = clock.now().as_nanos();
                let gave = clock.now().as_nanos();
                guard.release().await?;
                say(&had.to_string())?;
                hear()?;
                say(&gave.to_string())?;
            }
            _ => return Err(format!("{line:?} is not understood").into()),
        }
    }
    Ok(())
}

/// Nothing but being woken: a line, and when it came.
fn bare() -> Answer<()> {
    let clock = Clock::boot();
    say("ready")?;
    while hear()?.is_some() {
        let woken = clock.now().as_nanos();
        say(&woken.to_string())?;
    }
    Ok(())
}

/// So many tasks read what is written, and take their time. Answers how long the longest read took.
pub(super) async fn read_long(locker: &Locker, tasks: u64, span: u64) -> Answer<u64> {
    read(locker, tasks, span, "long", Some(READ)).await
}

/// So many tasks read, again and again, for so many milliseconds. Answers how often, or how long the longest read took if
/// one takes time.
async fn read(
    locker: &Locker,
    tasks: u64,
    span: u64,
    name: &'static str,
    held: Option<Duration>,
) -> Answer<u64> {
    let until = Clock::boot().now().after(Duration::from_millis(span));
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let locker = locker.clone();
            tokio::spawn(async move {
                let (clock, mut reads, mut longest) = (Clock::boot(), 0, 0);
                while clock.now() < until {
                    let guard = locker.read(name).await?;
                    if let Some(held) = held {
                        let begun = clock.now();
                        clock.sleep(held).await;
                        longest = longest.max(clock.now().as_nanos() - begun.as_nanos());
                    } else if reads % 16 == 0 {
                        // Others of this process have their turn while it reads.
                        tokio::task::yield_now().await;
                    }
                    drop(guard);
                    reads += 1;
                }
                Ok::<(u64, u64), lockkeeper::Error>((reads, longest))
            })
        })
        .collect();
    let (mut all, mut longest) = (0, 0);
    for task in tasks {
        let (reads, span) = task.await??;
        (all, longest) = (all + reads, longest.max(span));
    }
    Ok(if held.is_some() { longest } else { all })
}

async fn permits(locker: &Locker, count: u64) -> Answer<u64> {
    for _ in 0..count {
        locker.permits("pair", 2, 2).await?.release().await?;
    }
    Ok(count)
}

pub(super) fn make_accounts(path: &Path) -> Answer<()> {
    let nothing: Vec<u8> = (0..ACCOUNTS).flat_map(|_| 0_u64.to_le_bytes()).collect();
    Ok(std::fs::write(path, nothing)?)
}

fn account(file: &File, at: u64) -> Answer<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at * 8)?;
    Ok(u64::from_le_bytes(bytes))
}

pub(super) fn sum_of_accounts(path: &Path) -> Answer<u64> {
    let file = File::open(path)?;
    (0..ACCOUNTS).map(|at| account(&file, at)).sum()
}

/// Read and write apart, so that two who are not kept apart lose something.
async fn triples(locker: &Locker, count: u64, path: &Path) -> Answer<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut chance = Chance::seeded(u64::from(std::process::id()));
    for _ in 0..count {
        let mut three: Vec<u64> = Vec::new();
        while three.len() < 3 {
            let at = chance.below(ACCOUNTS);
            if !three.contains(&at) {
                three.push(at);
            }
        }
        let guard = locker.lock_all(three.iter().map(|it| format!("account/{it}"))).await?;
        for at in three {
            let next = account(&file, at)? + 1;
            file.write_all_at(&next.to_le_bytes(), at * 8)?;
        }
        guard.release().await?;
    }
    Ok(count)
}

async fn arrive(locker: &Locker, parties: u32) -> Answer<u64> {
    for party in 0..parties {
        locker.latch("latch", parties).arrive(format!("party {party}")).await?;
    }
    Ok(u64::from(parties))
}

/// When the store last let this process in.
#[derive(Clone, Debug, Default)]
struct LetIn(Arc<AtomicU64>);

impl Observer for LetIn {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Granted { .. } = event {
            self.0.store(Clock::boot().now().as_nanos(), Ordering::Relaxed);
        }
    }
}

/// The role, or a plain lock that is kept as long.
enum Reign {
    Role(Leadership),
    Lock(Guard),
}

/// Lead so many terms, or hold a lock as often. Answers how often another did at the same time, as the file tells; each term
/// adds a line with the moments of its beginning and its end.
async fn lead(url: &str, elected: bool, terms: u64, path: &Path) -> Answer<u64> {
    let let_in = LetIn::default();
    let locker = lockkeeper::open(url).await?.locker.observer(let_in.clone()).build();
    let (clock, mut overlaps) = (Clock::boot(), 0);
    let reign = path.with_extension("reign");
    let campaign = locker.campaign("role", std::process::id().to_string());
    for _ in 0..terms {
        let role = if elected {
            Reign::Role(campaign.win().await?)
        } else {
            Reign::Lock(locker.lock("hand").await?)
        };
        let begun = let_in.0.load(Ordering::Relaxed);
        let alone = OpenOptions::new().write(true).create_new(true).open(&reign).is_ok();
        overlaps += u64::from(!alone);
        tokio::task::yield_now().await;
        if alone {
            std::fs::remove_file(&reign)?;
        }
        let line = format!("{begun} {}\n", clock.now().as_nanos());
        OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes())?;
        match role {
            Reign::Role(it) => it.resign().await?,
            Reign::Lock(it) => it.release().await?,
        }
    }
    Ok(overlaps)
}

/// From the end of each term to the beginning of the next, in milliseconds.
pub(super) fn vacancies(path: &Path) -> Answer<Vec<f64>> {
    let text = std::fs::read_to_string(path)?;
    let mut terms: Vec<(u64, u64)> = Vec::new();
    for line in text.lines() {
        let (begun, ended) = line.split_once(' ').ok_or("half a line")?;
        terms.push((begun.parse()?, ended.parse()?));
    }
    terms.sort_unstable();
    let mut last = terms.first().map_or(0, |it| it.0);
    let span = |it: &(u64, u64)| {
        let span = crate::measure::per(it.0.saturating_sub(last), 1_000_000);
        last = it.1;
        span
    };
    Ok(terms.iter().map(span).collect())
}
