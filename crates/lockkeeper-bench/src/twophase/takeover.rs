//! A coordinator is killed after its decision: how long until another office has freed the last row.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::twophase::{Participant, Point, TwoPhase};
use lockkeeper_core::Clock;
use lockkeeper_core::clock::pause_thread;

use super::{Site, both, client, conn};
use crate::Answer;
use crate::report::Row;

/// The first word of the command line of the one that dies.
pub(crate) const CHILD: &str = "twophase-dies";

const TTL: Duration = Duration::from_secs(2);
const SWEEP: Duration = Duration::from_secs(1);
const DEATHS: u64 = 5;

/// The worst of several deaths, beside the ttl of the seat and one sweep.
pub(super) async fn row(site: &Site) -> Answer<Row> {
    let folder = site.folder.path().join("takeover");
    std::fs::create_dir(&folder)?;
    let (orders, stock) = (site.orders.url(), site.stock.url());
    let mut worst = Duration::ZERO;
    for death in 0..DEATHS {
        let words = [CHILD, &folder.display().to_string(), &orders, &stock, &death.to_string()];
        let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
        let voice = child.stdout.take().ok_or("the one that dies has no voice")?;
        let mut lines = BufReader::new(voice).lines();
        // It has the first seat, so the one that lives has the second.
        let found = tokio::task::spawn_blocking(move || {
            lines.find(|it| it.as_deref().is_ok_and(|it| it == "decided"))
        });
        found.await?.ok_or("it ended before it decided")??;
        let office = setup(&folder.display().to_string(), &orders, &stock).await?.start().await?;
        let clock = Clock::boot();
        child.kill()?;
        let killed = clock.now();
        child.wait()?;
        until_free(site, death).await?;
        worst = worst.max(clock.now() - killed);
        office.close().await?;
    }
    let what =
        "SIGKILL after the decision until the last row is free, the worst of five, beside ttl and one sweep";
    Ok(Row::of_times(what, (worst, TTL + SWEEP), 1.0))
}

/// Until both rows can be locked. MariaDB and PostgreSQL wait for whoever has them.
async fn until_free(site: &Site, death: u64) -> Answer<()> {
    use mysql_async::prelude::Queryable as _;
    let row = format!("SELECT id FROM move WHERE id = 'death-{death}' FOR UPDATE");
    let (orders, mut stock) = (client(site).await?, conn(site).await?);
    stock.query_drop("SET SESSION innodb_lock_wait_timeout = 60").await?;
    // A row that is being inserted is not seen: the key is what is waited for.
    let insert = format!("INSERT INTO move VALUES ('death-{death}')");
    let (here, there) = tokio::join!(orders.batch_execute(&insert), stock.query_drop(&insert));
    if here.is_ok() || there.is_ok() {
        return Err("it was decided, and its row is not there".into());
    }
    orders.batch_execute(&row).await?;
    Ok(stock.disconnect().await?)
}

async fn setup(folder: &str, orders: &str, stock: &str) -> Answer<TwoPhase> {
    let locker = lockkeeper::connect(&format!("sqlite:{folder}/locks.db")).await?;
    let setup =
        TwoPhase::open(&format!("sqlite:{folder}/2pc.db"), &locker).await?.ttl(TTL).sweep_every(SWEEP);
    let setup = setup.participant("orders", Participant::postgres(orders)?);
    Ok(setup.participant("stock", Participant::mysql(stock)?))
}

/// The one that dies: it decides, says so, and tells nobody else.
pub(crate) fn work(words: &[String]) -> Answer<()> {
    let [folder, orders, stock, death] = words else { return Err("four words".into()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let setup = setup(folder, orders, stock).await?.observer(|step| {
            if step.point == Point::Decided {
                use std::io::Write as _;
                let _ = writeln!(std::io::stdout(), "decided");
                tokio::task::block_in_place(|| pause_thread(Duration::from_hours(1)));
            }
        });
        let office = setup.start().await?;
        both(&office, &format!("death-{death}")).await
    })
}
