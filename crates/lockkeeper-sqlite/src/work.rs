//! What can be asked of the file, and one piece of it with whoever waits for the answer.

use std::fmt;

use lockkeeper_core::Moment;
use lockkeeper_core::backend;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::fault::{Result, Trouble};
use crate::line::Tx;
use crate::options::SqliteOptions;
use crate::wake::Watch;
use crate::worker::thread_ended;

/// A look at the file outside a write transaction.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) options: &'a SqliteOptions,
    pub(crate) now: Moment,
}

/// What can be asked of the file. A verb may run more than once until its transaction commits.
pub(crate) trait Verb: fmt::Debug + Send + 'static {
    type Answer: Send + 'static;
    /// What the verb does, for faults.
    const DOING: &'static str;
    /// Goes before all others that wait: what is held already must not be lost because others ask for more.
    const IS_URGENT: bool = false;
    /// Its caller may run it itself: it touches a few rows and is asked for by somebody who waits.
    const IS_SHORT: bool = false;

    /// It must outlive a power cut, whatever was chosen.
    const IS_LASTING: bool = false;

    /// Answer without writing, if that is possible.
    fn look(&mut self, _look: &Look<'_>) -> Result<Option<Self::Answer>> {
        Ok(None)
    }

    /// Do it.
    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer>;

    /// Whether it is likely to let somebody in. If it does so unexpectedly, its transaction is done again.
    fn may_grant(&self) -> bool {
        false
    }

    /// Whether it most likely only keeps its place in line. Then all others of the process are kept with it.
    fn keeps_a_place(&self) -> bool {
        false
    }
}

/// What the thread is sent.
pub(crate) enum Request {
    Work(Box<dyn Work>),
    Watch(Watch),
    /// A caller moved a line that somebody watches.
    Touched,
}

/// A verb with the one who waits for its answer, its type forgotten.
pub(crate) trait Work: Send {
    /// `true` if it is answered and done with.
    fn look(&mut self, look: &Look<'_>) -> Result<bool>;
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    fn is_urgent(&self) -> bool;
    fn may_grant(&self) -> bool;
    fn is_lasting(&self) -> bool;
    fn keeps_a_place(&self) -> bool;
    /// Tell what `run` found.
    fn finish(self: Box<Self>);
    /// Tell that it failed.
    fn fail(self: Box<Self>, trouble: &Trouble);
}

pub(crate) struct Asked<V: Verb> {
    verb: V,
    found: Option<V::Answer>,
    reply: Option<oneshot::Sender<backend::Result<V::Answer>>>,
}

impl<V: Verb> Asked<V> {
    pub(crate) fn new(verb: V, reply: Option<oneshot::Sender<backend::Result<V::Answer>>>) -> Self {
        Asked { verb, found: None, reply }
    }

    fn reply(&mut self, answer: backend::Result<V::Answer>) {
        if let Some(reply) = self.reply.take() {
            // Whoever went away does not need the answer.
            let _ = reply.send(answer);
        }
    }
}

impl<V: Verb> Work for Asked<V> {
    fn look(&mut self, look: &Look<'_>) -> Result<bool> {
        let answer = self.verb.look(look)?;
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.reply(Ok(answer));
        }
        Ok(is_answered)
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        self.found = Some(self.verb.run(tx)?);
        Ok(())
    }

    fn is_urgent(&self) -> bool {
        V::IS_URGENT
    }

    fn may_grant(&self) -> bool {
        self.verb.may_grant()
    }

    fn is_lasting(&self) -> bool {
        V::IS_LASTING
    }

    fn keeps_a_place(&self) -> bool {
        self.verb.keeps_a_place()
    }

    fn finish(mut self: Box<Self>) {
        let found = self.found.take().ok_or_else(|| thread_ended(V::DOING));
        self.reply(found);
    }

    fn fail(mut self: Box<Self>, trouble: &Trouble) {
        self.reply(Err(trouble.fault(V::DOING)));
    }
}
