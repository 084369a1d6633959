//! The ways to sell a piece, from careless to careful.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::spi::Clock;
use lockkeeper::{Error, Locker};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::demo::books::{Books, Trouble};
use crate::demo::counting::{Counting, Trips};
use crate::demo::plain::PlainLock;

/// How one process and another keep out of each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// Read the stock, write it back one less. Nobody keeps anybody out
    NoLock,
    /// Write it back only if nobody else has, by a version number; try again otherwise
    Optimistic,
    /// Read and write in one transaction that keeps others out of the database
    Pessimistic,
    /// One statement that takes a piece if there is one
    OneStatement,
    /// A lock as in the books: set if absent, ask again every 10 ms, delete if it is ours
    PlainLock,
    /// The same behind a mutex in each process, so that only one buyer of a process asks
    TwoTier,
    /// A lock of this library: two lines, appointed by whoever leaves, handed on
    Lockkeeper,
}

/// How long a buyer waits for a lock.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a buyer tries again when somebody else was faster.
const RETRIES_MAX: u32 = 50;
const LOCK: &str = "flash-sale:product:1";

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
    /// Seen once, true for good: stock never grows.
    pub(crate) sold_out: AtomicBool,
}

enum Way {
    NoLock,
    Optimistic,
    Pessimistic,
    OneStatement,
    Plain(PlainLock),
    TwoTier(Mutex<()>, PlainLock),
    Lockkeeper(Locker),
}

impl Seller {
    pub(crate) async fn open(strategy: Strategy, folder: &std::path::Path) -> Result<Self, Trouble> {
        let trips = Arc::new(Trips::default());
        let plain = || PlainLock::open(folder, trips.clone());
        let way = match strategy {
            Strategy::NoLock => Way::NoLock,
            Strategy::Optimistic => Way::Optimistic,
            Strategy::Pessimistic => Way::Pessimistic,
            Strategy::OneStatement => Way::OneStatement,
            Strategy::PlainLock => Way::Plain(plain()?),
            Strategy::TwoTier => Way::TwoTier(Mutex::new(()), plain()?),
            Strategy::Lockkeeper => {
                let options = lockkeeper::sqlite::SqliteOptions::new(folder.join("locks.db"));
                let backend = lockkeeper::sqlite::SqliteBackend::open(options).await?;
                let locker = Locker::builder(Counting::new(backend, trips.clone())).waiters_max(usize::MAX);
                Way::Lockkeeper(locker.build())
            }
        };
        Ok(Seller { books: Books::open(folder)?, way, trips, sold_out: AtomicBool::new(false) })
    }

    /// Sell one piece to this buyer.
    pub(crate) async fn sell(&self, buyer: u32) -> Result<Answer, Trouble> {
        let books = &self.books;
        match &self.way {
            Way::NoLock => self.carelessly(buyer).await,
            Way::Pessimistic => Ok(sold(books.sell_in_a_transaction(buyer).await?)),
            Way::OneStatement => Ok(sold(books.sell_by_one_statement(buyer).await?)),
            Way::Optimistic => self.optimistically(buyer).await,
            Way::Plain(lock) => self.under_plain(lock, buyer).await,
            Way::TwoTier(mutex, lock) => {
                let _first = mutex.lock().await;
                self.under_plain(lock, buyer).await
            }
            Way::Lockkeeper(locker) => match locker.lock(LOCK).wait_at_most(PATIENCE).await {
                Err(Error::TimedOut { .. }) => Ok(Answer::Failed),
                Err(error) => Err(error.into()),
                Ok(guard) => {
                    let answer = guard.run(self.carelessly(buyer)).await?;
                    guard.release().await?;
                    answer
                }
            },
        }
    }

    /// Read, decide, write: right only if nobody comes between.
    async fn carelessly(&self, buyer: u32) -> Result<Answer, Trouble> {
        // It may have come true while we waited for a lock.
        if self.sold_out.load(Ordering::Relaxed) {
            return Ok(Answer::SoldOut);
        }
        let (stock, _) = self.books.read().await?;
        if stock <= 0 {
            return Ok(Answer::SoldOut);
        }
        self.books.write(stock - 1).await?;
        self.books.order(buyer).await?;
        Ok(Answer::Sold)
    }

    async fn optimistically(&self, buyer: u32) -> Result<Answer, Trouble> {
        for attempt in 1..=RETRIES_MAX {
            let (stock, version) = self.books.read().await?;
            if stock <= 0 {
                return Ok(Answer::SoldOut);
            }
            if self.books.sell_if_unchanged(buyer, version).await? {
                return Ok(Answer::Sold);
            }
            // Longer each time and never the same for two buyers, or they meet again.
            let chance = RandomState::new().hash_one((buyer, attempt));
            Clock::boot().sleep(Duration::from_micros(chance % (u64::from(attempt) * 2000))).await;
        }
        Ok(Answer::Failed)
    }

    async fn under_plain(&self, lock: &PlainLock, buyer: u32) -> Result<Answer, Trouble> {
        let Some(held) = lock.acquire(LOCK, Clock::boot().now().after(PATIENCE)).await? else {
            return Ok(Answer::Failed);
        };
        let answer = self.carelessly(buyer).await;
        held.release().await?;
        answer
    }
}

fn sold(it: bool) -> Answer {
    if it { Answer::Sold } else { Answer::SoldOut }
}
