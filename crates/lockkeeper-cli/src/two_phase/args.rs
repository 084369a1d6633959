//! The command line of `lockkeeper 2pc`.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{Json, some_span, wait_span};

const CODES: &str = "\
Exit codes: 0 nothing is left, 1 something is in doubt or damaged, or you said no, 64 bad usage, 69 the log or the lock store \
cannot be reached, 75 somebody alive works on all that is left.

--url must name the lock store that the offices of this log use. Log and participants may stand in `lockkeeper.toml`, under \
`[two_phase]`.";

/// Look after two-phase commits.
#[derive(Debug, Args)]
#[command(after_help = CODES)]
pub(crate) struct TwoPhaseCommand {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the transactions that are in doubt
    #[command(after_help = CODES)]
    Ls(Ls),
    /// Show one transaction
    #[command(after_help = CODES)]
    Show(Named),
    /// Finish what the dead left
    #[command(after_help = CODES)]
    Recover(Recover),
    /// Decide by hand about a transaction whose coordinator is gone
    #[command(after_help = CODES)]
    Resolve(Resolve),
    /// Delete a finished decision from the log before its time
    #[command(after_help = CODES)]
    Forget(Forget),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// The log: `sqlite:PATH`, or a database, `postgres://…` or `mysql://…`
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_2PC_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,

    /// A participant, as the programs name it; may be given several times. In the variable blanks stand between them
    #[arg(
        long = "participant",
        value_name = "NAME=URL",
        env = "LOCKKEEPER_2PC_PARTICIPANTS",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    pub(crate) participants: Vec<String>,
}

impl Place {
    /// As the variables name it, for commands that have no options for it.
    pub(crate) fn from_variables() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|it: &String| !it.is_empty());
        let participants = variable("LOCKKEEPER_2PC_PARTICIPANTS").unwrap_or_default();
        Place {
            log: variable("LOCKKEEPER_2PC_LOG"),
            participants: participants.split_whitespace().map(str::to_owned).collect(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Ls {
    #[command(flatten)]
    pub(super) place: Place,

    #[command(flatten)]
    pub(super) json: Json,
}

#[derive(Debug, Args)]
pub(super) struct Named {
    /// The transaction
    #[arg(value_name = "ID")]
    pub(super) id: String,

    #[command(flatten)]
    pub(super) place: Place,

    #[command(flatten)]
    pub(super) json: Json,
}

#[derive(Debug, Args)]
pub(super) struct Forget {
    #[command(flatten)]
    pub(super) named: Named,

    /// Its participant is lost for good: stop telling it. Leaves a damage in the log
    #[arg(long)]
    pub(super) give_up: bool,

    /// Do not ask
    #[arg(long, requires = "give_up")]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct Recover {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// That log is lost: LOG is its name, behind `lk1.` in the names of branches. Commits what somebody has committed, and
    /// tells of the rest. --log names the new one, which is made if there is none
    #[arg(long, value_name = "LOG")]
    pub(super) without_log: Option<String>,

    /// With --without-log: do not ask
    #[arg(long, requires = "without_log")]
    pub(super) yes: bool,

    /// Go on until you stop it, and tell what changes
    #[arg(long, conflicts_with_all = ["dry_run", "without_log"])]
    pub(super) watch: bool,

    /// Try again for so long while something is left
    #[arg(long, value_name = "DUR", value_parser = wait_span, conflicts_with_all = ["dry_run", "without_log", "watch"])]
    pub(super) wait: Option<Duration>,

    /// How often, with --watch and --wait
    #[arg(long, value_name = "DUR", value_parser = some_span, default_value = "2s")]
    pub(super) every: Duration,

    #[command(flatten)]
    pub(super) place: Place,

    #[command(flatten)]
    pub(super) json: Json,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, Args)]
pub(super) struct Resolve {
    /// The transaction
    #[arg(value_name = "ID")]
    pub(super) id: String,

    /// Commit every branch that is prepared
    #[arg(long, conflicts_with = "abort", required_unless_present = "abort")]
    pub(super) commit: bool,

    /// Roll every branch back that is prepared
    #[arg(long)]
    pub(super) abort: bool,

    /// Also if the log says otherwise. Leaves a damage in the log
    #[arg(long)]
    pub(super) against_the_log: bool,

    /// Only this participant's branch. Leaves a damage in the log, unless the log says the same
    #[arg(long, value_name = "NAME")]
    pub(super) branch: Option<String>,

    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,

    #[command(flatten)]
    pub(super) place: Place,
}
