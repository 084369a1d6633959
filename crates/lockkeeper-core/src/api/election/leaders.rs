//! What others see of an election: who leads, and that nobody does.

use std::sync::Arc;
use std::time::Duration;

use crate::api::limits::memo_key;
use crate::engine::background::InRuntime;
use crate::engine::memo::MemoOf;
use crate::engine::shared::Engine;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::spi::claim::Label;
use crate::spi::memos::Memo;

/// How often an observer looks by itself, where the store does not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What stands before the name of a role.
const BEFORE_NAME: &str = "leader:";

/// Where it is written who leads.
pub(super) fn memo_of(engine: &Engine, name: &str) -> Result<MemoOf> {
    Key::new(name)?;
    let key = memo_key("the name of a role", name.len(), BEFORE_NAME.len(), &format!("{BEFORE_NAME}{name}"))?;
    MemoOf::new(engine, key, "tell who leads")
}

/// Who leads, as the others see it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Leader, Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let leadership = locker.campaign("scheduler", "10.0.0.7:8080").win().await?;
/// let Some(Leader { value, holder, term, age, .. }) = locker.leader("scheduler").await? else { panic!("we lead") };
/// println!("{value} ({}, pid {}) leads in term {term}, for {age:?} at its last sign of life", holder.host, holder.pid);
/// # drop(leadership);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it proclaimed.
    pub value: String,
    /// Its term, which grows from leader to leader.
    pub term: Fence,
    /// Which process it is.
    pub holder: Label,
    /// How long it had led when it last gave a sign of life.
    pub age: Duration,
}

impl Leader {
    pub(super) fn text(&self) -> String {
        let Leader { value, term, holder, age } = self;
        let (host, pid, age) = (&holder.host, holder.pid, age.as_millis());
        format!("term={term}\npid={pid}\nage={age}\nhost={}\n\n{value}", host.replace('\n', " "))
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (head, value) = text.split_once("\n\n")?;
        let field = |name: &str| head.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        let term = Fence::from_u64(field("term")?.parse().ok()?);
        let holder = Label::new(field("host")?, field("pid")?.parse().ok()?, None, None);
        let age = Duration::from_millis(field("age")?.parse().ok()?);
        Some(Leader { value: value.to_owned(), term, holder, age })
    }

    /// Whether nothing of interest has changed.
    fn is_as(&self, other: &Leader) -> bool {
        self.term == other.term && self.value == other.value
    }
}

/// Sees who leads, and every change of it. Made by [`Locker::leaders`](crate::Locker::leaders).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// # use lockkeeper_core::{Locker, Memory};
/// # let locker = Locker::new(Memory::default());
/// let mut leaders = locker.leaders("scheduler")?;
/// assert!(leaders.next().await?.is_none()); // nobody leads: that is told, too
/// let leadership = locker.campaign("scheduler", "10.0.0.7:8080").win().await?;
/// assert_eq!(leaders.next().await?.expect("we lead").value, "10.0.0.7:8080");
/// leadership.resign().await?;
/// assert!(leaders.next().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Leaders {
    pub(super) engine: Arc<Engine>,
    memo: MemoOf,
    told: Told,
    /// The version of what was told not to be a leader's.
    foreign: Option<u64>,
}

/// What an observer was told last.
#[derive(Debug)]
enum Told {
    Nothing,
    Vacant,
    Leads(Leader),
}

impl Told {
    /// This leader, or none, is seen. Whether there is something to tell now.
    ///
    /// A term ends before the next begins. Whoever sees another one therefore knows that nobody led in between, however short
    /// that was, and tells it first: the new leader is told by the next look.
    fn sees(&mut self, seen: Option<Leader>) -> bool {
        *self = match (&*self, seen) {
            (Told::Vacant, None) => return false,
            (Told::Leads(told), Some(leader)) if told.is_as(&leader) => return false,
            (Told::Leads(told), Some(leader)) if told.term != leader.term => Told::Vacant,
            (_, None) => Told::Vacant,
            (_, Some(leader)) => Told::Leads(leader),
        };
        true
    }

    fn leader(&self) -> Option<Leader> {
        if let Told::Leads(leader) = self { Some(leader.clone()) } else { None }
    }
}

impl Leaders {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Result<Self> {
        engine.start()?;
        let memo = memo_of(&engine, name)?;
        Ok(Leaders { engine, memo, told: Told::Nothing, foreign: None })
    }

    /// Who leads now.
    pub(crate) async fn look(&self) -> Result<Option<Leader>> {
        self.leader_in(self.read().await?.as_ref())
    }

    async fn read(&self) -> Result<Option<Memo>> {
        InRuntime::new(&self.engine.background, self.memo.read(&self.engine)).await
    }

    fn leader_in(&self, memo: Option<&Memo>) -> Result<Option<Leader>> {
        let Some(memo) = memo else { return Ok(None) };
        let leader = Leader::read(&memo.value).ok_or_else(|| {
            let role = self.memo.key.as_str().strip_prefix(BEFORE_NAME).unwrap_or_default();
            Error::invalid(format!(
                "what is kept for the role \"{role}\" is not a leader's, or of a newer version: nobody can tell from it who leads"
            ))
        });
        leader.map(Some)
    }

    /// Who leads, at once the first time, and then whenever it is another, or another value, or nobody. Between two leaders
    /// nobody leads, and that is always told, however soon the second came. A leader that came and went between two looks, with its vacancy,
    /// may pass unseen.
    ///
    /// # Cancel safety
    /// Safe to drop: nothing is told that was not answered.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store cannot be seen: then nobody knows who leads. Ask again. [`Error::Invalid`] if what
    /// is kept there is not a leader's, told once.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let memo = self.read().await?;
            let version = memo.as_ref().map(|it| it.version);
            match self.leader_in(memo.as_ref()) {
                Ok(leader) => {
                    if self.told.sees(leader) {
                        return Ok(self.told.leader());
                    }
                }
                Err(error) if self.foreign != version => {
                    self.foreign = version;
                    return Err(error);
                }
                // As it was told before.
                Err(_) => {}
            }
            let until = self.engine.clock.now().after(LOOK_AGAIN);
            let changed = self.memo.changed(&self.engine, version, until);
            InRuntime::new(&self.engine.background, changed).await?;
        }
    }
}
