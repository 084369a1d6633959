//! `lockkeeper 2pc recover --watch` and `--wait`: the same again and again, and only what changes is told.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockkeeper::spi::Clock;
use lockkeeper::twophase::Survey;
use tokio::signal::unix::{SignalKind, signal};

use super::args::Recover;
use super::{Place, code_of, once, show};
use crate::exit::{self, Failure, Result};
use crate::output;
use crate::store::Target;

/// What was told of each transaction, damage and participant last.
type Told = BTreeMap<String, String>;

pub(super) async fn watch(target: &Target, place: &Place, args: &Recover) -> Result<u8> {
    let clock = Clock::boot();
    let until = args.wait.map(|it| clock.now().after(it));
    let stopped = |kind| signal(kind).map_err(|it| Failure::system("signals cannot be heard", &it));
    let (mut interrupt, mut terminate) =
        (stopped(SignalKind::interrupt())?, stopped(SignalKind::terminate())?);
    let (mut told, mut fault) = (Told::new(), String::new());
    loop {
        let code = match once(target, place).await {
            Ok(survey) => {
                fault.clear();
                if !tell(&survey, &mut told, args.json.json)? {
                    return Ok(code_of(&survey));
                }
                code_of(&survey)
            }
            // It may come back. What is wrong with the call does not change.
            Err(failure) if failure.code == exit::UNREACHABLE => {
                if fault != failure.text {
                    output::say_raw(&failure.lines());
                    fault.clone_from(&failure.text);
                }
                failure.code
            }
            Err(failure) => return Err(failure),
        };
        let is_over = until.is_some_and(|it| it <= clock.now());
        if !args.watch && (code == 0 || is_over) {
            return Ok(code);
        }
        tokio::select! {
            () = clock.sleep(args.every) => {}
            _ = interrupt.recv() => return Ok(code),
            _ = terminate.recv() => return Ok(code),
        }
    }
}

/// Tell what is new, and what is over. Whether anybody listens.
fn tell(survey: &Survey, told: &mut Told, json: bool) -> Result<bool> {
    let now: Told = show::lines(survey);
    if now == *told && !(told.is_empty() && json) {
        return Ok(true);
    }
    let mut text = String::new();
    if json {
        text = show::one_line(survey)?;
    } else {
        for (what, line) in now.iter().filter(|(what, line)| told.get(*what) != Some(line)) {
            let _ = writeln!(text, "{what} {line}");
        }
        for what in told.keys().filter(|it| !now.contains_key(*it)) {
            let _ = writeln!(text, "{what} is over");
        }
    }
    *told = now;
    output::is_heard(&text)
}
