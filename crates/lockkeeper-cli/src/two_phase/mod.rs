//! `lockkeeper 2pc`: what two-phase commit left in doubt, and what to do about it.

mod args;
mod show;
mod watch;

use std::io::{self, BufRead as _, IsTerminal as _};

use lockkeeper::Locker;
use lockkeeper::twophase::{
    Error, Fate, Finding, Left, Participant, Ruling, Survey, TransactionId, TwoPhase,
};

use crate::exit::{self, Failure, Result};
use crate::output;
use crate::store::Target;
use args::{Command, Resolve};
pub(crate) use args::{Place, TwoPhaseCommand};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid { .. } | Error::Unsupported { .. } => exit::USAGE,
            Error::Unavailable { .. } => exit::UNREACHABLE,
            _ => exit::NO,
        };
        Failure::new(code, error.to_string())
    }
}

pub(crate) async fn two_phase(target: &Target, args: &TwoPhaseCommand) -> Result<u8> {
    match &args.command {
        Command::Ls(args) => ls(target, &args.place, args.json.json).await,
        Command::Show(args) => one(target, args).await,
        Command::Recover(args) => recover(target, args).await,
        Command::Resolve(args) => resolve(target, args).await,
        Command::Forget(args) => forget(target, args).await,
    }
}

/// A log that is there, and the participants, with the locks of `--url`. Nothing is asked of a participant yet.
async fn setup(target: &Target, place: &Place) -> Result<TwoPhase> {
    opened(target, place, false).await
}

/// As [`setup`]; with `make` a log is made if there is none.
async fn opened(target: &Target, place: &Place, make: bool) -> Result<TwoPhase> {
    let place = placed(target, place)?;
    log_of(&place)?;
    let locker = target.open().await?.locker.build();
    setup_with(&locker, &place, make).await
}

/// What was given, and what the settings say where nothing was.
pub(crate) fn placed(target: &Target, place: &Place) -> Result<Place> {
    let mut place = place.clone();
    let Some(settings) = target.config().two_phase()? else { return Ok(place) };
    place.log = place.log.filter(|it| !it.is_empty()).or(settings.log);
    let given = |name: &str| place.participants.iter().any(|it| it.split('=').next() == Some(name));
    let others = settings.participants.iter().filter(|it| !given(it.0));
    let others: Vec<String> = others.map(|(name, url)| format!("{name}={url}")).collect();
    place.participants.extend(others);
    Ok(place)
}

/// The log that is named.
fn log_of(place: &Place) -> Result<&str> {
    place.log.as_deref().filter(|it| !it.is_empty()).ok_or_else(|| {
        let text = "no log is named";
        Failure::new(exit::USAGE, text).or_hint(|| {
            "name it with --log sqlite:PATH, postgres://… or mysql://…, with LOCKKEEPER_2PC_LOG, or under [two_phase] in \
             lockkeeper.toml"
                .into()
        })
    })
}

async fn setup_with(locker: &Locker, place: &Place, make: bool) -> Result<TwoPhase> {
    let log = log_of(place)?;
    // By default not one that is made now, in which nothing is in doubt.
    let mut setup =
        if make { TwoPhase::open(log, locker).await? } else { TwoPhase::open_existing(log, locker).await? };
    for it in &place.participants {
        let wrong = || {
            Failure::new(
                exit::USAGE,
                "a participant is given as NAME=URL, such as orders=postgres://db-1/orders",
            )
        };
        let (name, url) = it.split_once('=').ok_or_else(wrong)?;
        setup = setup.participant(name, Participant::of_url(url)?);
    }
    Ok(setup)
}

/// What the doctor says of participants and of the log, if one is named that is there; and of whom.
pub(crate) async fn findings(target: &Target) -> Result<Vec<(String, Finding)>> {
    let place = placed(target, &Place::from_variables())?;
    if place.log.is_none() || place.participants.is_empty() {
        return Ok(Vec::new());
    }
    let survey = survey(target, &place).await?;
    let silent = survey.unreachable.into_iter().map(|it| {
        let what = format!("it cannot be asked: {}", it.why);
        let (so, remedy) = ("what it has prepared stays so", "start it, correct its URL, or name it");
        (it.participant, Finding::danger(what, so, remedy))
    });
    // The log stands there under a name that no participant has.
    let named = |whose: String| if whose == "the log" { whose } else { format!("participant {whose}") };
    Ok(survey.findings.into_iter().chain(silent).map(|(whose, it)| (named(whose), it)).collect())
}

