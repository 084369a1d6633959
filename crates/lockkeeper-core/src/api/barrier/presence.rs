//! The sign of life of one who waits at a barrier: a memo that lasts for its ttl and is written anew while it lives.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::api::barrier::sheet::Arrival;
use crate::engine::memo::{Change, MemoOf};
use crate::engine::shared::Engine;
use crate::error::Result;
use crate::key::Key;

/// We are here, until it is dropped.
pub(super) struct Presence {
    engine: Arc<Engine>,
    over: Arc<Notify>,
}

impl Presence {
    /// Say that we are here, and go on saying it.
    pub(super) async fn begin(engine: &Arc<Engine>, token: &str, ttl: Duration) -> Result<Self> {
        let memo = memo_of(engine, token)?;
        say(engine, &memo, ttl).await?;
        let (over, engine) = (Arc::new(Notify::new()), engine.clone());
        let presence = Presence { engine: engine.clone(), over: over.clone() };
        engine.clone().background.spawn_untracked(Box::pin(async move {
            let mut ended = std::pin::pin!(over.notified());
            while engine.clock.within(engine.clock.now().after(ttl / 3), ended.as_mut()).await.is_none() {
                // A store that fails is told again at the next beat.
                let _ = say(&engine, &memo, ttl).await;
            }
            // What cannot be removed ends by itself.
            let _ = memo.change::<()>(&engine, |_| Ok(Change::Remove)).await;
        }));
        Ok(presence)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // A fork has a copy of the one who listens, and of its runtime, which nobody moves.
        if self.engine.is_here() {
            self.over.notify_one();
        }
    }
}

async fn say(engine: &Engine, memo: &MemoOf, ttl: Duration) -> Result<()> {
    memo.change::<()>(engine, |_| Ok(Change::Write(b"here".to_vec(), ttl))).await.map(drop)
}

fn memo_of(engine: &Engine, token: &str) -> Result<MemoOf> {
    MemoOf::new(engine, Key::new(&format!("here:{token}"))?, "keep signs of life")
}

async fn is_here(engine: &Engine, token: &str) -> Result<bool> {
    Ok(memo_of(engine, token)?.read(engine).await?.is_some())
}

/// The first of these who has given no sign of life within its ttl. They are asked side by side.
pub(super) async fn first_absent<'a>(
    engine: &Engine,
    asked: impl Iterator<Item = &'a Arrival>,
) -> Result<Option<&'a Arrival>> {
    let mut open: Vec<_> = asked.map(|it| (it, Box::pin(is_here(engine, &it.token)))).collect();
    poll_fn(move |cx| {
        let mut at = 0;
        while let Some((arrival, question)) = open.get_mut(at) {
            match question.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(true)) => drop(open.swap_remove(at)),
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Some(*arrival))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if open.is_empty() { Poll::Ready(Ok(None)) } else { Poll::Pending }
    })
    .await
}
