//! Forced writes, counted at the servers and, of a log in a file, at the kernel: never more than the formula says.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use lockkeeper::twophase::Office;
use lockkeeper_core::Clock;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::Client;

use super::{Site, both, client, conn, flushes, setup};
use crate::measure::per;
use crate::report::{Bound, Row};
use crate::{Answer, Outcome};

/// The first word of the command line of the one whose file is watched.
pub(crate) const CHILD: &str = "twophase-forces";

/// Transactions of which forced writes are counted.
const COUNTED: u64 = 400;
/// What SQLite forces at each checkpoint: the log that it empties, the file, and the head of the next log.
const CHECKPOINT: u64 = 3;
/// Files that are forced to mark a place in the trace.
const MARKS: [&str; 2] = ["begun.mark", "ended.mark"];

/// Forced writes at each server.
#[derive(Clone, Copy)]
struct Forced {
    orders: u64,
    stock: u64,
}

impl Forced {
    async fn so_far(site: &Site) -> Answer<Self> {
        let orders = flushes(&site.orders).await?;
        let there = site.stock.sql("SHOW GLOBAL STATUS LIKE 'Innodb_data_fsyncs'").await?;
        Ok(Forced { orders, stock: there.split_whitespace().last().unwrap_or_default().parse()? })
    }

    fn since(self, before: Self) -> Self {
        Forced { orders: self.orders - before.orders, stock: self.stock - before.stock }
    }

    /// As much as this in a span that is so many times as long.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a few hundred writes"
    )]
    fn over(self, times: f64) -> Self {
        let more = |it: u64| (it as f64 * times).round() as u64;
        Forced { orders: more(self.orders), stock: more(self.stock) }
    }

    fn all(self) -> u64 {
        self.orders + self.stock
    }
}

/// Forced writes in a span, with the look at its end.
struct Span {
    forced: Forced,
    took: Duration,
}

impl Span {
    async fn of(site: &Site, work: impl AsyncFnOnce() -> Answer<()>) -> Answer<Self> {
        let before = Forced::so_far(site).await?;
        let clock = Clock::boot();
        let begun = clock.now();
        work().await?;
        let forced = Forced::so_far(site).await?.since(before);
        Ok(Span { forced, took: clock.now() - begun })
    }
}

/// The bound is the formula: at most so many. Less is better, and happens where a server forces several commits at once.
///
/// Servers force of themselves, too: checkpoints, cleaning. What they force beside as many plain commits, one after the other,
/// which force one write each, is measured in the same run, and taken off in proportion of the spans. All figures stand in the
/// note for each server, so that the cause of what is over can be seen.
pub(super) async fn rows(site: &Site) -> Outcome {
    let beside = beside_plain_commits(site).await?;
    let mut rows = vec![of_a_file(site, &beside).await?];
    for (what, log, single, wanted) in [
        ("forced writes of 2 branches, the log in a database of its own (2n + 1)", site.beside(), false, 5.0),
        ("forced writes of 2 branches, the log with a participant (2n − 1)", site.orders.url(), false, 3.0),
        ("forced writes of one writer (n)", site.beside(), true, 1.0),
    ] {
        let office = site.office(&log).await?;
        let span = Span::of(site, async || work_of(&office, single).await).await?;
        rows.push(row(what, &span, &beside, wanted, None));
    }
    Ok(rows)
}

async fn work_of(office: &Office, single: bool) -> Answer<()> {
    for n in 0..COUNTED {
        let tag = format!("{}-{single}-{n}", office.fence());
        if single { one(office, &tag).await? } else { both(office, &tag).await? }
    }
    Ok(())
}

async fn one(office: &Office, tag: &str) -> Answer<()> {
    let sql = format!("INSERT INTO move VALUES ('{tag}')");
    let work = office.transaction().within(Duration::from_mins(1));
    work.on("orders", async move |db: &Client| Ok(db.batch_execute(&sql).await?)).commit().await?;
    Ok(())
}

/// What the servers force of themselves while they commit.
async fn beside_plain_commits(site: &Site) -> Answer<Span> {
    let (orders, mut stock) = (client(site).await?, conn(site).await?);
    let span = Span::of(site, async || {
        for n in 0..COUNTED {
            let sql = format!("INSERT INTO move VALUES ('plain-{n}')");
            orders.batch_execute(&sql).await?;
            stock.query_drop(&sql).await?;
        }
        Ok(())
    })
    .await?;
    stock.disconnect().await?;
    let Forced { orders, stock } = span.forced;
    for (whose, forced) in [("PostgreSQL", orders), ("MariaDB", stock)] {
        // Else what is ours cannot be told from what is theirs.
        if !(COUNTED..COUNTED + COUNTED / 5).contains(&forced) {
            let text =
                format!("{whose} tells of {forced} forced writes of {COUNTED} plain commits; is it busy?");
            return Err(text.into());
        }
    }
    let forced = Forced { orders: orders - COUNTED, stock: stock - COUNTED };
    Ok(Span { forced, ..span })
}

/// What a file was forced, and how often of that for its checkpoints.
#[derive(Clone, Copy)]
struct File {
    all: u64,
    checkpoints: u64,
}

