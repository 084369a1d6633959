//! `lockkeeper once`: run the command, unless it was done for this tick before.

use std::io::IsTerminal as _;

use lockkeeper::Config;

use crate::args;
use crate::exit::{self, Failure, Result};
use crate::run::acquire::Acquired;
use crate::run::{Ending, Scene, finish, hold};
use crate::store::Target;
use crate::{output, text};

/// Run a command once for each tick.
pub(crate) async fn once(target: &Target, args: &args::Once, config: &Config) -> Result<u8> {
    let (run, tick_name) = (args.run(config), args.tick()?);
    let wanted = run.wanted()?;
    let mut scene = Scene::open(target).await?;
    let mut job = scene.locker.once(&wanted[0].key, tick_name);
    if let Some(remember) = args.remember {
        job = job.remember(remember);
    }
    let tick = job.tick().map_err(|it| target.failure(it))?;
    let is_done = async || tick.is_done().await.map_err(|it| target.failure(it));
    if is_done().await? {
        return Ok(done_before(wanted[0].key.as_str(), tick_name));
    }
    let held = match scene.acquire(&wanted, &run).await? {
        Acquired::Held(held) => held,
        Acquired::Interrupted(signal) => return Ok(exit::of_signal(signal)),
    };
    // Somebody may have done it before we had the lock.
    if is_done().await? {
        let _ = held.release().await;
        return Ok(done_before(wanted[0].key.as_str(), tick_name));
    }
    let ended = hold(&held, &wanted, &run, &scene.fault, &mut scene.signals).await;
    let is_well = matches!(ended, Ok(Ending::Ended(0))) && held.is_valid();
    let written = if is_well { tick.set_done().await } else { Ok(()) };
    let released = held.release().await;
    let code = finish(&wanted, ended?, released, &scene.fault)?;
    written.map_err(|error| {
        let text = format!("the command ended well, but that cannot be written down: {error}");
        Failure::new(exit::UNREACHABLE, text)
            .or_hint(|| "the tick is open: the command may be run again for it".into())
    })?;
    Ok(code)
}

/// A person wants to know; a log of every host does not.
fn done_before(name: &str, tick: &str) -> u8 {
    if std::io::stderr().is_terminal() {
        output::say(&format!("{} was done for {} before", text::quoted(name), text::quoted(tick)));
    }
    0
}
