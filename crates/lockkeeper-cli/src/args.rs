//! The command line: its shape, its help, and the checks that need no store.

mod spans;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lockkeeper::{Config, Key, Load, config};

use crate::exit::{self, Failure, Result};
use crate::looking::{Doctor, Ls, Top};
use crate::{features, help};

use spans::seconds;
pub(crate) use spans::{some_span, wait_span};

/// Run a command while holding a lock, and see who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "lockkeeper",
    version,
    long_version = features::version(),
    about = "Run a command while holding a lock, and see who holds what",
    after_help = help::MAIN,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// Where the locks live, for example `sqlite:PATH` [default: a file in your state folder]
    #[arg(long, global = true, value_name = "URL", env = "LOCKKEEPER_URL", hide_env_values = true, long_help = help::URL)]
    pub(crate) url: Option<String>,

    /// Settings for this program and for others [default: `lockkeeper.toml` in this folder, if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "LOCKKEEPER_CONFIG", hide_env_values = true, long_help = help::CONFIG)]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(after_help = help::RUN, override_usage = help::RUN_USAGE)]
    Run(Box<Run>),
    /// Run a command once for each tick of a schedule, over all hosts
    #[command(after_help = help::ONCE, override_usage = help::ONCE_USAGE)]
    Once(Box<Once>),
    /// Run a command while leading; if the lead is lost, stop it and stand again
    #[command(after_help = help::ELECT, override_usage = help::ELECT_USAGE)]
    Elect(Box<Elect>),
    /// Tell who leads
    #[command(after_help = help::LEADER)]
    Leader(Leads),
    /// List the locks that are held or waited for
    #[command(after_help = help::LS)]
    Ls(Ls),
    /// Watch the locks: those that most wait for first
    #[command(after_help = help::TOP)]
    Top(Top),
    /// Show one lock: who holds it, and everybody who waits
    #[command(after_help = help::SHOW)]
    Show(Named),
    /// Tell by the exit code whether a lock is free
    #[command(after_help = help::STATUS)]
    Status(Status),
    /// Wait until a lock is free, without taking it
    #[command(after_help = help::WAIT)]
    Wait(WaitFor),
    /// Take a lock away from whoever holds it
    #[command(name = "break", after_help = help::BREAK)]
    Break(Break),
    /// Tell which settings of the store endanger locks
    #[command(after_help = help::DOCTOR)]
    Doctor(Doctor),
    /// Serve locks over HTTP to programs in every language
    #[cfg_attr(feature = "serve", command(after_help = help::SERVE))]
    Serve(crate::serve::Serve),
    /// Look after two-phase commits: what is in doubt, and what to do about it
    #[command(name = "2pc")]
    TwoPhase(crate::two_phase::TwoPhaseCommand),
    /// Let processes fight for locks of this store while you break it, and tell which promise was broken
    #[cfg_attr(feature = "torture", command(after_help = help::TORTURE))]
    Torture(crate::torture::Torture),
    /// See locks at work
    #[cfg_attr(feature = "demo", command(subcommand))]
    Demo(crate::demo::Demo),
    /// Look at the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the version, and what was built in
    #[command(hide = true)]
    Version,
    /// Print the names of locks, for completion
    #[command(hide = true)]
    Names(crate::completions::Names),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// Where to write them
        folder: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read all settings and say what is wrong with them
    #[command(after_help = help::CONFIG_CHECK)]
    Check,
    /// Print all settings and where they come from, without secrets
    #[command(after_help = help::CONFIG_SHOW)]
    Show,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Do not wait: exit with 75 at once if somebody else holds the lock or waits for it
    #[arg(long = "try", short = 'n', conflicts_with_all = ["wait", "seconds"])]
    pub(crate) attempt: bool,

    /// Wait at most this long for the lock, then exit with 75 [default: wait without end]
    #[arg(long, value_name = "DUR", value_parser = wait_span, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// The same as --wait, in seconds without a unit, as `flock` has it
    #[arg(short = 'w', value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true, conflicts_with = "wait")]
    seconds: Option<Duration>,

    /// Exit with this code in place of 75 if the lock was not obtained in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::BUSY)]
    pub(crate) conflict_exit_code: u8,

    /// Run this by `sh -c`, in place of a command after `--`
    #[arg(short = 'c', value_name = "SCRIPT", allow_hyphen_values = true, conflicts_with = "command")]
    shell: Option<OsString>,

    /// How long the store keeps the lock without hearing from us; it is renewed at a third of this
    /// [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// Hold the lock at most this long, then stop the command and exit with 76 [default: no limit]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Keep the lock at least this long, also if the command ends before [default: give it back at once]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true,
          conflicts_with_all = ["shared", "permits", "also"])]
    pub(crate) at_least: Option<Duration>,

    /// A free text, shown to whoever lists the locks
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) note: Option<String>,

    /// Share the lock with others that say --shared: they run side by side, but never beside a plain `run`
    #[arg(long, short, conflicts_with_all = ["permits", "alone"])]
    shared: bool,

    /// Take N of OF permits: commands run side by side while at most OF are out, for example 2/5
    #[arg(long, value_name = "N/OF", value_parser = permits, allow_hyphen_values = true, conflicts_with = "alone")]
    permits: Option<Load>,

    /// Share with nobody, also where the configuration says `shared` or `permits` of a lock
    #[arg(long, hide_short_help = true)]
    alone: bool,

    /// Another lock to hold as well; may be given several times. All are held, or none
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    also: Vec<OsString>,

    /// The lock's name; for one that begins with a dash write --name=-NAME
    #[arg(value_name = "NAME", required_unless_present = "dashed")]
    name: Option<OsString>,

    /// The same as NAME
    #[arg(
        long = "name",
        id = "dashed",
        value_name = "NAME",
        conflicts_with = "name",
        allow_hyphen_values = true,
        hide_short_help = true
    )]
    dashed: Option<OsString>,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "shell", value_name = "CMD")]
    command: Vec<OsString>,

    /// What the command line leaves open.
    #[arg(skip)]
    config: Config,
}

