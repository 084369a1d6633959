//! `lockkeeper status` and `lockkeeper wait`: whether a lock is free, for scripts.

use std::time::Duration;

use lockkeeper::Key;
use lockkeeper::spi::{Clock, DynInspect};

use crate::args::{Status, WaitFor};
use crate::exit::{self, Failure, Result};
use crate::output;
use crate::store::Target;
use crate::{text, view};

/// Between two looks at a lock: often at first, then once a second.
const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn status(target: &Target, args: &Status) -> Result<u8> {
    let (key, store) = (args.key()?, target.open().await?);
    let state = look(target, &*store.inspect, &key).await?;
    if !args.quiet {
        output::data(&format!("{}\n", state.as_deref().unwrap_or("free")))?;
    }
    Ok(if state.is_none() { 0 } else { exit::BUSY })
}

pub(crate) async fn wait(target: &Target, args: &WaitFor) -> Result<u8> {
    let (key, store, clock) = (args.key()?, target.open().await?, Clock::boot());
    let (until, mut pause) = (clock.now().after(args.longest()), LOOK_FIRST);
    loop {
        let Some(state) = look(target, &*store.inspect, &key).await? else { return Ok(0) };
        let now = clock.now();
        if until <= now {
            let text = format!("the lock {} is not free yet", text::quoted(key.as_str()));
            return Err(Failure::new(exit::BUSY, text).or_hint(|| state));
        }
        clock.sleep(pause.min(until - now)).await;
        pause = (pause * 2).min(LOOK_MAX);
    }
}

/// Who is in the way, if anybody is.
async fn look(target: &Target, inspect: &dyn DynInspect, key: &Key) -> Result<Option<String>> {
    let found = inspect.show(key).await.map_err(|it| target.failure(it))?;
    Ok(found.as_ref().and_then(view::in_the_way))
}
