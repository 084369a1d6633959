//! A coordinator in a process of its own, which moves money until it ends itself at a step that was drawn for it.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper::twophase::tokio_postgres::Client;
use lockkeeper::twophase::{Error, Office, Step, WorkError};
use lockkeeper_core::Clock;
use lockkeeper_core::clock::pause_thread;
use lockkeeper_torture::{Dice, Trouble};
use rustix::process::{Signal, getpid, kill_process};

use super::bank::{ACCOUNTS, Bank};

/// The first word of a worker's command line.
pub(super) const WORD: &str = "__2pc";

/// What a worker is told: its number, the seed of its chances, whether it is to stand still instead of dying, and where to die
/// if that is not drawn (`POINT:PARTICIPANT`), what to hold up until then, and whether its caller goes away.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    pub(super) number: u64,
    pub(super) seed: u64,
    pub(super) stop: bool,
    pub(super) die: String,
    pub(super) hold: String,
    pub(super) cancel: bool,
}

impl Orders {
    pub(super) fn words(&self, bank: &Bank) -> Vec<String> {
        let flag = |it: bool| if it { "y" } else { "n" }.to_owned();
        let own = [
            WORD.to_owned(),
            self.number.to_string(),
            self.seed.to_string(),
            flag(self.stop),
            self.die.clone(),
            self.hold.clone(),
            flag(self.cancel),
        ];
        own.into_iter().chain(bank.words()).collect()
    }

    fn read(words: &[String]) -> Option<(Self, Bank)> {
        let [number, seed, stop, die, hold, cancel, rest @ ..] = words else { return None };
        let orders = Orders {
            number: number.parse().ok()?,
            seed: seed.parse().ok()?,
            stop: stop == "y",
            die: die.clone(),
            hold: hold.clone(),
            cancel: cancel == "y",
        };
        Some((orders, Bank::read(rest)?))
    }
}

/// Be a worker, if the command line says so. Its exit code.
pub fn helper(words: &[String]) -> Option<u8> {
    let (first, rest) = words.split_first()?;
    if first != WORD {
        return None;
    }
    let Some((orders, bank)) = Orders::read(rest) else { return Some(64) };
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    else {
        return Some(71);
    };
    match runtime.block_on(work(&orders, &bank)) {
        Ok(()) => Some(0),
        Err(error) => {
            say(&format!("failed {error}"));
            Some(1)
        }
    }
}

/// At once, whatever is killed next.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn end(signal: Signal) {
    let _ = kill_process(getpid(), signal);
}

/// What is done at each step: it is counted, and at the last one this process ends.
fn watch(orders: &Orders, dice: &mut Dice) -> impl Fn(&Step<'_>) + Send + Sync + 'static {
    // An office takes six steps to begin and a transfer about eighteen; so every step of some transfer is hit.
    let (last, count) = (1 + dice.below(90), AtomicU64::new(0));
    let signal = if orders.stop { Signal::STOP } else { Signal::KILL };
    let (die, hold, aborting) = (orders.die.clone(), orders.hold.clone(), orders.cancel);
    move |step| {
        let here = format!("{:?}:{}", step.point, step.participant.unwrap_or_default());
        if !hold.is_empty() && here == hold {
            tokio::task::block_in_place(|| pause_thread(Duration::from_secs(3600)));
        }
        if aborting && here == "AllPrepared:" {
            // The caller goes away now: see `canceled`.
            CANCEL.notify_one();
            tokio::task::block_in_place(|| pause_thread(Duration::from_millis(200)));
        }
        let named = !die.is_empty() && here == die;
        let drawn = die.is_empty() && count.fetch_add(1, Ordering::SeqCst) + 1 == last;
        if named || drawn {
            end(signal);
        }
    }
}

static CANCEL: tokio::sync::Notify = tokio::sync::Notify::const_new();

async fn work(orders: &Orders, bank: &Bank) -> Result<(), Trouble> {
    let mut dice = Dice::seeded(orders.seed);
    let watch = watch(orders, &mut dice);
    let office = Arc::new(bank.setup().await?.observer(watch).start().await?);
    for n in 0..20 {
        let tag = format!("{}-{n}", orders.number);
        let told = tokio::select! {
            told = transfer(&office, &tag, &mut dice, orders.die.is_empty()) => told,
            () = CANCEL.notified() => {
                // Its future is dropped; the office rolls back in the background, and this process ends there.
                Clock::boot().sleep(Duration::from_secs(30)).await;
                return Ok(());
            }
        };
        match told {
            Ok(done) => say(&format!("told {tag} committed {}", done.id)),
            Err(Error::Aborted { id, .. }) => say(&format!("told {tag} aborted {id}")),
            Err(Error::Superseded { id, .. }) => {
                say(&format!("told {tag} aborted {id}"));
                return Ok(());
            }
            Err(Error::Unknown { id, .. }) => say(&format!("told {tag} unknown {id}")),
            Err(Error::Damaged { id, .. }) => say(&format!("told {tag} damaged {id}")),
            // A server that is down at the moment: nothing was begun.
            Err(error) => say(&format!("told {tag} refused {error}")),
        }
    }
    Ok(())
}

/// From an account in PostgreSQL to one in MariaDB, or not at all: one of eight changes its mind at the end.
async fn transfer(
    office: &Office,
    tag: &str,
    dice: &mut Dice,
    may_refuse: bool,
) -> lockkeeper::twophase::Result<lockkeeper::twophase::Committed> {
    let (from, to, amount) = (dice.below(ACCOUNTS), dice.below(ACCOUNTS), 1 + dice.below(9));
    let refuse = may_refuse && dice.below(8) == 0;
    let note = format!("INSERT INTO move VALUES ('{tag}')");
    let take = format!("UPDATE account SET amount = amount - {amount} WHERE id = {from}; {note}");
    let give = [format!("UPDATE account SET amount = amount + {amount} WHERE id = {to}"), note];
    let work = office.transaction().note(tag).within(Duration::from_secs(5));
    let work = work.on("orders", async move |db: &Client| Ok(db.batch_execute(&take).await?));
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        if refuse { Err(WorkError::new("somebody changed their mind")) } else { Ok(()) }
    });
    work.commit().await
}