impl Run {
    /// What the command line leaves open is as the configuration has it.
    pub(crate) fn adopt(&mut self, config: &Config) {
        self.ttl = self.ttl.or(config.ttl());
        self.max_hold = self.max_hold.or(config.max_hold());
        self.wait = self.wait.or(self.seconds).or(config.wait());
        self.config = config.clone();
    }

    /// What to run.
    pub(crate) fn command(&self) -> Vec<&OsStr> {
        match &self.shell {
            Some(script) => vec![OsStr::new("sh"), OsStr::new("-c"), script],
            None => self.command.iter().map(OsString::as_os_str).collect(),
        }
    }

    /// A run of one command alone under one lock.
    fn plain(
        ttl: Option<Duration>,
        note: Option<String>,
        name: &OsStr,
        command: &[OsString],
        config: &Config,
    ) -> Self {
        let (name, command, config) = (Some(name.to_owned()), command.to_vec(), config.clone());
        Run {
            ttl: ttl.or(config.ttl()),
            note,
            name,
            command,
            config,
            alone: true,
            attempt: false,
            wait: None,
            seconds: None,
            conflict_exit_code: exit::BUSY,
            shell: None,
            max_hold: None,
            at_least: None,
            shared: false,
            permits: None,
            also: Vec::new(),
            dashed: None,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(10))
    }

    /// What to hold: NAME first, then what `--also` names, each name once.
    pub(crate) fn wanted(&self) -> Result<Vec<Wanted>> {
        let name = key(self.name.as_deref().or(self.dashed.as_deref()).unwrap_or_default())?;
        let said = if self.shared { Some(Load::READER) } else { self.permits };
        let load = said.unwrap_or_else(|| self.usual(&name));
        let mut all = vec![Wanted { key: name, load }];
        for name in &self.also {
            let key = key(name)?;
            let load = self.usual(&key);
            match all.iter_mut().find(|it| it.key == key) {
                Some(known) => known.load = known.load.stronger(load),
                None => all.push(Wanted { key, load }),
            }
        }
        Ok(all)
    }

