//! Where those of one barrier meet: the memo in which they are written down, and what can be done with it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::api::barrier::presence::first_absent;
use crate::api::barrier::sheet::{Arrival, Breach, LIST, Sheet, Verdict};
use crate::api::limits::memo_key;
use crate::engine::background::InRuntime;
use crate::engine::memo::{Change, MemoOf};
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::key::Key;

/// What stands before the name of a barrier: `left:`, the number of a round, and a colon.
const BEFORE_NAME: usize = 26;

/// One barrier, as everybody who comes to it must name it.
#[derive(Clone)]
pub(super) struct Venue {
    pub(super) engine: Arc<Engine>,
    pub(super) name: String,
    pub(super) parties: u32,
    pub(super) ttl: Duration,
    pub(super) remember: Duration,
}

impl Venue {
    pub(super) async fn in_runtime<T>(&self, future: impl Future<Output = T>) -> T {
        InRuntime::new(&self.engine.background, future).await
    }

    pub(super) async fn look(&self, memo: &MemoOf) -> Result<(Sheet, Option<u64>)> {
        let there = self.in_runtime(memo.read(&self.engine)).await?;
        let sheet = self.read(there.as_ref().map(|it| it.value.as_slice()))?;
        Ok((sheet, there.map(|it| it.version)))
    }

    pub(super) fn read(&self, there: Option<&[u8]>) -> Result<Sheet> {
        Sheet::read(there, &self.name, self.parties)
    }

    pub(super) fn memo(&self) -> Result<MemoOf> {
        let Venue { engine, name, parties, ttl, remember } = self;
        if *parties == 0 {
            return Err(Error::invalid("a barrier for no parties keeps nobody; name at least one"));
        }
        LIST.check(*parties)?;
        if ttl.is_zero() || remember.is_zero() {
            return Err(Error::invalid("a barrier whose ttl or memory is zero never opens"));
        }
        Key::new(name)?;
        engine.start()?;
        let key = memo_key("the name of a barrier", name.len(), BEFORE_NAME, &format!("barrier:{name}"))?;
        MemoOf::new(engine, key, "let parties wait for each other")
    }

    /// The first of these who gives no sign of life.
    pub(super) async fn first_dead<'a>(
        &self,
        asked: impl Iterator<Item = &'a Arrival>,
    ) -> Result<Option<&'a Arrival>> {
        self.in_runtime(first_absent(&self.engine, asked)).await
    }

    /// Break a round in which this one still waits, if it has no verdict yet.
    pub(super) async fn end_round(
        &self,
        memo: &MemoOf,
        round: u64,
        token: &str,
        breach: Breach,
    ) -> Result<()> {
        let decide = |there: Option<&[u8]>| {
            let mut sheet = self.read(there)?;
            if sheet.round() != round || !sheet.has_arrived(token) {
                return Ok(Change::Leave(()));
            }
            sheet.decide(Verdict::Broken(breach));
            Ok(Change::Write(sheet.text().into_bytes(), self.remember))
        };
        memo.change(&self.engine, decide).await.map(drop)
    }
}
