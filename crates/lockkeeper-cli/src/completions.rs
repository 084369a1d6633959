//! `lockkeeper completions`: the scripts that clap makes, and the names of locks for those shells that can ask for them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;
use lockkeeper::spi::Clock;

use crate::exit::Result;
use crate::output;
use crate::store::Target;

/// Whoever presses a key waits no longer than this for a store.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The arguments that are names of locks, or begin one.
const NAMES: &[&str] = &["name", "dashed", "also", "prefix"];

const BASH: &str = include_str!("completions/names.bash");
const ZSH: &str = include_str!("completions/names.zsh");
const FISH: &str = include_str!("completions/names.fish");
/// Where the script for zsh begins to act.
const ZSH_CALL: &str = "if [ \"$funcstack[1]\" = \"_lockkeeper\" ]";

/// The script for a shell.
pub(crate) fn script(shell: Shell, command: Command) -> String {
    let (commands, valued) = (commands_with_names(&command), options_with_values(&command));
    // The hint says nothing here: it marks in the script where a name of a lock belongs.
    let mark = |it: Arg| if is_name(&it) { it.value_hint(ValueHint::Username) } else { it };
    let mut command = command.mut_subcommands(|it| it.mut_args(mark));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "lockkeeper", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => {
            let names = BASH.replace("COMMANDS", &commands.join("|")).replace("VALUED", &valued.join("|"));
            format!("{script}\n{names}")
        }
        Shell::Zsh => {
            let script = script.replace(":_users", ":_lockkeeper_names");
            script.replace(ZSH_CALL, &format!("{ZSH}\n{ZSH_CALL}"))
        }
        Shell::Fish => {
            let script = script.replace("__fish_complete_users", "__lockkeeper_names");
            format!("{}\n{script}", FISH.replace("COMMANDS", &commands.join(" ")))
        }
        _ => script,
    }
}

fn is_name(arg: &Arg) -> bool {
    NAMES.contains(&arg.get_id().as_str())
}

fn commands_with_names(command: &Command) -> Vec<String> {
    let takes_one = |it: &&Command| it.get_positionals().any(is_name);
    command.get_subcommands().filter(takes_one).map(|it| it.get_name().to_owned()).collect()
}

/// Options whose value is something else than a name.
fn options_with_values(command: &Command) -> Vec<String> {
    let all = [command].into_iter().chain(command.get_subcommands()).flat_map(Command::get_opts);
    let mut written: Vec<String> = all
        .filter(|it| it.get_action().takes_values() && !is_name(it))
        .flat_map(|it| {
            let long = it.get_long().map(|it| format!("--{it}"));
            long.into_iter().chain(it.get_short().map(|it| format!("-{it}")))
        })
        .collect();
    written.sort();
    written.dedup();
    written
}

/// The names that begin with what was typed.
#[derive(Debug, Args)]
pub(crate) struct Names {
    /// What they begin with
    prefix: Option<OsString>,
}

/// Print the names of all locks that are held or waited for, as far as a shell reads them as they are.
pub(crate) async fn names(target: &Target, args: &Names) -> Result<u8> {
    let Some(prefix) = args.prefix.as_deref().unwrap_or_default().to_str() else { return Ok(0) };
    // A key that is pressed makes no file.
    if target.file().is_some_and(|it| !Path::new(it).exists()) {
        return Ok(0);
    }
    let listed = Box::pin(async {
        let store = target.open().await?;
        store.inspect.list(prefix).await.map_err(|it| target.failure(it))
    });
    let clock = Clock::boot();
    let Some(listed) = clock.within(clock.now().after(ANSWER_MAX), listed).await else { return Ok(0) };
    let mut names: Vec<_> = listed?.into_iter().map(|it| it.key.as_str().to_owned()).collect();
    names.retain(|it| is_plain(it));
    names.sort();
    output::data(&names.into_iter().fold(String::new(), |all, it| all + &it + "\n"))?;
    Ok(0)
}

/// Whether a shell takes it for one word as it stands. Others are left to be typed, with their quotes.
fn is_plain(name: &str) -> bool {
    let is_fine = |it: char| it.is_alphanumeric() || "-_./:@%+=,".contains(it);
    !name.starts_with('-') && name.chars().all(is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_read_as_something_else_is_not_offered() {
        assert!(["orders/42", "shop:product:42", "größe", "a.b_c-d@e"].into_iter().all(is_plain));
        assert!(!["a b", "-x", "a$b", "a'b", "a*", "~", "a;b", "a\\b"].into_iter().any(is_plain));
    }

    #[test]
    fn what_takes_names_and_values_is_read_from_the_command_line_itself() {
        let command = <crate::args::Cli as clap::CommandFactory>::command();
        let commands = commands_with_names(&command);
        for name in ["run", "once", "elect", "leader", "ls", "top", "show", "status", "wait", "break"] {
            assert!(commands.iter().any(|it| it == name), "{name}: {commands:?}");
        }
        let valued = options_with_values(&command);
        assert!(["--url", "--ttl", "-w", "--note"].iter().all(|it| valued.iter().any(|one| one == it)));
        assert!(!valued.iter().any(|it| it == "--also" || it == "--shared"), "{valued:?}");
    }
}