fn row(what: &'static str, span: &Span, beside: &Span, wanted: f64, file: Option<File>) -> Row {
    let off = beside.forced.over(span.took.as_secs_f64() / beside.took.as_secs_f64());
    let of_file = file.map_or(0, |it| it.all.saturating_sub(it.checkpoints * CHECKPOINT));
    let found = per(span.forced.all().saturating_sub(off.all()) + of_file, COUNTED);
    let row = Row::of_number(what, found, Bound::AtMost(wanted));
    let checkpoints = file.map_or_else(String::new, |File { all, checkpoints }| {
        format!("; the file {all}, of which {} for {checkpoints} checkpoints", checkpoints * CHECKPOINT)
    });
    let note = format!(
        "PostgreSQL {}, MariaDB {} for {COUNTED} transactions in {:.0?}; taken off {} and {}, because beside as many plain commits \
         they forced {} and {} in {:.0?}{checkpoints}",
        span.forced.orders,
        span.forced.stock,
        span.took,
        off.orders,
        off.stock,
        beside.forced.orders,
        beside.forced.stock,
        beside.took
    );
    Row { theirs: format!("{wanted}"), note, ..row }
}

/// The log in an SQLite file, by a process whose system calls are traced.
async fn of_a_file(site: &Site, beside: &Span) -> Answer<Row> {
    let what = "forced writes of 2 branches, the log in an SQLite file (2n + 1)";
    let folder = site.folder.path().join("forced");
    std::fs::create_dir(&folder)?;
    let trace = folder.join("trace");
    let mut traced = Traced::start(site, &folder, &trace)?;
    let span = Span::of(site, async || traced.go_on()).await?;
    traced.end()?;
    Ok(row(what, &span, beside, 5.0, Some(counted(&std::fs::read_to_string(&trace)?)?)))
}

/// What was forced of the log between the marks.
fn counted(trace: &str) -> Answer<File> {
    let [begun, ended] = MARKS.map(|mark| trace.lines().position(|it| it.contains(mark)));
    let (Some(begun), Some(ended)) = (begun, ended) else {
        return Err("the trace has no marks; is strace allowed to trace?".into());
    };
    let forced = |end: &str| {
        let lines = trace.lines().skip(begun).take(ended.saturating_sub(begun));
        let count = lines.filter(|it| it.contains(end) && !it.contains("resumed")).count();
        u64::try_from(count).unwrap_or(u64::MAX)
    };
    let (log, file) = (forced("2pc.db-wal>"), forced("2pc.db>"));
    Ok(File { all: log + file, checkpoints: file })
}

/// The process that works, under strace.
struct Traced {
    child: Child,
    told: std::io::Lines<BufReader<std::process::ChildStdout>>,
    orders: ChildStdin,
}

impl Traced {
    fn start(site: &Site, folder: &Path, trace: &Path) -> Answer<Self> {
        let words = [CHILD, &folder.display().to_string(), &site.orders.url(), &site.stock.url()];
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-y", "-e", "trace=fsync,fdatasync", "-o"]).arg(trace);
        command.arg(std::env::current_exe()?).args(words);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            started.map_err(|it| format!("strace, which counts what a file is forced: {it}; install it"))?;
        let (told, orders) = (child.stdout.take(), child.stdin.take());
        let told = BufReader::new(told.ok_or("the traced one has no voice")?).lines();
        let mut traced = Traced { child, told, orders: orders.ok_or("the traced one hears nothing")? };
        traced.hear("ready")?;
        Ok(traced)
    }

    fn hear(&mut self, word: &str) -> Answer<()> {
        match self.told.next() {
            Some(Ok(it)) if it == word => Ok(()),
            other => Err(format!("the traced one was to say {word:?}, and said {other:?}").into()),
        }
    }

    /// Let it work, and wait until it has.
    fn go_on(&mut self) -> Answer<()> {
        writeln!(self.orders, "go")?;
        self.hear("done")
    }

    fn end(mut self) -> Answer<()> {
        drop(self.orders);
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the traced one ended with {status}").into()) }
    }
}

fn mark(folder: &str, name: &str) -> Answer<()> {
    Ok(std::fs::File::create(Path::new(folder).join(name))?.sync_all()?)
}

/// The one that is traced.
pub(super) fn work(words: &[String]) -> Answer<()> {
    let [folder, orders, stock] = words else { return Err("three words".into()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (locks, log) = (format!("sqlite:{folder}/locks.db"), format!("sqlite:{folder}/2pc.db"));
        let office = setup(&locks, &log, orders, stock).await?.start().await?;
        let (mut out, mut heard) = (std::io::stdout(), String::new());
        writeln!(out, "ready")?;
        std::io::stdin().read_line(&mut heard)?;
        mark(folder, MARKS[0])?;
        work_of(&office, false).await?;
        mark(folder, MARKS[1])?;
        writeln!(out, "done")?;
        // Until the counts are taken: its end writes, too.
        std::io::stdin().read_line(&mut heard)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forced_between_the_marks_is_counted_and_checkpoints_are_told_apart() {
        let trace = "\
            7 fdatasync(3</x/forced/2pc.db-wal>) = 0\n\
            7 fsync(6</x/forced/begun.mark>)    = 0\n\
            8 fdatasync(3</x/forced/2pc.db-wal> <unfinished ...>\n\
            7 fdatasync(9</x/forced/locks.db-wal>) = 0\n\
            8 <... fdatasync resumed>)          = 0\n\
            8 fdatasync(3</x/forced/2pc.db-wal>) = 0\n\
            8 fdatasync(4</x/forced/2pc.db>)    = 0\n\
            7 fsync(6</x/forced/ended.mark>)    = 0\n\
            8 fdatasync(4</x/forced/2pc.db>)    = 0\n";
        let found = counted(trace).unwrap_or(File { all: 0, checkpoints: 0 });
        assert_eq!((found.all, found.checkpoints), (3, 1));
        assert!(counted("7 fdatasync(3</x/forced/2pc.db-wal>) = 0").is_err(), "nobody has marked anything");
    }
}
