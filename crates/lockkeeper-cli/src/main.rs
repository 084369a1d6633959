//! The `lockkeeper` command: run a program under a lock, see who holds what.

mod args;
mod break_lock;
mod completions;
mod config;
mod dashes;
mod demo;
mod doctor;
mod exit;
mod features;
mod help;
mod leader;
mod live;
mod looking;
mod ls;
mod man;
mod output;
mod proclaimed;
mod run;
mod screen;
mod serve;
mod show;
mod status;
mod store;
mod table;
mod text;
mod top;
mod torture;
#[cfg_attr(not(feature = "twophase"), path = "two_phase/absent.rs")]
mod two_phase;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use exit::{Failure, Result};
use store::Target;

fn main() -> ExitCode {
    // Helper processes are not for people: they are kept out of the command line's own grammar.
    let args = || std::env::args_os().skip(1);
    if let Some(code) =
        run::helper(args()).or_else(|| demo::helper(args())).or_else(|| torture::helper(args()))
    {
        return ExitCode::from(code);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(not_understood(&error)),
    };
    let code = answer(cli).unwrap_or_else(|failure| {
        output::say_raw(&failure.lines());
        failure.code
    });
    ExitCode::from(code)
}

fn answer(mut cli: Cli) -> Result<u8> {
    if let Command::Version = cli.command {
        output::data(&format!("lockkeeper {}\n", features::version()))?;
        return Ok(0);
    }
    if let Command::Completions { shell } = cli.command {
        output::data(&completions::script(shell, Cli::command()))?;
        return Ok(0);
    }
    if let Command::Man { folder } = &cli.command {
        return man::write(Cli::command(), folder);
    }
    if let Command::Demo(args) = &cli.command {
        return runtime()?.block_on(demo::demo(args, cli.url.as_deref()));
    }
    let config = config::load(cli.config.as_deref())?;
    let target = Target::choose(cli.url, config.clone());
    if let Command::Config(command) = cli.command {
        return config::config(command, &config, target);
    }
    config::tell_if_found(cli.config.as_deref(), &config);
    if let Command::Run(args) = &mut cli.command {
        args.adopt(&config);
    }
    let target = target?;
    if let Command::Serve(args) = &cli.command {
        return serve::serve(&target, args);
    }
    runtime()?.block_on(async {
        match &cli.command {
            Command::Run(args) => run::run(&target, args).await,
            Command::Once(args) => run::once(&target, args, &config).await,
            Command::Elect(args) => run::elect(&target, args, &config).await,
            Command::Leader(args) => leader::leader(&target, args).await,
            Command::Ls(args) => ls::ls(&target, args).await,
            Command::Top(args) => top::top(&target, args).await,
            Command::Show(args) => show::show(&target, args).await,
            Command::Status(args) => status::status(&target, args).await,
            Command::Wait(args) => status::wait(&target, args).await,
            Command::Break(args) => break_lock::break_lock(&target, args).await,
            Command::Names(args) => completions::names(&target, args).await,
            Command::Doctor(args) => doctor::doctor(&target, *args).await,
            Command::Torture(args) => torture::torture(&target, args).await,
            Command::TwoPhase(args) => two_phase::two_phase(&target, args).await,
            Command::Completions { .. }
            | Command::Config(_)
            | Command::Demo(_)
            | Command::Man { .. }
            | Command::Serve(_)
            | Command::Version => Ok(0),
        }
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|it| Failure::system("the runtime cannot be started", &it))
}

/// Help and version go to standard output; everything else is bad usage.
fn not_understood(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion, MissingSubcommand};
    // With a variable set clap believes that something was said.
    if error.kind() == MissingSubcommand && std::env::args_os().len() == 1 {
        output::say_raw(&Cli::command().render_help().to_string());
        return exit::USAGE;
    }
    let words: String = error.render().to_string().split_inclusive('\n').map(without_variables).collect();
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        return output::data(&words).map_or_else(|it| it.code, |()| 0);
    }
    match words.strip_prefix("error: ") {
        Some(words) => {
            let mut failure = Failure::new(exit::USAGE, words);
            failure.hint = dashes::hint(error, std::env::args_os().skip(1));
            output::say_raw(&failure.lines());
        }
        None => output::say_raw(&words),
    }
    exit::USAGE
}

/// A line of clap's words. What a variable says is part of the call to clap, and puzzles whoever reads how to write it.
fn without_variables(line: &str) -> String {
    if line.starts_with("Usage: ") {
        line.replace(" --url <URL>", "").replace(" --config <FILE>", "")
    } else {
        line.to_owned()
    }
}