    /// How much of a lock to take if the command line does not say.
    fn usual(&self, key: &Key) -> Load {
        let configured = if self.alone { None } else { self.config.share(key.as_str()) };
        configured.unwrap_or(Load::MUTEX)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Once {
    /// Wait at most this long while another is at it, then exit with 75 [default: exit with 75 at once]
    #[arg(long, value_name = "DUR", value_parser = wait_span, allow_hyphen_values = true)]
    wait: Option<Duration>,

    /// How long the store keeps the lock without hearing from us; then another may begin [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    ttl: Option<Duration>,

    /// How long it is remembered that the tick was done [default: 7days]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    pub(crate) remember: Option<Duration>,

    /// A free text, shown to whoever lists the locks
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    note: Option<String>,

    /// The job's name, which is the name of its lock
    name: OsString,

    /// The tick: a date, an hour, a number; the same text on every host
    tick: OsString,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Once {
    pub(crate) fn tick(&self) -> Result<&str> {
        self.tick.to_str().ok_or_else(|| Failure::new(exit::USAGE, "the tick is not UTF-8"))
    }

    /// As a `run` of the same command under the lock of the job.
    pub(crate) fn run(&self, config: &Config) -> Run {
        let Once { wait, ttl, note, name, command, .. } = self;
        // Whether to wait is said here and nowhere else.
        let (attempt, wait) = (wait.is_none(), *wait);
        Run { attempt, wait, ..Run::plain(*ttl, note.clone(), name, command, config) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// What everybody can read while the command runs, for example where to reach it [default: empty]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) value: String,

    /// After how long without a sign of life another leads [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    ttl: Option<Duration>,

    /// A free text, shown to whoever lists the locks
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) note: Option<String>,

    /// The role's name, which is the name of its lock
    name: OsString,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Elect {
    /// As a `run` of the same command under the lock of the role.
    pub(crate) fn run(&self, config: &Config) -> Run {
        Run::plain(self.ttl, self.note.clone(), &self.name, &self.command, config)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Leads {
    /// Go on and tell every change
    #[arg(long)]
    pub(crate) watch: bool,

    /// The role
    #[command(flatten)]
    pub(crate) role: Named,
}

/// A lock, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) load: Load,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The lock's name; one that begins with a dash goes after `--`
    name: OsString,

    #[command(flatten)]
    pub(crate) json: Json,
}

impl Named {
    pub(crate) fn key(&self) -> Result<Key> {
        key(&self.name)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print nothing
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The lock's name; one that begins with a dash goes after `--`
    name: OsString,
}

impl Status {
    pub(crate) fn key(&self) -> Result<Key> {
        key(&self.name)
    }
}

#[derive(Debug, Args)]
pub(crate) struct WaitFor {
    /// Wait at most this long, then exit with 75 [default: wait without end]
    #[arg(long, value_name = "DUR", value_parser = wait_span, allow_hyphen_values = true)]
    wait: Option<Duration>,

    /// The same as --wait, in seconds without a unit
    #[arg(short = 'w', value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true, conflicts_with = "wait")]
    seconds: Option<Duration>,

    /// The lock's name; one that begins with a dash goes after `--`
    name: OsString,
}

impl WaitFor {
    pub(crate) fn key(&self) -> Result<Key> {
        key(&self.name)
    }

    /// For ever, if nothing else is said.
    pub(crate) fn longest(&self) -> Duration {
        self.wait.or(self.seconds).unwrap_or(Duration::MAX)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) lock: Named,

    /// Do not ask, even on a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Only the holder with this fence, as `show` tells it; whoever came after it keeps the lock
    #[arg(long, value_name = "FENCE")]
    pub(crate) fence: Option<u64>,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Json {
    /// Print JSON, in a shape that is documented
    #[arg(long, long_help = help::JSON)]
    pub(crate) json: bool,
}

fn key(name: &OsStr) -> Result<Key> {
    Ok(Key::from_bytes(name.as_bytes())?)
}

fn permits(text: &str) -> std::result::Result<Load, String> {
    config::permits(text).map_err(|it| it.to_string())
}

#[cfg(test)]
mod tests;
