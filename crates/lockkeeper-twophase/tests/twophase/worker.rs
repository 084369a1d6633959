//! A coordinator in a process of its own, which dies or stops at a named step.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockkeeper_core::clock::pause_thread;
use lockkeeper_twophase::mysql_async::{Conn, prelude::Queryable};
use lockkeeper_twophase::tokio_postgres::Client;
use lockkeeper_twophase::{Committed, Error, Office, Step};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::site::{Bank, HANG};

const VARIABLE: &str = "LOCKKEEPER_TEST_2PC";
const PREFIX: &str = "worker: ";
/// The file that lets a worker that stood still go on.
const GO: &str = "go";

/// A step: a point, and the participant if it matters.
pub(crate) type At = (&'static str, &'static str);

/// What a worker is to do.
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that can go wrong by itself")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// Recover instead of moving money.
    pub(crate) recover: bool,
    /// End there.
    pub(crate) die: Option<At>,
    /// Not by SIGKILL: stand still until somebody says to go on.
    pub(crate) stop: bool,
    /// Stay there until somebody says to go on.
    pub(crate) hold: Option<At>,
    /// Let the vote of the second branch fail.
    pub(crate) veto: bool,
    /// End in the middle of the first branch's work.
    pub(crate) half: bool,
    /// Only the branch of the orders.
    pub(crate) alone: bool,
}

fn word(at: Option<At>) -> String {
    at.map_or_else(String::new, |(point, whose)| format!("{point}:{whose}"))
}

impl Orders {
    fn written(&self, bank: &Bank) -> String {
        let flags = [self.recover, self.stop, self.veto, self.half, self.alone]
            .map(|it| if it { "y" } else { "n" })
            .concat();
        let folder = bank.folder.display().to_string();
        [
            bank.account.to_string(),
            folder,
            bank.postgres.clone(),
            bank.mysql.clone(),
            bank.log.clone(),
            word(self.die),
            word(self.hold),
            flags,
            bank.locks.clone().unwrap_or_default(),
        ]
        .join("\n")
    }
}

/// Another process. Killed on drop.
pub(crate) struct Worker {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Worker {
    pub(crate) fn start(bank: &Bank, orders: &Orders) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::a_coordinator_in_its_own_process", "--nocapture"])
            .env(VARIABLE, orders.written(bank))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(PREFIX) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Worker { process, lines }
    }

    /// Wait, on another thread, until it says something that begins like this. Tells the rest.
    pub(crate) async fn hear(self, beginning: &'static str) -> (Self, String) {
        tokio::task::spawn_blocking(move || {
            loop {
                let said =
                    self.lines.recv_timeout(HANG).unwrap_or_else(|_| panic!("nobody said {beginning:?}"));
                if let Some(rest) = said.strip_prefix(beginning) {
                    let rest = rest.trim().to_owned();
                    return (self, rest);
                }
            }
        })
        .await
        .unwrap()
    }

    /// Wait until it is gone. Whether SIGKILL ended it, and all that it said.
    pub(crate) async fn end(mut self) -> (bool, Vec<String>) {
        use std::os::unix::process::ExitStatusExt as _;
        tokio::task::spawn_blocking(move || {
            let status = self.process.wait().unwrap();
            let said = std::iter::from_fn(|| self.lines.recv().ok()).collect();
            (status.signal() == Some(9), said)
        })
        .await
        .unwrap()
    }

    /// Let it run on after it stood still.
    pub(crate) fn go_on(&self, bank: &Bank) {
        std::fs::write(bank.folder.join(GO), "").unwrap();
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }

