//! Processes that fight for one lock, and one that dies with it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_core::Clock;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::figures::{Figures, Round};
use super::list::{Contestant, Program};
use super::worker::CHILD;
use crate::Answer;
use crate::site::Site;

/// Longer than any process needs to begin, and than any of them fights.
const HANG: Duration = Duration::from_mins(1);
/// First turns; what counts begins after it.
const WARM_UP: Duration = Duration::from_millis(500);
/// Where a compiler is at work meanwhile.
const WARM_UP_LONG: Duration = Duration::from_millis(1500);
const TTL: Duration = Duration::from_secs(10);
/// For the lock whose holder dies.
const CRASH_TTL: Duration = Duration::from_secs(5);
/// The one who is to take over stands in line by then.
const IN_LINE: Duration = Duration::from_millis(500);
/// Every fight is for a key of its own: what one left behind harms no other.
static KEYS: AtomicUsize = AtomicUsize::new(0);

/// How many fight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum World {
    /// One alone.
    Free,
    /// 64 tasks of one process.
    Tasks,
    /// Four processes of 16.
    Crowd,
    /// Four processes of one.
    Alone,
}

impl World {
    pub(super) const ALL: [World; 4] = [World::Free, World::Tasks, World::Crowd, World::Alone];

    pub(super) fn name(self) -> &'static str {
        match self {
            World::Free => "free",
            World::Tasks => "1 × 64",
            World::Crowd => "4 × 16",
            World::Alone => "4 × 1",
        }
    }

    /// Processes, and tasks of each.
    fn size(self) -> (usize, usize) {
        match self {
            World::Free => (1, 1),
            World::Tasks => (1, 64),
            World::Crowd => (4, 16),
            World::Alone => (4, 1),
        }
    }
}

/// One contestant on one server.
pub(super) struct Fight<'a> {
    contestant: &'a Contestant,
    site: &'a Site,
    /// What to start, up to the arguments that all have in common.
    words: Vec<PathBuf>,
    /// And where its libraries are, for Python.
    libraries: Option<PathBuf>,
}

impl<'a> Fight<'a> {
    /// Or why it cannot be measured here, in words.
    pub(super) fn prepare(
        contestant: &'a Contestant,
        site: &'a Site,
        programs: &Path,
    ) -> Result<Self, String> {
        let (name, words): (&str, &[&str]) = match contestant.program {
            Program::Own => {
                let own = std::env::current_exe().map_err(|it| it.to_string())?;
                let words = vec![own, CHILD.into()];
                return Ok(Fight { contestant, site, words, libraries: None });
            }
            Program::Python => ("python", &["python3", "@/rival.py"]),
            Program::Node => ("node", &["node", "@/rival.mjs"]),
            Program::Go => ("go", &["@/rival"]),
            Program::Java => ("java", &["java", "-cp", "@:@/jars/*", "Rival"]),
        };
        let home = programs.join(name);
        if let Ok(words) = std::fs::read_to_string(home.join("why-not")) {
            return Err(words.trim().to_owned());
        }
        if !home.join("made-from").exists() {
            return Err(format!("its programs are not in {name}/: `cargo xtask bench rivals` makes them"));
        }
        let at = home.display().to_string();
        let words = words.iter().map(|it| it.replace('@', &at).into()).collect();
        let libraries = (contestant.program == Program::Python).then(|| home.join("lib"));
        Ok(Fight { contestant, site, words, libraries })
    }

