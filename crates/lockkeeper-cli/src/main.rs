//! The `lockkeeper` command: run a program under a lock, see who holds what.

mod args;
mod break_lock;
mod config;
mod demo;
mod doctor;
mod exit;
mod features;
mod help;
mod ls;
mod output;
mod run;
mod show;
mod store;
mod text;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use exit::{Failure, Result};
use store::Target;

fn main() -> ExitCode {
    // Helper processes are not for people: they are kept out of the command line's own grammar.
    let args = || std::env::args_os().skip(1);
    if let Some(code) = run::helper(args()).or_else(|| demo::helper(args())) {
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
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "lockkeeper", &mut script);
        output::data(&String::from_utf8_lossy(&script))?;
        return Ok(0);
    }
    if let Command::Demo(args) = &cli.command {
        return runtime()?.block_on(demo::demo(args, cli.url.as_deref()));
    }
    let config = config::load(cli.config.as_deref())?;
    let target = Target::choose(cli.url, config.clone());
    if let Command::Config(command) = cli.command {
        return config::config(command, &config, target);
    }
    if let Command::Run(args) = &mut cli.command {
        args.adopt(&config);
    }
    let target = target?;
    runtime()?.block_on(async {
        match &cli.command {
            Command::Run(args) => run::run(&target, args).await,
            Command::Ls(args) => ls::ls(&target, args).await,
            Command::Show(args) => show::show(&target, args).await,
            Command::Break(args) => break_lock::break_lock(&target, args).await,
            Command::Doctor(args) => doctor::doctor(&target, *args).await,
            Command::Completions { .. } | Command::Config(_) | Command::Demo(_) => Ok(0),
        }
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|it| Failure::system("the runtime cannot be started", &it))
}

/// Help and version go to standard output; everything else is bad usage.
fn not_understood(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    let words = error.render().to_string();
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        return output::data(&words).map_or_else(|it| it.code, |()| 0);
    }
    match words.strip_prefix("error: ") {
        Some(words) => output::say_raw(&Failure::new(exit::USAGE, words).lines()),
        None => output::say_raw(&words),
    }
    exit::USAGE
}