    /// Wait until it stands still, as the kernel says.
    pub(crate) async fn until_stopped(&self) {
        let stat = PathBuf::from(format!("/proc/{}/stat", self.process.id()));
        let stopped = async {
            loop {
                let text = std::fs::read_to_string(&stat).unwrap();
                if text.rsplit(')').next().is_some_and(|it| it.trim_start().starts_with('T')) {
                    return;
                }
                lockkeeper_core::Clock::boot().sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(HANG, stopped).await.expect("the worker reaches its point");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn tell(line: &str) {
    println!("{PREFIX}{line}");
}

fn end(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

/// What is done at each step.
fn watch(
    die: String,
    hold: String,
    signal: Signal,
    go: PathBuf,
) -> impl Fn(&Step<'_>) + Send + Sync + 'static {
    let told: Mutex<Option<String>> = Mutex::new(None);
    let done = AtomicBool::new(false);
    move |step| {
        if let Some(id) = step.id {
            let mut told = told.lock().unwrap();
            if told.is_none() {
                tell(&format!("id {id}"));
                *told = Some(id.to_string());
            }
        }
        let point = format!("{:?}", step.point);
        let matches = |wanted: &str| {
            wanted.split_once(':').is_some_and(|(it, whose)| {
                it == point && (whose.is_empty() || Some(whose) == step.participant)
            })
        };
        if matches(&hold) {
            // Not simply here: the other tasks of this thread shall go on.
            tokio::task::block_in_place(|| {
                while !go.exists() {
                    pause_thread(Duration::from_millis(1));
                }
            });
        }
        if matches(&die) && !done.swap(true, Ordering::SeqCst) {
            end(signal);
            // A process stands still only when its threads were scheduled once more: this one must not pass before.
            tokio::task::block_in_place(|| {
                while !go.exists() {
                    pause_thread(Duration::from_millis(1));
                }
            });
        }
    }
}

#[test]
fn a_coordinator_in_its_own_process() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    // Nobody waits for ever for a worker that does not reach its point.
    std::thread::spawn(|| {
        pause_thread(HANG);
        std::process::exit(3);
    });
    let parts: Vec<&str> = text.split('\n').collect();
    let [account, folder, postgres, mysql, log, die, hold, flags, locks] = parts[..] else {
        panic!("{text}")
    };
    let flag = |at: usize| flags.as_bytes()[at] == b'y';
    let bank = Bank {
        account: account.parse().unwrap(),
        folder: folder.into(),
        postgres: postgres.into(),
        mysql: mysql.into(),
        log: log.into(),
        locks: (!locks.is_empty()).then(|| locks.to_owned()),
    };
    let signal = if flag(1) { Signal::STOP } else { Signal::KILL };
    let watch = watch(die.to_owned(), hold.to_owned(), signal, bank.folder.join(GO));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        if flag(0) {
            let watch = std::sync::Arc::new(watch);
            return bank.recover_with(move |step| watch(step)).await;
        }
        let office = bank.setup().await.observer(watch).start().await.unwrap();
        tell(&format!("started {} {}", office.seat(), office.fence()));
        let answer = if flag(4) {
            bank.take(&office, "w").await
        } else {
            transfer(&bank, &office, flag(2), flag(3)).await
        };
        tell(&match answer {
            Ok(done) => format!("told committed {}", done.pending.join(",")),
            Err(Error::Aborted { source, .. }) => format!("told aborted {source}"),
            Err(Error::Superseded { .. }) => String::from("told superseded"),
            Err(error) => format!("told {error:?}"),
        });
        // A seat that was lost cannot be given back.
        drop(office.close().await);
    });
}

/// Move ten, as [`Bank::transfer`] does, with what can go wrong in the work.
async fn transfer(
    bank: &Bank,
    office: &Office,
    veto: bool,
    half: bool,
) -> lockkeeper_twophase::Result<Committed> {
    let (take, give) = bank.statements("w");
    let work = office.transaction().note("of a worker").within(HANG);
    let work = work.on("orders", async move |db: &Client| {
        db.batch_execute(&take).await?;
        if half {
            end(Signal::KILL);
        }
        Ok(())
    });
    let work = work.on("stock", async move |db: &mut Conn| {
        for it in give {
            db.query_drop(it).await?;
        }
        if veto {
            // The session is gone, and so is the branch; the vote finds out.
            drop(db.query_drop("KILL CONNECTION_ID()").await);
        }
        Ok(())
    });
    work.commit().await
}
