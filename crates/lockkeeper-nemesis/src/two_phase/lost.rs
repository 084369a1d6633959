//! What a lost log costs: the textbook's last case, played by its own rule and by ours.

use std::path::Path;
use std::process::Stdio;

use lockkeeper::spi::Clock;
use lockkeeper::twophase::Fate;
use lockkeeper_torture::Trouble;
use tokio::process::Command;

use super::bank::{Bank, HANG, Servers};
use super::worker::Orders;

/// What came of so many rounds without a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Rounds in which the one that decides dies with one that has acted.
    pub rounds: u64,
    /// By the textbook's rule (ask the living, and suppose commit): rounds after which the databases differ.
    pub damaged: u64,
    /// Those of them of which `recover --without-log` tells that they are perhaps damaged, and who has committed.
    pub reported: u64,
    /// By ours (commit where somebody has committed, and touch nothing else): the same.
    pub damaged_by_us: u64,
    /// By ours: rounds that a person must decide.
    pub left: u64,
}

/// Half of the rounds on the way to a commit, half on the way back, and each once by either rule.
pub(super) async fn lose(servers: &Servers, program: &Path, rounds: u64) -> Result<Lost, Trouble> {
    let mut lost = Lost::default();
    for round in 0..rounds {
        let commits = round % 2 == 0;
        for textbook in [true, false] {
            let folder = tempfile::tempdir()?;
            let bank = servers.bank(folder.path());
            let number = 1_000_000 + 2 * round + u64::from(textbook);
            die(&bank, program, number, commits).await?;
            bank.lose_the_log()?;
            let split = if textbook {
                lost.rounds += 1;
                let log = log_of(&servers.stock.sql("XA RECOVER").await?)?;
                let split = by_the_textbook(servers, number).await?;
                lost.reported += u64::from(split && is_reported(&bank, &log).await?);
                split
            } else {
                by_ours(servers, &bank, number, &mut lost).await?
            };
            lost.damaged += u64::from(split && textbook);
            lost.damaged_by_us += u64::from(split && !textbook);
        }
    }
    Ok(lost)
}

/// A coordinator that dies when PostgreSQL has acted and MariaDB has not heard.
async fn die(bank: &Bank, program: &Path, number: u64, commits: bool) -> Result<(), Trouble> {
    let (die, hold) = if commits {
        ("Committed:orders", "Committing:stock")
    } else {
        ("RolledBack:orders", "RollingBack:stock")
    };
    let orders = Orders {
        number,
        seed: number,
        die: die.into(),
        hold: hold.into(),
        cancel: !commits,
        ..Orders::default()
    };
    let mut command = Command::new(program);
    command.args(orders.words(bank)).stdout(Stdio::null()).kill_on_drop(true);
    let status = command.status().await?;
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        return Ok(());
    }
    Err(format!("a coordinator was to die at {die}, and ended with {status}").into())
}

/// The name of the lost log, as a branch that is prepared tells it.
fn log_of(listed: &str) -> Result<String, Trouble> {
    let log = listed.split("lk1.").nth(1).and_then(|it| it.split('.').next());
    Ok(log.ok_or("MariaDB has not heard, and lists no branch")?.to_owned())
}

/// Whether a look without the log tells that MariaDB alone has committed. It does not as long as the dead hold their seat.
async fn is_reported(bank: &Bank, log: &str) -> Result<bool, Trouble> {
    let clock = Clock::boot();
    let until = clock.now().after(HANG);
    loop {
        let orphans = bank.setup().await?.recover_without_log(log, true).await?;
        let told = orphans.iter().any(|it| {
            let perhaps = matches!(&it.fate, Fate::Nothing(why) if why.contains("perhaps damaged"));
            perhaps && it.prepared.is_empty() && it.committed == ["stock"]
        });
        if told || until <= clock.now() {
            return Ok(told);
        }
        clock.sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// PostgreSQL, which has acted, is dead. Who lives has not aborted, so commit is supposed. Whether they differ then.
async fn by_the_textbook(servers: &Servers, number: u64) -> Result<bool, Trouble> {
    servers.orders.kill()?;
    for xid in xids(&servers.stock.sql("XA RECOVER").await?) {
        servers.stock.sql(&format!("XA COMMIT {xid}")).await?;
    }
    servers.orders.start().await?;
    // Whoever was dead follows when it is back.
    let prepared = servers.orders.sql("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'lk1.%'").await?;
    for gid in prepared.lines().map(str::trim).filter(|it| !it.is_empty()) {
        servers.orders.sql(&format!("COMMIT PREPARED '{gid}'")).await?;
    }
    differ(servers, number).await
}

/// The branches of a list, as the server names them in statements.
fn xids(listed: &str) -> Vec<String> {
    let xid = |row: &str| {
        let mut cells = row.split('\t');
        let length: usize = cells.nth(1)?.parse().ok()?;
        let (id, branch) = cells.nth(1)?.split_at_checked(length)?;
        Some(format!("'{id}','{branch}',1279996496"))
    };
    listed.lines().filter_map(xid).collect()
}

/// All answer. Where one has committed the others do; else nothing is touched, and here a person then rolls back.
async fn by_ours(servers: &Servers, bank: &Bank, number: u64, lost: &mut Lost) -> Result<bool, Trouble> {
    let log = log_of(&servers.stock.sql("XA RECOVER").await?)?;
    let clock = Clock::boot();
    loop {
        let orphans = bank.setup().await?.recover_without_log(&log, false).await?;
        let held = |why: &str| why.contains("holds its seat");
        if orphans.iter().any(|it| matches!(&it.fate, Fate::Nothing(why) if held(why))) {
            clock.sleep(std::time::Duration::from_millis(100)).await;
            continue;
        }
        lost.left += u64::from(orphans.iter().any(|it| it.fate != Fate::Commit));
        break;
    }
    let split = differ(servers, number).await?;
    for xid in xids(&servers.stock.sql("XA RECOVER").await?) {
        servers.stock.sql(&format!("XA ROLLBACK {xid}")).await?;
    }
    Ok(split)
}

/// Whether the moves of this worker are at one server only.
async fn differ(servers: &Servers, number: u64) -> Result<bool, Trouble> {
    let (here, there) = servers.moves().await?;
    let own = |it: &&String| it.starts_with(&format!("{number}-"));
    Ok(here.iter().filter(own).ne(there.iter().filter(own)))
}
