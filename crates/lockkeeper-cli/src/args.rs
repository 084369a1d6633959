//! The command line: its shape, its help, and the checks that need no store.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lockkeeper::{Config, Key};

use crate::exit::{self, Failure, Result};
use crate::help;

/// Run a command while holding a lock, and see who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "lockkeeper",
    version,
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
    #[arg(long, global = true, value_name = "FILE", env = "LOCKKEEPER_CONFIG", long_help = help::CONFIG)]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(after_help = help::RUN, override_usage = help::RUN_USAGE)]
    Run(Run),
    /// List the locks that are held or waited for
    #[command(after_help = help::LS)]
    Ls(Ls),
    /// Show one lock: who holds it, and everybody who waits
    #[command(after_help = help::SHOW)]
    Show(Named),
    /// Take a lock away from whoever holds it
    #[command(name = "break", after_help = help::BREAK)]
    Break(Break),
    /// Tell which settings of the store endanger locks
    #[command(after_help = help::DOCTOR)]
    Doctor(Json),
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
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) attempt: bool,

    /// Wait at most this long for the lock, then exit with 75 [default: wait without end]
    #[arg(long, value_name = "DUR", value_parser = wait_span, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// How long the store keeps the lock without hearing from us; it is renewed at a third of this
    /// [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// Hold the lock at most this long, then stop the command and exit with 76 [default: no limit]
    #[arg(long, value_name = "DUR", value_parser = some_span, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// A word for whoever lists the locks
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) note: Option<String>,

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
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// What the command line leaves open is as the configuration has it.
    pub(crate) fn adopt(&mut self, config: &Config) {
        self.ttl = self.ttl.or(config.ttl());
        self.max_hold = self.max_hold.or(config.max_hold());
        self.wait = self.wait.or(config.wait());
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(10))
    }

    pub(crate) fn key(&self) -> Result<Key> {
        key(self.name.as_deref().or(self.dashed.as_deref()).unwrap_or_default())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that begin with this
    prefix: Option<OsString>,

    #[command(flatten)]
    pub(crate) json: Json,
}

impl Ls {
    pub(crate) fn prefix(&self) -> Result<&str> {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        prefix.to_str().ok_or_else(|| {
            Failure::new(exit::USAGE, "the prefix is not UTF-8, so no lock's name begins with it")
        })
    }
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
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) lock: Named,

    /// Do not ask, even on a terminal
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Json {
    /// Print JSON, in the shape that docs/guides/command-line.md describes
    #[arg(long)]
    pub(crate) json: bool,
}

fn key(name: &OsStr) -> Result<Key> {
    Ok(Key::from_bytes(name.as_bytes())?)
}

/// A span longer than nothing.
fn some_span(text: &str) -> std::result::Result<Duration, String> {
    let span = any_span(text).map_err(|it| it.text)?;
    if span.is_zero() {
        return Err("it must be longer than nothing".into());
    }
    Ok(span)
}

/// A span to wait: one too long to be counted is for ever.
fn wait_span(text: &str) -> std::result::Result<Duration, String> {
    any_span(text).or_else(|it| if it.too_long { Ok(Duration::MAX) } else { Err(it.text) })
}

struct NoSpan {
    text: String,
    too_long: bool,
}

fn any_span(text: &str) -> std::result::Result<Duration, NoSpan> {
    if text.trim_start().starts_with('-') {
        let text = "a span cannot be negative; write for example `10s` or `1m 30s`".into();
        return Err(NoSpan { text, too_long: false });
    }
    humantime::parse_duration(text).map_err(|error| NoSpan {
        text: format!("{error}; write for example `10s` or `1m 30s`"),
        too_long: error == humantime::DurationError::NumberOverflow && !text.contains('.'),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn run(args: &[&str]) -> std::result::Result<Run, clap::Error> {
        match Cli::try_parse_from(["lockkeeper", "run"].iter().chain(args))?.command {
            Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_belongs_to_the_command() {
        let run = run(&["--ttl", "5s", "a b", "--", "ls", "--url", "-l", "--", "x"]).unwrap();
        assert_eq!(run.key().unwrap().as_str(), "a b");
        assert_eq!(run.command, ["ls", "--url", "-l", "--", "x"]);
        assert_eq!(run.ttl(), Duration::from_secs(5));
    }

    #[test]
    fn a_name_may_begin_with_a_dash() {
        for args in [&["--name=-x", "--", "true"][..], &["--name", "-x", "--", "true"]] {
            assert_eq!(run(args).unwrap().key().unwrap().as_str(), "-x");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for args in [
            &["x"][..],
            &["--", "true"],
            &["x", "true"],
            &["--try", "--wait", "1s", "x", "--", "true"],
            &["x", "--name", "y", "--", "true"],
            &["--ttl", "0s", "x", "--", "true"],
            &["--ttl", "-5s", "x", "--", "true"],
            &["--ttl", "soon", "x", "--", "true"],
            &["--ttl", "5", "x", "--", "true"],
            &["--ttl", "", "x", "--", "true"],
            &["--max-hold", "0s", "x", "--", "true"],
            &["--wait", "-1s", "x", "--", "true"],
        ] {
            assert!(run(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_wait_too_long_to_count_is_for_ever() {
        for wait in ["99999999999999999999y", "18446744073709551615s", "18446744073709551615y"] {
            let run = run(&["--wait", wait, "x", "--", "true"]).unwrap();
            assert!(run.wait.unwrap() >= Duration::from_secs(u64::MAX), "{wait}");
        }
        assert_eq!(run(&["--wait", "0s", "x", "--", "true"]).unwrap().wait, Some(Duration::ZERO));
    }
}
