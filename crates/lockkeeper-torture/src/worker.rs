//! A process that fights for locks: its tasks ask, hold, look, write and give back, and write down what they believe.
//!
//! The parent starts it with a hidden word and tells it by lines of its input what to do: its task first, then `work`,
//! `storm` (ask and go away), `drop` (go on in another runtime), `fork`. It ends with its input.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper::{Error, Locker, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Trouble;
use crate::calls::Calls;
use crate::deed::Deed;
use crate::dice::Dice;
use crate::grip::Grip;
use crate::how::How;
use crate::keys::{self, Kind};
use crate::log::Log;
use crate::orders::{self, Ended, Forks, Heard, Mode};
use crate::rhythm::{Crowd, Rhythm};

/// The hidden first argument that makes a program a worker.
pub(crate) const WORKER: &str = "__torture_worker";
/// How long a call may take before something is wrong with more than the store.
const HANG: Duration = Duration::from_secs(60);
/// How often a guard that is held is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Whoever could not be served asks again after this, or a little more.
const REST: Duration = Duration::from_millis(50);

/// What a worker is told to do first: words in a line of its input, because everybody can read command lines.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) witness: PathBuf,
    pub(crate) prefix: String,
    pub(crate) ttl: Duration,
    pub(crate) storm_ttl: Duration,
    pub(crate) tasks: usize,
    /// Its place among so many processes; whoever follows one that was killed has the same.
    pub(crate) place: usize,
    pub(crate) of: usize,
    /// Whether every round has a pause.
    pub(crate) gentle: bool,
    pub(crate) seed: u64,
    /// Last, because it may hold anything but a line's end.
    pub(crate) url: String,
}

impl Job {
    pub(crate) fn line(&self) -> String {
        let (folder, witness) = (self.folder.display(), self.witness.display());
        let (ttl, storm) = (self.ttl.as_millis(), self.storm_ttl.as_millis());
        format!(
            "{}\t{folder}\t{witness}\t{}\t{ttl}\t{storm}\t{}\t{}\t{}\t{}\t{}\t{}\n",
            self.name, self.prefix, self.tasks, self.place, self.of, self.gentle, self.seed, self.url
        )
    }

    /// Those who keep locks warm and those who do not meet at the same locks.
    fn is_warm(&self) -> bool {
        self.place + 1 < self.of
    }

    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.trim_end_matches('\n').splitn(12, '\t').collect();
        let [name, folder, witness, prefix, ttl, storm, tasks, place, of, gentle, seed, url] = words[..]
        else {
            return None;
        };
        Some(Job {
            name: name.to_owned(),
            folder: folder.into(),
            witness: witness.into(),
            prefix: prefix.to_owned(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            storm_ttl: Duration::from_millis(storm.parse().ok()?),
            tasks: tasks.parse().ok()?,
            place: place.parse().ok()?,
            of: of.parse().ok()?,
            gentle: gentle.parse().ok()?,
            seed: seed.parse().ok()?,
            url: url.to_owned(),
        })
    }
}

/// Do this in a fork of the process, which then ends as programs end; whether it was true there. A part of this crate's users, because
/// not all of them can fork.
pub type Fork = fn(&dyn Fn() -> bool) -> std::result::Result<bool, Trouble>;

/// If the arguments (without the program's name) call for a worker: be it, and tell the exit code. It forks by `fork` when it
/// is told to.
pub fn helper(mut args: impl Iterator<Item = OsString>, fork: Option<Fork>) -> Option<u8> {
    (args.next()? == WORKER).then(|| match work(fork) {
        Ok(()) => 0,
        Err(error) => {
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("a worker gives up: {error}\n"),
            );
            1
        }
    })
}

fn work(fork: Option<Fork>) -> std::result::Result<(), Trouble> {
    // A worker that stands still would not notice that its parent is gone.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let job = Job::read(&line).ok_or("no job")?;
    let (orders, mut heard) = orders::channel(fork);
    std::thread::spawn(move || orders.obey());
    let mut life = Life::begin(job)?;
    loop {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let ended = runtime.block_on(life.fight(&mut heard))?;
        // Whatever is still under way goes with it.
        drop(runtime);
        if ended == Ended::Over {
            return Ok(());
        }
    }
}

