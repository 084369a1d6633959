//! What two-phase commit left in doubt, told by whoever knows, and asked for at most once in a while.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Moment};
use tokio::sync::Mutex;

/// How often whoever knows is asked at most: it asks every participant.
pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// What [`Serve::two_phase`](crate::Serve::two_phase) tells the console.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper_serve::{InDoubt, InDoubts};
///
/// let mut one = InDoubt::new("lk-7");
/// one.state = "undecided".into();
/// one.begun = Some(Duration::from_secs(1_795_000_000));
/// one.branches = vec![("orders".into(), "prepared".into())];
/// one.commands = vec!["lockkeeper 2pc recover".into()];
/// let told = InDoubts::new(vec![one], vec!["damage: …".into()]);
/// assert_eq!(told.transactions.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InDoubts {
    /// Transactions that are not finished.
    pub transactions: Vec<InDoubt>,
    /// Damages, dangers, and participants that could not be asked, each in a sentence.
    pub troubles: Vec<String>,
}

impl InDoubts {
    /// What is to be told.
    pub fn new(transactions: Vec<InDoubt>, troubles: Vec<String>) -> Self {
        InDoubts { transactions, troubles }
    }
}

/// A transaction of which some branch is prepared or has not followed the decision.
///
/// ```
/// assert!(lockkeeper_serve::InDoubt::new("lk-7").branches.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InDoubt {
    /// Its name.
    pub id: String,
    /// What was decided, in a word.
    pub state: String,
    /// The word that its caller gave along.
    pub note: String,
    /// When it was begun, counted from 1970, if that is known.
    pub begun: Option<Duration>,
    /// Whether somebody alive holds its seat, who finishes it without help.
    pub attended: bool,
    /// Each participant, and how its branch is.
    pub branches: Vec<(String, String)>,
    /// What an operator can type. It is shown to be copied, never run.
    pub commands: Vec<String>,
}

impl InDoubt {
    /// A transaction of which nothing is known but its name.
    pub fn new(id: impl Into<String>) -> Self {
        InDoubt { id: id.into(), ..InDoubt::default() }
    }
}

pub(crate) type Answer = Result<InDoubts, String>;
type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Whoever knows, and what it said last.
pub(crate) struct Doubts {
    ask: Box<dyn Fn() -> Asking + Send + Sync>,
    clock: Clock,
    last: Mutex<Option<(Moment, Arc<Answer>)>>,
}

impl fmt::Debug for Doubts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doubts")
    }
}

impl Doubts {
    pub(crate) fn new<A>(ask: impl Fn() -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output = Answer> + Send + 'static,
    {
        Doubts { ask: Box::new(move || Box::pin(ask())), clock: Clock::boot(), last: Mutex::default() }
    }

    /// What is in doubt, not older than a few seconds.
    pub(crate) async fn look(&self) -> Arc<Answer> {
        // Held while it is asked: whoever comes meanwhile gets the same answer.
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        if let Some((_, told)) = last.as_ref().filter(|it| now - it.0 < EVERY) {
            return told.clone();
        }
        let told = Arc::new((self.ask)().await);
        *last = Some((self.clock.now(), told.clone()));
        told
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn whoever_knows_is_asked_once_in_a_while() {
        let asked = Arc::<AtomicUsize>::default();
        let counted = asked.clone();
        let clock = Clock::virtual_from(Duration::from_secs(1));
        let doubts = Doubts::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(InDoubts::default()))
        });
        let doubts = Doubts { clock: clock.clone(), ..doubts };
        doubts.look().await;
        doubts.look().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1, "asked once, however many look");
        clock.advance_by(EVERY);
        doubts.look().await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
