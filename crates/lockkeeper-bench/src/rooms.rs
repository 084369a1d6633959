//! Rooms: readers and writers, permits, several locks, barriers, latches, elections, over real processes.
//!
//! `scale=N` on the command line does an N-th of the work, `part=crowd` only the crowds of readers, `part=first` only one of them
//! for each store, and `part=writer` only the writer among readers.

mod child;
mod crew;
mod crowd;

use std::future::IntoFuture as _;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkeeper::Locker;
use lockkeeper_core::{Clock, SharedGuard};
use lockkeeper_servers::{Redis, RedisOptions};
use lockkeeper_testkit::barriers::Storm;

use self::crew::Crew;
use crate::measure::{median, per, rate};
use crate::redis::tally;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};
pub(crate) use child::{CHILD, work};

static SCALE: OnceLock<u64> = OnceLock::new();

/// What to leave out.
static PART: OnceLock<String> = OnceLock::new();

/// Do only so much of the work. `false` if the word means something else.
pub(crate) fn scaled(word: &str) -> bool {
    if let Some(part) = word.strip_prefix("part=") {
        return PART.set(part.to_owned()).is_ok();
    }
    let scale = word.strip_prefix("scale=").and_then(|it| it.parse::<u64>().ok());
    scale.is_some_and(|it| SCALE.set(it.max(1)).is_ok())
}

/// So much of the work, where less was asked for.
pub(crate) fn scale(count: u64) -> u64 {
    (count / SCALE.get().copied().unwrap_or(1)).max(1)
}

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let part = PART.get().map(String::as_str);
    runtime.block_on(async {
        let mut rows = Vec::new();
        if part.is_none_or(|it| it == "writer") {
            let server = Redis::start(RedisOptions::default()).await?;
            rows.extend(writers_among_readers(&server.url()).await?);
        }
        if part.is_none() {
            rows.extend(on_redis().await?);
        }
        if part.is_none_or(|it| it == "crowd" || it == "first") {
            rows.extend(crowd::readers(part == Some("first")).await?);
        }
        Ok(rows)
    })
}

async fn on_redis() -> Outcome {
    let server = Redis::start(RedisOptions::default()).await?;
    let url = server.url();
    let mut rows = readers(&server, &url).await?;
    rows.push(permits(&url)?);
    rows.push(permits_together(&url).await?);
    rows.push(triples(&url)?);
    rows.push(three_at_once(&server, &url).await?);
    rows.push(barriers(&url)?);
    rows.push(latch(&url).await?);
    rows.extend(elections(&url)?);
    rows.push(vacancies_seen(&url).await?);
    Ok(rows)
}

/// Many readers of one key.
async fn readers(server: &Redis, url: &str) -> Outcome {
    let span = Duration::from_millis(scale(3000));
    let mut crew = Crew::start(4, &["read", url, "64", &span.as_millis().to_string()])?;
    tally::reset(server).await?;
    crew.go()?;
    let reads: u64 = crew.numbers()?.iter().sum();
    let commands = tally::sent(server, "ours").await?;
    Ok(vec![
        Row {
            what: "4 processes × 64 readers of one Redis key: reads per second in all, beside a million",
            ours: format!("{:.0}/s", rate(reads, span)),
            theirs: "1000000/s".to_owned(),
            ratio: rate(reads, span) / 1e6,
            bound: Bound::AtLeast(1.0),
            note: String::new(),
        },
        Row::of_number("the same: commands per read", per(commands, reads), Bound::AtMost(0.01)),
    ])
}

/// A writer while readers never cease: those of other processes, and those of its own as well.
async fn writers_among_readers(url: &str) -> Outcome {
    let what = "a writer among endless readers (4 processes × 8, 20 ms each): its longest wait, beside the longest read + 100 ms + 2 trips";
    let among_its_own = "the same, where the writer's own process is one of them";
    Ok(vec![
        writer_among_readers(what, url, false).await?,
        writer_among_readers(among_its_own, url, true).await?,
    ])
}

