//! The ways to sell a piece, from careless to careful.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper::sql::rowlock::{Attempts, Retry};
use lockkeeper::{Error, Guard, Locker};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

use crate::books::{Books, Outcome, Sale, Trouble};
use crate::counting::Trips;
use crate::instance::Task;
use crate::locks;
use crate::plain::PlainLock;

/// How one process and another keep out of each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// Read the stock, write it back one less. Nobody keeps anybody out
    NoLock,
    /// Write it back only if nobody else has, by a version number; try again otherwise
    Optimistic,
    /// Read and write in one transaction that locks the row
    Pessimistic,
    /// One statement that takes a piece if there is one
    OneStatement,
    /// A Redis lock as in the books: set if absent, ask again every 10 ms, delete if it is ours
    PlainLock,
    /// A mutex in each process, then a lock in the store, for every buyer anew
    TwoTier,
    /// A lock of this library: two lines, appointed by whoever leaves, handed on
    Lockkeeper,
}

/// How long a buyer waits for a lock.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// How long the store may take to confirm the end.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// How often a buyer tries again when somebody else was faster, and after which pauses.
const RETRY: Retry = Retry::times(50);

impl Strategy {
    pub(crate) const ALL: [Strategy; 7] = [
        Strategy::NoLock,
        Strategy::Optimistic,
        Strategy::Pessimistic,
        Strategy::OneStatement,
        Strategy::PlainLock,
        Strategy::TwoTier,
        Strategy::Lockkeeper,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Strategy::NoLock => "no-lock",
            Strategy::Optimistic => "optimistic",
            Strategy::Pessimistic => "pessimistic",
            Strategy::OneStatement => "one-statement",
            Strategy::PlainLock => "plain-lock",
            Strategy::TwoTier => "two-tier",
            Strategy::Lockkeeper => "lockkeeper",
        }
    }

    /// Whether it promises not to sell more than there is.
    pub(crate) fn promises(self) -> bool {
        self != Strategy::NoLock
    }
}

/// What a buyer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Sold,
    SoldOut,
    /// Neither: the wait was over, or others were faster too often.
    Failed,
}

/// A shop that sells by one strategy.
pub(crate) struct Seller {
    pub(crate) books: Books,
    way: Way,
    /// Trips to the store of locks.
    pub(crate) trips: Arc<Trips>,
    /// Seen once, true for good: stock never grows. Whoever waits for a turn stops waiting.
    sold_out: watch::Sender<bool>,
}

enum Way {
    /// The database alone.
    Database(Sale),
    Plain(PlainLock),
    TwoTier(Mutex<()>, Locker, String),
    Lockkeeper(Locker, String),
}

impl Seller {
    pub(crate) async fn open(task: &Task) -> Result<Self, Trouble> {
        let trips = Arc::new(Trips::default());
        let locker = async || {
            // The demo wants to see everybody in line; a shop would rather refuse some.
            let builder = locks::locker(&task.url, trips.clone()).await?.waiters_max(usize::MAX);
            Ok::<_, Trouble>(builder.build())
        };
        let way = match task.strategy {
            Strategy::NoLock => Way::Database(Sale::Careless),
            Strategy::Optimistic => Way::Database(Sale::IfUnchanged),
            Strategy::Pessimistic => Way::Database(Sale::RowLocked),
            Strategy::OneStatement => Way::Database(Sale::OneStatement),
            Strategy::PlainLock => {
                let url = locks::plain_redis(&task.url)?;
                Way::Plain(PlainLock::open(url, &task.lock, trips.clone()).await?)
            }
            Strategy::TwoTier => Way::TwoTier(Mutex::new(()), locker().await?, task.lock.clone()),
            Strategy::Lockkeeper => Way::Lockkeeper(locker().await?, task.lock.clone()),
        };
        let books = Books::open(&task.db, task.tables.clone())?;
        books.warm_up().await?;
        Ok(Seller { books, way, trips, sold_out: watch::Sender::new(false) })
    }

    /// Serve one buyer.
    pub(crate) async fn sell(&self, buyer: u32) -> Result<Answer, Trouble> {
        if self.is_over() {
            return Ok(Answer::SoldOut);
        }
        let answer = match &self.way {
            Way::Database(Sale::IfUnchanged) => self.until_unchanged(buyer).await?,
            Way::Database(sale) => self.once(*sale, buyer).await?,
            Way::Plain(lock) => {
                let until = Clock::boot().now().after(PATIENCE);
                match lock.acquire(until, || self.is_over()).await? {
                    None => self.gave_up(),
                    Some(held) => {
                        let answer = self.once(Sale::Careless, buyer).await;
                        held.release().await?;
                        answer?
                    }
                }
            }
            Way::TwoTier(mutex, locker, name) => match self.unless_over(mutex.lock()).await {
                None => Answer::SoldOut,
                Some(_first) => self.under_lock(locker, name, buyer).await?,
            },
            Way::Lockkeeper(locker, name) => self.under_lock(locker, name, buyer).await?,
        };
        if answer == Answer::SoldOut {
            self.sold_out.send_if_modified(|it| !std::mem::replace(it, true));
        }
        Ok(answer)
    }

    /// Give back everything before the process ends, or the next one waits for a dead one's ttl.
    pub(crate) async fn close(&self) -> Result<(), Trouble> {
        match &self.way {
            Way::TwoTier(_, locker, _) | Way::Lockkeeper(locker, _) => Ok(locker.shutdown(CLOSE_MAX).await?),
            Way::Database(_) | Way::Plain(_) => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        *self.sold_out.borrow()
    }

    /// Why a buyer stopped waiting.
    fn gave_up(&self) -> Answer {
        if self.is_over() { Answer::SoldOut } else { Answer::Failed }
    }

    /// Wait, but not for something that has lost its sense.
    async fn unless_over<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let mut sold_out = self.sold_out.subscribe();
        tokio::select! {
            biased;
            it = wait => Some(it),
            _ = sold_out.wait_for(|it| *it) => None,
        }
    }

    async fn under_lock(&self, locker: &Locker, name: &str, buyer: u32) -> Result<Answer, Trouble> {
        let wait = async { locker.lock(name).wait_at_most(PATIENCE).await };
        let guard: Guard = match self.unless_over(wait).await {
            None => return Ok(Answer::SoldOut),
            Some(Err(Error::TimedOut { .. })) => return Ok(Answer::Failed),
            Some(guard) => guard?,
        };
        let answer = guard.run(self.once(Sale::Careless, buyer)).await?;
        guard.release().await?;
        answer
    }

    async fn once(&self, sale: Sale, buyer: u32) -> Result<Answer, Trouble> {
        Ok(match self.books.sell(sale, buyer, || self.is_over()).await? {
            Outcome::Sold => Answer::Sold,
            Outcome::SoldOut => Answer::SoldOut,
            Outcome::Overtaken => Answer::Failed,
        })
    }

    async fn until_unchanged(&self, buyer: u32) -> Result<Answer, Trouble> {
        let mut attempts = Attempts::new(RETRY);
        loop {
            let answer = self.once(Sale::IfUnchanged, buyer).await?;
            if answer != Answer::Failed || attempts.lost().await.is_err() {
                return Ok(answer);
            }
        }
    }
}