async fn survey(target: &Target, place: &Place) -> Result<Survey> {
    Ok(setup(target, place).await?.survey().await?)
}

/// What is in doubt, for the console and its meters.
#[cfg(feature = "serve")]
pub(crate) async fn in_doubt(
    locker: &Locker,
    meters: &lockkeeper::Meters,
    place: &Place,
) -> std::result::Result<lockkeeper_serve::InDoubts, String> {
    let survey = async { Ok::<_, Failure>(setup_with(locker, place, false).await?.survey().await?) };
    let survey = survey.await;
    meters.in_doubt(survey.as_ref().ok());
    survey.map(|it| show::for_console(&it)).map_err(|it| it.lines())
}

/// Nothing left is 0, only what somebody alive works on is 75, anything else 1.
fn code_of(survey: &Survey) -> u8 {
    let unattended = survey.transactions.iter().any(|it| !it.attended);
    if unattended || !survey.damages.is_empty() || !survey.unreachable.is_empty() {
        return exit::NO;
    }
    if survey.transactions.is_empty() { 0 } else { exit::BUSY }
}

async fn ls(target: &Target, place: &Place, json: bool) -> Result<u8> {
    let survey = survey(target, place).await?;
    if json {
        output::json(&show::Everything::of(&survey))?;
    } else if survey.transactions.is_empty() {
        output::say("no transaction is in doubt");
    } else {
        output::data(&show::table(&survey))?;
    }
    if !json {
        show::say_beside(&survey, &placed(target, place)?);
    }
    Ok(code_of(&survey))
}

async fn one(target: &Target, args: &args::Named) -> Result<u8> {
    let id = id(&args.id)?;
    let mut survey = survey(target, &args.place).await?;
    let verdict = setup(target, &args.place).await?.verdict(&id).await?;
    survey.transactions.retain(|it| it.id == id);
    survey.damages.retain(|it| it.id == id);
    if args.json.json {
        output::json(&show::One::of(&id, &verdict, &survey))?;
    } else {
        output::data(&show::story(&id, &verdict, &survey))?;
    }
    Ok(code_of(&survey))
}

/// Without the log only those can be finished of which somebody has committed.
async fn without_log(target: &Target, args: &args::Recover, lost: &str) -> Result<u8> {
    let place = &args.place;
    let look = async |dry_run| {
        Ok::<_, Failure>(opened(target, place, true).await?.recover_without_log(lost, dry_run).await?)
    };
    let mut orphans = look(true).await?;
    let commits = orphans.iter().filter(|it| it.fate == Fate::Commit).count();
    if !args.dry_run && commits > 0 {
        output::say_raw(&show::orphans(&orphans, true));
        if !args.yes
            && !agreed(lost, &format!("{commits} transactions of the lost log {lost} will be committed."))?
        {
            output::say("nothing was changed");
            return Ok(exit::NO);
        }
        orphans = look(false).await?;
    }
    if args.json.json {
        output::json(&show::Orphans::of(&orphans))?;
    } else if orphans.is_empty() {
        output::say(&format!("no branch of the log {lost} is prepared, and none has committed alone"));
    } else {
        output::data(&show::orphans(&orphans, args.dry_run))?;
    }
    let left = orphans.iter().any(|it| args.dry_run || it.fate != Fate::Commit);
    Ok(if left { exit::NO } else { 0 })
}

/// One round: finish what can be finished, and look at the rest.
async fn once(target: &Target, place: &Place) -> Result<Survey> {
    setup(target, place).await?.recover().await?;
    survey(target, place).await
}