/// What a worker keeps when its runtime goes.
struct Life {
    job: Job,
    clock: Clock,
    log: Arc<Log>,
    how: How,
    dice: Dice,
    locker: Option<Locker>,
    /// How many runtimes it has had.
    runtimes: u64,
}

impl Life {
    fn begin(job: Job) -> std::result::Result<Self, Trouble> {
        let clock = Clock::boot();
        let log = Arc::new(Log::create(&job.folder.join(format!("{}.history", job.name)))?);
        let how = How::new(clock.clone(), Arc::clone(&log), job.ttl);
        let dice = Dice::seeded(job.seed);
        Ok(Life { job, clock, log, how, dice, locker: None, runtimes: 0 })
    }

    /// Until the input ends, or the runtime is to go.
    async fn fight(&mut self, heard: &mut Heard) -> std::result::Result<Ended, Trouble> {
        let locker = match &self.locker {
            Some(it) => it.clone(),
            None => open(&self.job, &self.how, &self.clock).await?,
        };
        self.locker = Some(locker.clone());
        self.runtimes += 1;
        let mut tasks = JoinSet::new();
        tasks.spawn(heard.end_of_runtime());
        for number in 0..self.job.tasks {
            let task = self.task(number, locker.clone(), heard.forks.clone()).await?;
            tasks.spawn(task.run(heard.mode.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            if ended?? == Ended::Runtime {
                // In the middle of whatever they do.
                tasks.detach_all();
                return Ok(Ended::Runtime);
            }
        }
        // What could not be given back is the store's to forget: the parent looks.
        drop(locker.shutdown(Duration::from_secs(10)).await);
        Ok(Ended::Over)
    }

    async fn task(
        &mut self,
        number: usize,
        locker: Locker,
        forks: Forks,
    ) -> std::result::Result<Task, Trouble> {
        let job = &self.job;
        Ok(Task {
            locker,
            clock: self.clock.clone(),
            log: Arc::clone(&self.log),
            calls: Calls::to(&job.witness, &job.name).await?,
            dice: self.dice.fork(),
            how: self.how.clone(),
            pace: Rhythm::new(job.ttl, job.gentle),
            forks,
            prefix: job.prefix.clone(),
            place: (job.place, job.of),
            ttl: job.ttl,
            storm_ttl: job.storm_ttl,
            // No number twice.
            next: (number as u64) << 40 | self.runtimes << 32,
            only_mutexes: false,
        })
    }
}

/// Its server may be down just now.
async fn open(job: &Job, how: &How, clock: &Clock) -> Result<Locker> {
    let until = clock.now().after(HANG);
    loop {
        match lockkeeper::open(&job.url).await {
            Ok(store) => return Ok(store.locker.warm(job.is_warm()).observer(how.clone()).build()),
            Err(error) if error.is_transient() && clock.now() < until => clock.sleep(REST).await,
            Err(error) => return Err(error),
        }
    }
}

struct Task {
    locker: Locker,
    clock: Clock,
    log: Arc<Log>,
    calls: Calls,
    dice: Dice,
    how: How,
    pace: Rhythm,
    forks: Forks,
    prefix: String,
    place: (usize, usize),
    ttl: Duration,
    storm_ttl: Duration,
    next: u64,
    /// The store can do no more.
    only_mutexes: bool,
}

impl Task {
    async fn run(mut self, mode: watch::Receiver<Mode>) -> std::result::Result<Ended, Trouble> {
        loop {
            let now = *mode.borrow();
            match now {
                Mode::Stop => return Ok(Ended::Over),
                Mode::Storm => self.come_and_go().await?,
                Mode::Work => self.round().await?,
            }
        }
    }

    /// Ask for a lock and go away, at any point of the way.
    async fn come_and_go(&mut self) -> std::result::Result<(), Trouble> {
        let key = keys::storm_key(&self.prefix, &mut self.dice);
        // Cold, because it is looked whether anything stays.
        let request = self.locker.lock(&key).ttl(self.storm_ttl).cold();
        let patience = self.dice.span(Duration::from_millis(20));
        let until = self.clock.now().after(patience);
        match self.clock.within(until, Box::pin(request.into_future())).await {
            None => self.log.failed("cancelled"),
            Some(Err(error)) => self.rest(&error).await,
            // Given back, or dropped.
            Some(Ok(guard)) if self.dice.below(2) == 0 => drop(guard),
            Some(Ok(guard)) => self.given_back(guard.release().await),
        }
        self.calls.tick().await
    }

    async fn round(&mut self) -> std::result::Result<(), Trouble> {
        let drawn = Kind::draw(self.next >> 40, &mut self.dice);
        let alone = matches!(drawn, Kind::Hot | Kind::Own);
        let kind = if self.only_mutexes && !alone { Kind::Cool } else { drawn };
        let mut names = vec![kind.key(&self.prefix, self.place, &mut self.dice)];
        if kind == Kind::Two {
            names.push(Kind::other(&self.prefix, &mut self.dice));
            names.sort();
            names.dedup();
        }
        let weight = u32::try_from(self.dice.below(3)).unwrap_or(0) + 1;
        let asked = self.clock.now();
        // Few go away before they are served.
        let is_whim = self.dice.below(20) == 0;
        let patience = if is_whim { self.dice.span(self.ttl / 8) } else { HANG };
        let request = Box::pin(ask(&self.locker, kind, &names, weight, self.ttl));
        let grip = match self.clock.within(asked.after(patience), request).await {
            Some(Ok(grip)) => grip,
            Some(Err(Error::Unsupported { .. })) if !matches!(kind, Kind::Cool | Kind::Hot | Kind::Own) => {
                self.only_mutexes = true;
                return Ok(());
            }
            Some(Err(error)) => {
                self.rest(&error).await;
                return Ok(());
            }
            None if is_whim => {
                self.log.failed("cancelled");
                return Ok(());
            }
            None => {
                self.log.starved(asked, self.clock.now(), &names.join(" "));
                return Ok(());
            }
        };
        let from = self.clock.now();
        self.next += 1;
        let id = self.next;
        let load = match kind {
            Kind::Hot | Kind::Cool | Kind::Own | Kind::Two | Kind::Lead => (1, 1),
            Kind::Read => (1, keys::ROOM),
            Kind::Write => (keys::ROOM, keys::ROOM),
            Kind::Permits => (weight, keys::PERMITS_OF),
        };
        let held = grip.keys(&names);
        let how: Vec<&str> = held.iter().map(|(key, fence)| self.how.came(key, *fence)).collect();
        self.log.had(id, load, (asked, from), &how, &held);
        let crowd = match kind {
            Kind::Read | Kind::Permits => Crowd::Shares,
            Kind::Cool | Kind::Two => Crowd::Comes,
            _ => Crowd::Waits,
        };
        let deed = match kind {
            Kind::Read => Deed::of_reader(&held, &mut self.calls).await?,
            Kind::Permits => Deed::Nothing,
            _ => Deed::of_writer(&held, &mut self.calls).await?,
        };
        self.hold(id, grip, crowd, deed).await?;
        if kind == Kind::Own {
            self.clock.sleep(Rhythm::rest(&mut self.dice, self.ttl)).await;
        }
        Ok(())
    }

    /// What was read under the lock is kept for a while; then it is written if the guard still says that it may, and the
    /// guard is given back.
    async fn hold(
        &mut self,
        id: u64,
        grip: Grip,
        crowd: Crowd,
        deed: Deed,
    ) -> std::result::Result<(), Trouble> {
        let span = self.pace.hold(self.clock.now(), crowd, &mut self.dice);
        self.watch(id, &grip, span).await;
        if !self.forks.make(&|| !grip.is_valid())? {
            self.log.late(id, "a fork of its process takes it for its own");
        }
        // Half of them look once more before they write, the others trust that it went well. Also between the look and
        // the write a process may be stopped for as long as you like. Both is E, and must not become F.
        let looks = self.dice.below(2) == 0;
        deed.end(!looks || grip.is_valid(), &mut self.calls).await?;
        let at = self.clock.now();
        if grip.is_valid() {
            self.log.sure(id, at);
        }
        // Some let go without a word.
        if self.dice.below(8) == 0 {
            drop(grip);
        } else {
            self.given_back(grip.release().await);
        }
        self.log.end(id);
        Ok(())
    }

    /// Look at the guard until the time is over or it is lost.
    async fn watch(&mut self, id: u64, grip: &Grip, span: Duration) {
        let until = self.clock.now().after(span);
        let mut lost = grip.lost();
        loop {
            // The time first: if the guard says valid after it, it was valid then, because loss is final.
            let at = self.clock.now();
            if !grip.is_valid() {
                return self.is_told(id, lost).await;
            }
            self.log.sure(id, at);
            if until <= at {
                return;
            }
            if self.clock.within(at.after(LOOK_EVERY).min(until), &mut lost).await.is_some() {
                self.log.told(id, self.clock.now());
                if grip.is_valid() {
                    self.log.late(id, "it was told of its loss and is valid");
                }
                return;
            }
        }
    }

    /// Whoever is no longer valid must be told, too.
    async fn is_told(&self, id: u64, lost: crate::grip::Loss) {
        let until = self.clock.now().after(HANG / 2);
        match self.clock.within(until, lost).await {
            Some(()) => self.log.told(id, self.clock.now()),
            None => self.log.late(id, "it is not valid and was never told of its loss"),
        }
    }

    fn given_back(&self, answer: Result<()>) {
        if let Err(error) = answer {
            self.log.failed(&format!("release: {}", told(&error)));
        }
    }

    async fn rest(&mut self, error: &Error) {
        self.log.failed(&told(error));
        self.clock.sleep(REST + self.dice.span(REST)).await;
    }
}

async fn ask(locker: &Locker, kind: Kind, names: &[String], weight: u32, ttl: Duration) -> Result<Grip> {
    let name = &names[0];
    Ok(match kind {
        Kind::Hot | Kind::Cool | Kind::Own => Grip::Alone(locker.lock(name).ttl(ttl).await?),
        Kind::Write => Grip::Alone(locker.write(name).ttl(ttl).await?),
        Kind::Read => Grip::Beside(locker.read(name).ttl(ttl).await?),
        Kind::Permits => Grip::Beside(locker.permits(name, weight, keys::PERMITS_OF).ttl(ttl).await?),
        Kind::Two => Grip::Several(locker.lock_all(names).ttl(ttl).await?),
        Kind::Lead => Grip::Lead(locker.campaign(name, "torture").ttl(ttl).win().await?),
    })
}

/// The word for it; of what must not happen also the reason.
fn told(error: &Error) -> String {
    match word(error) {
        bad @ ("refused-for-good" | "invalid" | "other") => {
            format!("{bad}: {error}").replace(char::is_control, " ")
        }
        word => word.to_owned(),
    }
}

/// One word for each way to fail.
fn word(error: &Error) -> &'static str {
    match error {
        Error::TimedOut { .. } => "timed-out",
        Error::Full { .. } => "full",
        Error::Lost { .. } => "lost",
        Error::Unavailable { transient: true, .. } => "unavailable",
        Error::Unavailable { .. } => "refused-for-good",
        Error::Unsupported { .. } => "unsupported",
        Error::Invalid { .. } => "invalid",
        Error::Closed => "closed",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_written_and_the_last_process_is_not_warm() {
        let job = |place| Job {
            name: "w7".to_owned(),
            folder: "/folder".into(),
            witness: "/folder/witness".into(),
            prefix: "torture-1/".to_owned(),
            ttl: Duration::from_secs(2),
            storm_ttl: Duration::from_secs(120),
            tasks: 11,
            place,
            of: 3,
            gentle: true,
            seed: 5,
            url: "redis://a:1?x=\ty".to_owned(),
        };
        let read = Job::read(&job(2).line());
        assert_eq!(read.map(|it| format!("{it:?}")), Some(format!("{:?}", job(2))));
        assert_eq!([0, 1, 2].map(|it| job(it).is_warm()), [true, true, false]);
        assert!(Job::read("w7\t/folder\n").is_none());
    }
}