async fn writer_among_readers(what: &'static str, url: &str, reads_itself: bool) -> Answer<Row> {
    let (clock, locker) = (Clock::boot(), lockkeeper::connect(url).await?);
    let trip = trip(&locker).await?.as_secs_f64() * 1000.0;
    let span = Duration::from_millis(scale(10_000).max(2_000));
    let others = if reads_itself { 3 } else { 4 };
    let mut crew = Crew::start(others, &["read-long", url, "8", &span.as_millis().to_string()])?;
    crew.go()?;
    let (reading, millis) = (locker.clone(), u64::try_from(span.as_millis())?);
    let own = reads_itself.then(|| tokio::spawn(async move { child::read_long(&reading, 8, millis).await }));
    clock.sleep(Duration::from_millis(300)).await;
    let (mut waits, until) = (Vec::new(), clock.now().after(span.saturating_sub(Duration::from_millis(600))));
    while clock.now() < until {
        let asked = clock.now();
        let guard = locker.write("long").await?;
        waits.push((clock.now() - asked).as_secs_f64() * 1000.0);
        guard.release().await?;
        clock.sleep(Duration::from_millis(50)).await;
    }
    // Each process tells its longest read, which a timer and two busy cores make longer than the 20 ms that were asked for.
    let own = match own {
        Some(own) => own.await??,
        None => 0,
    };
    let read = per(crew.numbers()?.into_iter().max().unwrap_or(0).max(own), 1_000_000);
    if waits.is_empty() {
        return Err("nobody wrote among the readers".into());
    }
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let bound = read + 100.0 + 2.0 * trip;
    Ok(Row {
        what,
        ours: format!("{longest:.1} ms"),
        theirs: format!("{bound:.1} ms"),
        ratio: longest / bound,
        bound: Bound::AtMost(1.0),
        note: format!(
            "{} writes, median {:.1} ms; the longest read {read:.1} ms, a trip {trip:.2} ms",
            waits.len(),
            median(&mut waits)
        ),
    })
}

/// How long it takes to ask the store: the time of a free lock, of which taking is one trip and giving back another.
async fn trip(locker: &Locker) -> Answer<Duration> {
    let free = async || Ok(locker.lock("free").await?.release().await?);
    Ok(crate::measure::beside_requests(free, free).await?.0 / 2)
}

/// Permits of one name for tasks that ask at once, beside the same permits one after the other.
async fn permits_together(url: &str) -> Answer<Row> {
    const TASKS: u32 = 16;
    let locker = lockkeeper::connect(url).await?;
    let ask = || locker.permits("together", 1, TASKS);
    let together = async || {
        let guards = try_join_all((0..TASKS).map(|_| ask().into_future())).await?;
        try_join_all(guards.into_iter().map(SharedGuard::release)).await?;
        Ok(())
    };
    let in_turn = async || {
        let mut guards = Vec::new();
        for _ in 0..TASKS {
            guards.push(ask().await?);
        }
        for guard in guards {
            guard.release().await?;
        }
        Ok(())
    };
    let times = crate::measure::beside_requests(together, in_turn).await?;
    let row = Row::of_times(
        "Redis: 16 tasks of one process ask for a permit each and give it back, at once beside one after the other",
        times,
        0.7,
    );
    Ok(Row { note: "in pipelined trips; the server's own time is the same".to_owned(), ..row })
}

fn permits(url: &str) -> Answer<Row> {
    let count = scale(10_000);
    let mut crew = Crew::start(2, &["permits", url, &count.to_string()])?;
    crew.go()?;
    let done: u64 = crew.numbers()?.iter().sum();
    Ok(counted("two processes × 10,000 of `permits(2 of 2)`: done", done, count * 2))
}

fn triples(url: &str) -> Answer<Row> {
    let (folder, count) = (tempfile::tempdir()?, scale(100_000) / 8);
    let path = folder.path().join("accounts");
    child::make_accounts(&path)?;
    let clock = Clock::boot();
    let mut crew = Crew::start(8, &["triples", url, &count.to_string(), &path.display().to_string()])?;
    let begun = clock.now();
    crew.go()?;
    let done: u64 = crew.numbers()?.iter().sum();
    let span = clock.now() - begun;
    let row = exactly(
        "100,000 `lock_all` of three among 16 names in 8 processes: the sum of what they guard",
        child::sum_of_accounts(&path)?,
        done * 3,
    );
    Ok(Row { note: format!("{:.0} of them per second", rate(done, span)), ..row })
}

/// Three free keys cost one trip: the time of one.
async fn three_at_once(server: &Redis, url: &str) -> Answer<Row> {
    let locker = lockkeeper::connect(url).await?;
    let one = async || Ok(locker.lock("free/1").await?.release().await?);
    let three = async || Ok(locker.lock_all(["free/1", "free/2", "free/3"]).await?.release().await?);
    one().await?;
    let times = crate::measure::beside_requests(three, one).await?;
    tally::reset(server).await?;
    let guard = locker.lock_all(["free/1", "free/2", "free/3"]).await?;
    let commands = tally::sent(server, "ours").await?;
    guard.release().await?;
    let row = Row::of_times("Redis: `lock_all` of 3 free keys and its release, beside one key", times, 1.8);
    Ok(Row { note: format!("{commands} commands to take three, sent together"), ..row })
}

