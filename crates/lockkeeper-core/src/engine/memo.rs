//! Reading and writing memos through a store that may fail for a moment.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::spi::backend;
use crate::spi::memos::{DynMemos, Memo, Swap, VALUE_BYTES_MAX};

/// Before a store that failed is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// The memo of one key.
#[derive(Clone, Debug)]
pub(crate) struct MemoOf {
    memos: Arc<dyn DynMemos>,
    pub(crate) key: Key,
}

/// What to do with a memo that was read.
pub(crate) enum Change<T> {
    /// Write this, kept for so long.
    Write(Vec<u8>, Duration),
    /// Remove it.
    Remove,
    /// Leave it, and answer this.
    Leave(T),
}

/// What became of a change.
pub(crate) enum Changed<T> {
    Written,
    Left(T),
}

impl MemoOf {
    /// # Errors
    /// [`Error::Unsupported`] if the store keeps no memos, [`Error::Forked`] in a fork.
    pub(crate) fn new(engine: &Engine, key: Key, what: &str) -> Result<Self> {
        engine.check_process()?;
        let name = engine.profile.name;
        let memos = engine.backend.memos_dyn().ok_or_else(|| {
            Error::unsupported(name, format!("{what}: it keeps nothing but locks; use another store"))
        })?;
        Ok(MemoOf { memos, key })
    }

    // Whoever keeps this may have been forked since: the connection is the parent's, and no thread moves it here.
    pub(crate) async fn read(&self, engine: &Engine) -> Result<Option<Memo>> {
        engine.check_process()?;
        patiently(engine, || self.memos.read(&self.key)).await
    }

    /// Read, decide and write, until nobody came in between.
    ///
    /// `decide` is asked again after a conflict, and after an answer that was lost: then it may find what it wrote
    /// itself, and must know it.
    pub(crate) async fn change<T>(
        &self,
        engine: &Engine,
        mut decide: impl FnMut(Option<&[u8]>) -> Result<Change<T>>,
    ) -> Result<Changed<T>> {
        let mut give_up = Moment::NEVER;
        loop {
            let seen = self.read(engine).await?;
            let (version, value) =
                (seen.as_ref().map(|it| it.version), seen.as_ref().map(|it| it.value.as_slice()));
            let (value, keep) = match decide(value)? {
                Change::Leave(answer) => return Ok(Changed::Left(answer)),
                Change::Remove if seen.is_none() => return Ok(Changed::Written),
                Change::Remove => (Vec::new(), Duration::ZERO),
                Change::Write(value, keep) => (value, keep),
            };
            if VALUE_BYTES_MAX < value.len() {
                let len = value.len();
                return Err(Error::invalid(format!(
                    "{len} bytes are too many to keep; {VALUE_BYTES_MAX} are allowed"
                )));
            }
            match self.memos.swap(&self.key, version, &value, keep).await {
                Ok(Swap::Done(_)) => return Ok(Changed::Written),
                Ok(Swap::Conflict(_)) => {}
                Err(fault) if fault.is_transient() && engine.clock.now() < give_up => {
                    give_up = give_up.min(engine.clock.now().after(engine.settings.outage_max));
                    engine.clock.sleep(PAUSE).await;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Wait until reading again is worthwhile, at most until then.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork, where nobody would tell.
    pub(crate) async fn changed(&self, engine: &Engine, seen: Option<u64>, until: Moment) -> Result<()> {
        engine.check_process()?;
        engine.clock.within(until, self.memos.changed(&self.key, seen)).await;
        Ok(())
    }
}

/// Ask until the store answers, within the patience that the locker has with it.
async fn patiently<T, F: Future<Output = backend::Result<T>>>(
    engine: &Engine,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    let give_up = engine.clock.now().after(engine.settings.outage_max);
    let mut pause = PAUSE;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(fault) if fault.is_transient() && engine.clock.now() < give_up => {}
            Err(fault) => return Err(fault.into()),
        }
        engine.clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