async fn recover(target: &Target, args: &args::Recover) -> Result<u8> {
    if let Some(lost) = &args.without_log {
        return without_log(target, args, lost).await;
    }
    if args.watch || args.wait.is_some() {
        return watch::watch(target, &args.place, args).await;
    }
    if !args.dry_run {
        let (left, _) = setup(target, &args.place).await?.recover().await?;
        if !args.json.json {
            say_left(&left);
        }
    }
    let survey = survey(target, &args.place).await?;
    if args.json.json {
        output::json(&show::Everything::of(&survey))?;
        return Ok(code_of(&survey));
    }
    for it in &survey.transactions {
        let todo = show::todo(it);
        output::data(&format!("{} {todo}\n", it.id))?;
    }
    if survey.transactions.is_empty() {
        output::say("nothing is left to recover");
    }
    show::say_beside(&survey, &placed(target, &args.place)?);
    Ok(code_of(&survey))
}

fn say_left(left: &[Left]) {
    for it in left {
        output::say(&format!("left: {it}"));
    }
}

async fn resolve(target: &Target, args: &Resolve) -> Result<u8> {
    let id = id(&args.id)?;
    let ruling = if args.commit { Ruling::Commit } else { Ruling::Abort };
    let before = survey(target, &args.place).await?;
    let doubt = before.transactions.iter().find(|it| it.id == id);
    let Some(doubt) = doubt else {
        return Err(Failure::new(exit::USAGE, format!("{id} is not in doubt; nothing was changed")));
    };
    if doubt.attended {
        let text =
            format!("somebody holds the seat {} of {id} and finishes it; nothing was changed", id.seat());
        return Err(Failure::new(exit::BUSY, text).or_hint(|| "stop that process first".into()));
    }
    let whom = args.branch.as_ref().map_or_else(|| String::from("everywhere"), |it| format!("at {it}"));
    let question = format!(
        "{id} will be told to {ruling} {whom}. If a branch has done otherwise, they differ for ever."
    );
    if !args.yes && !agreed(id.as_str(), &question)? {
        output::say("nothing was changed");
        return Ok(exit::NO);
    }
    let setup = setup(target, &args.place).await?;
    let left = match &args.branch {
        None => setup.resolve(&id, ruling, args.against_the_log).await?,
        Some(name) => setup.resolve_branch(&id, name, ruling, args.against_the_log).await?,
    };
    say_left(&left);
    if left.is_empty() {
        output::say(&format!("{id} was told to {ruling} {whom}"));
    }
    Ok(if left.is_empty() { 0 } else { exit::NO })
}

/// Whoever may split a transaction types a name.
fn agreed(name: &str, question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let text = "this may split a transaction, and nobody can be asked";
        return Err(Failure::new(exit::USAGE, text).or_hint(|| "say --yes if you mean it".into()));
    }
    output::say_raw(&format!("{question}\nType {name} to go on: "));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && answer.trim() == name)
}

async fn forget(target: &Target, args: &args::Forget) -> Result<u8> {
    let (id, place) = (id(&args.named.id)?, &args.named.place);
    if args.give_up {
        return give_up(target, args, &id).await;
    }
    let forgotten = setup(target, place).await?.forget(&id).await?;
    output::say(&if forgotten {
        format!("{id} is forgotten")
    } else {
        format!("the log has no decision about {id}")
    });
    Ok(0)
}

/// Its participants are lost for good.
async fn give_up(target: &Target, args: &args::Forget, id: &TransactionId) -> Result<u8> {
    let question =
        format!("Whoever has not heard of {id} will not be told any more, and is kept as a damage.");
    if !args.yes && !agreed(id.as_str(), &question)? {
        output::say("nothing was changed");
        return Ok(exit::NO);
    }
    let given_up = setup(target, &args.named.place).await?.give_up(id).await?;
    output::say(&match given_up.join(", ") {
        none if none.is_empty() => format!("everybody has heard of {id}; it is finished"),
        names => format!("{id} is given up at {names}, and kept as a damage"),
    });
    Ok(0)
}

fn id(text: &str) -> Result<TransactionId> {
    Ok(text.parse::<TransactionId>()?)
}