    pub(super) fn name(&self) -> &'static str {
        self.contestant.name
    }

    fn warm_up(&self) -> Duration {
        if matches!(self.contestant.program, Program::Own | Program::Go) { WARM_UP } else { WARM_UP_LONG }
    }

    /// All of a world fight, and what they reach in `span` counts.
    pub(super) async fn world(&self, world: World, span: Duration) -> Answer<Figures> {
        let (processes, tasks) = world.size();
        let mut scene = self.scene(processes, tasks, TTL).await?;
        let (clock, before) = (Clock::boot(), self.site.requests().await?);
        let from = clock.now().after(self.warm_up());
        let until = from.after(span);
        for party in &mut scene.parties {
            party.tell(&format!("fight {}", until.as_nanos())).await?;
        }
        let (mut rounds, mut refused) = (Vec::new(), 0);
        for (process, party) in scene.parties.iter_mut().enumerate() {
            refused += party.report(process, &mut rounds).await?;
        }
        let requests = self.site.requests().await?.saturating_sub(before);
        let sum = scene.sum()?;
        Ok(Figures::of(rounds, from.as_nanos()..until.as_nanos(), sum, requests, refused))
    }

    /// A holder is killed: after how long another has its lock.
    pub(super) async fn crash(&self) -> Answer<Duration> {
        let mut scene = self.scene(2, 1, CRASH_TTL).await?;
        let [holder, waiter] = &mut scene.parties[..] else { return Err("two are needed".into()) };
        holder.ask("hold").await?;
        waiter.tell("take").await?;
        let clock = Clock::boot();
        clock.sleep(IN_LINE).await;
        holder.child.start_kill()?;
        let killed = clock.now();
        let said = waiter.answer().await?;
        let had: u64 = said.strip_prefix("had ").ok_or_else(|| format!("it said {said:?}"))?.parse()?;
        Ok(Duration::from_nanos(had.saturating_sub(killed.as_nanos())))
    }

    async fn scene(&self, processes: usize, tasks: usize, ttl: Duration) -> Answer<Scene> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("number");
        std::fs::write(&path, 0_u64.to_le_bytes())?;
        let key = format!("rivals-{}", KEYS.fetch_add(1, Ordering::Relaxed));
        let mut parties = Vec::new();
        for _ in 0..processes {
            let mut command = Command::new(&self.words[0]);
            command.args(&self.words[1..]).arg(self.contestant.lock).arg(self.contestant.place(self.site));
            command.args([&key, &ttl.as_millis().to_string(), &tasks.to_string()]).arg(&path);
            command.arg(offset().to_string());
            if let Some(folder) = &self.libraries {
                command.env("PYTHONPATH", folder);
            }
            parties.push(Party::start(command)?);
        }
        for party in &mut parties {
            let said = party.answer().await?;
            if said != "ready" {
                return Err(format!("it said {said:?} instead of `ready`").into());
            }
        }
        Ok(Scene { parties, folder })
    }
}

/// How far the boot clock is ahead of the monotonic one, in nanoseconds.
fn offset() -> i128 {
    let nanos = |clock| {
        let time = rustix::time::clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    // Without a suspend both are the same: what lies between the two calls must not count.
    let ahead = nanos(rustix::time::ClockId::Boottime) - nanos(rustix::time::ClockId::Monotonic);
    if ahead.abs() < 1_000_000 { 0 } else { ahead }
}

/// Processes, and the number that they add to.
struct Scene {
    parties: Vec<Party>,
    folder: TempDir,
}

impl Scene {
    fn sum(&self) -> Answer<u64> {
        let bytes = std::fs::read(self.folder.path().join("number"))?;
        Ok(u64::from_le_bytes(bytes.as_slice().try_into()?))
    }
}

/// One process. Dropped, it is killed.
struct Party {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Party {
    fn start(mut command: Command) -> Answer<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take().ok_or("no input")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Party { child, stdin, lines })
    }

    async fn tell(&mut self, line: &str) -> Answer<()> {
        Ok(self.stdin.write_all(format!("{line}\n").as_bytes()).await?)
    }

    async fn answer(&mut self) -> Answer<String> {
        let clock = Clock::boot();
        let said = clock.within(clock.now().after(HANG), Box::pin(self.lines.next_line())).await;
        Ok(said.ok_or("it did not answer in a minute")??.ok_or("it ended without an answer")?)
    }

    async fn ask(&mut self, line: &str) -> Answer<String> {
        self.tell(line).await?;
        self.answer().await
    }

    /// Add its rounds to all others; the number of refusals is returned.
    async fn report(&mut self, process: usize, rounds: &mut Vec<Round>) -> Answer<u64> {
        let [count, refused] = numbers(&self.answer().await?)?;
        for _ in 0..count {
            let [task, asked, had, gave] = numbers(&self.lines.next_line().await?.unwrap_or_default())?;
            rounds.push(Round { who: (process, task), asked, had, gave });
        }
        Ok(refused)
    }
}

fn numbers<const N: usize>(line: &str) -> Answer<[u64; N]> {
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| format!("it said {line:?}").into())
}