fn barriers(url: &str) -> Answer<Row> {
    let rounds = usize::try_from(scale(10_000))?;
    let storm = Storm { parties: 4, barriers: 16, rounds, kills: (rounds / 500).max(2) };
    let program = std::env::current_exe()?;
    let seen = storm.run(|party| {
        let mut command = Command::new(&program);
        command.args([CHILD, "party", url, party, &storm.barriers.to_string()]);
        command
    })?;
    let ended = u64::try_from(seen.opened + seen.broken)?;
    // Verdicts that differ end the run.
    let row = counted("barrier rounds with kills and timeouts, each with one verdict", ended, scale(10_000));
    Ok(Row {
        note: format!("{} opened, {} broken, {} by the dead", seen.opened, seen.broken, seen.died),
        ..row
    })
}

async fn latch(url: &str) -> Answer<Row> {
    let parties = scale(100);
    let mut crew = Crew::start(3, &["arrive", url, &parties.to_string()])?;
    crew.go()?;
    crew.numbers()?;
    let locker = lockkeeper::connect(url).await?;
    let arrived = locker.latch("latch", u32::try_from(parties)?).wait().await?.arrived.len();
    Ok(exactly(
        "latch: 100 arrivals, each sent by three processes: counted",
        u64::try_from(arrived)?,
        parties,
    ))
}

fn elections(url: &str) -> Outcome {
    let (folder, terms) = (tempfile::tempdir()?, scale(200));
    let path = folder.path().join("terms");
    let reigns = |role: &str| -> Answer<(u64, Vec<f64>)> {
        std::fs::write(&path, "")?;
        let mut crew = Crew::start(3, &[role, url, &terms.to_string(), &path.display().to_string()])?;
        crew.go()?;
        let overlaps = crew.numbers()?.iter().sum();
        Ok((overlaps, child::vacancies(&path)?))
    };
    let ((overlaps, mut spans), (_, mut hand_offs)) = (reigns("lead")?, reigns("hand")?);
    let led = u64::try_from(spans.len())?;
    let (span, hand_off) = (median(&mut spans), median(&mut hand_offs));
    Ok(vec![
        counted("election: 3 processes × 200 terms, none beside another", led, terms * 3),
        Row::of_number("the same: terms that overlapped", per(overlaps, 1), Bound::AtMost(0.0)),
        Row {
            what: "the same: from before one resigns until the next has the role, beside a hand-off of a lock among as many",
            ours: format!("{span:.2} ms"),
            theirs: format!("{hand_off:.2} ms"),
            ratio: span / hand_off,
            bound: Bound::AtMost(1.2),
            note: "medians; the one removes what it said and the next says who it is, beside that".to_owned(),
        },
    ])
}

/// An observer sees that nobody leads, although the next one does soon.
async fn vacancies_seen(url: &str) -> Answer<Row> {
    /// Many trips, and less than anybody's patience.
    const VACANT: Duration = Duration::from_millis(5);
    let (terms, clock) = (scale(500), Clock::boot());
    let (locker, observer) = (lockkeeper::connect(url).await?, lockkeeper::connect(url).await?);
    let mut leaders = observer.leaders("vacant")?;
    let (tell, mut seen) = tokio::sync::watch::channel((0_u64, 0_u64));
    let watching = tokio::spawn(async move {
        while let Ok(leader) = leaders.next().await {
            tell.send_modify(|(led, vacant)| if leader.is_some() { *led += 1 } else { *vacant += 1 });
        }
    });
    seen.wait_for(|it| it.1 == 1).await?;
    for term in 1..=terms {
        let leadership = locker.campaign("vacant", "value").win().await?;
        seen.wait_for(|it| term <= it.0).await?;
        leadership.resign().await?;
        clock.sleep(VACANT).await;
    }
    clock.sleep(Duration::from_millis(200)).await;
    watching.abort();
    // The first was there before anybody led.
    let vacant = seen.borrow().1 - 1;
    Ok(exactly("election: vacancies of 5 ms that an observer saw", vacant, terms))
}

/// A count that may be neither smaller nor larger.
fn exactly(what: &'static str, ours: u64, wanted: u64) -> Row {
    Row { bound: Bound::Near(1.0, 0.0), ..counted(what, ours, wanted) }
}

fn counted(what: &'static str, ours: u64, wanted: u64) -> Row {
    let (ratio, bound) = (per(ours, wanted), Bound::AtLeast(1.0));
    Row { what, ours: ours.to_string(), theirs: wanted.to_string(), ratio, bound, note: String::new() }
}
