//! `lockkeeper elect`: run the command while leading, and stand again after a loss.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper::{Campaign, Config, Error, Leadership};

use crate::args;
use crate::exit::{self, Result};
use crate::run::held::Held;
use crate::run::signals::Incoming;
use crate::run::{Ending, Scene, finish, hold};
use crate::store::Target;
use crate::{output, text};

/// Before a store that failed is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a signal may be kept waiting until the store has taken us out of its line.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Run a command while leading.
pub(crate) async fn elect(target: &Target, args: &args::Elect, config: &Config) -> Result<u8> {
    let run = args.run(config);
    let wanted = run.wanted()?;
    let role = text::quoted(wanted[0].key.as_str());
    let mut scene = Scene::open(target).await?;
    let mut campaign = scene.locker.campaign(&wanted[0].key, &args.value).ttl(run.ttl());
    if let Some(note) = &args.note {
        campaign = campaign.note(note);
    }
    loop {
        let held = match stand(&campaign, &mut scene).await? {
            Ok(leadership) => Held::Leads(leadership),
            Err(code) => return Ok(code),
        };
        let ended = hold(&held, &wanted, &run, &scene.fault, &mut scene.signals).await;
        // The command has ended: only now may another lead.
        let released = held.release().await;
        match ended? {
            Ending::Stopped(reason) => {
                let why = scene.fault.explain(reason);
                let lost = format!("the lead of {role} was lost: {why}; the command was stopped");
                if let Some(signal) = scene.signals.end() {
                    output::say(&lost);
                    return Ok(exit::of_signal(signal.as_raw()));
                }
                output::say(&format!("{lost}, standing again"));
            }
            ended @ Ending::Ended(_) => return finish(&wanted, ended, released, &scene.fault),
        }
    }
}

/// Wait until we lead, or for the code with which a signal ends the wait.
async fn stand(campaign: &Campaign, scene: &mut Scene<'_>) -> Result<std::result::Result<Leadership, u8>> {
    let won = {
        let mut won = pin!(win(campaign));
        loop {
            tokio::select! {
                biased;
                won = &mut won => break Ok(won),
                incoming = scene.signals.next() => {
                    if let Incoming::Ask(signal) = incoming {
                        break Err(signal);
                    }
                }
            }
        }
    };
    match won {
        Ok(won) => won.map(Ok).map_err(|it| scene.target.failure(it)),
        Err(signal) => {
            // Whoever stands behind us in line need not wait for our ttl. If the store does not answer, they must.
            let _ = scene.locker.shutdown(LEAVE_MAX).await;
            Ok(Err(exit::of_signal(signal.as_raw())))
        }
    }
}

/// A store that fails for a while is asked again: whoever wants to lead is there to stay.
async fn win(campaign: &Campaign) -> lockkeeper::Result<Leadership> {
    let mut has_told = false;
    loop {
        match campaign.win().await {
            Err(error @ (Error::Unavailable { .. } | Error::Lost { .. })) if error.is_transient() => {
                if !std::mem::replace(&mut has_told, true) {
                    output::say(&format!("{error}; standing again until it works"));
                }
                Clock::boot().sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}
