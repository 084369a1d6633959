//! Sessions for branches, opened while the branches before them work: connecting takes most of a transaction's time.

use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::office::Desk;
use crate::participant::Session;

/// A session that is being opened. Given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Dialing(JoinHandle<Result<Session>>);

impl Drop for Dialing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dialing {
    /// None if that failed. Whoever needs it tries once more, in its turn, and hears why.
    pub(crate) async fn session(mut self) -> Option<Session> {
        (&mut self.0).await.ok()?.ok()
    }
}

impl Desk {
    /// A session for a branch, in which [`Session::begin`] must come first. On the office's own runtime.
    pub(crate) async fn dial(&self, name: &str) -> Result<Session> {
        let participant = self.known(name).await?;
        let opened = self.handle.spawn(async move { participant.dial().await }).await;
        opened.map_err(|it| Error::unavailable("the office's runtime", it))?
    }

    /// The same for all branches at once, before their turn. Where there is only one nothing is gained, and whoever was not met
    /// yet is met in its turn.
    pub(crate) fn dial_all(&self, names: &[String]) -> Vec<Option<Dialing>> {
        let ahead = |name: &String| {
            let participant = self.participants.get(name).filter(|_| names.len() > 1 && self.is_met(name))?;
            let participant = participant.clone();
            Some(Dialing(self.handle.spawn(async move { participant.dial().await })))
        };
        names.iter().map(ahead).collect()
    }
}
