//! One process of the shop: it serves its share of the buyers, all at once, and tells how it went.

use std::io::{ErrorKind, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::spi::Clock;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::books::{Tables, Trouble};
use crate::console::Console;
use crate::failure::{SYSTEM, USAGE};
use crate::strategy::{Answer, Seller, Strategy};

/// The hidden first argument that makes this program an instance.
pub(crate) const INSTANCE: &str = "__flash_sale";
/// How often it tells how far it is.
const TELL_EVERY: Duration = Duration::from_millis(100);

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) strategy: Strategy,
    /// The lock's name.
    pub(crate) lock: String,
    /// The store of locks.
    pub(crate) url: String,
    /// The shop's database.
    pub(crate) db: String,
    pub(crate) tables: Tables,
    /// How many buyers it serves at a time; the others stand outside.
    pub(crate) at_once: usize,
    /// The buyers from this one…
    pub(crate) first: u32,
    /// …up to but not including this one.
    pub(crate) end: u32,
}

/// One line to the parent.
#[derive(Serialize, Deserialize)]
pub(crate) enum Said {
    Ready,
    Progress { sold: u64, done: u64 },
    Done(Account),
}

/// How the sale went, as this instance saw it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) failed: u64,
    /// How long each buyer waited for an answer, in microseconds.
    pub(crate) waits_us: Vec<u64>,
    /// When the last piece was sold, on the boot clock.
    pub(crate) last_sale_ns: u64,
    pub(crate) lock_trips: u64,
    pub(crate) book_trips: u64,
}

/// Be an instance. The task comes by standard input, because everybody can read command lines.
pub(crate) fn sell(console: &dyn Console) -> u8 {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).ok();
    let Some(task) = read.and_then(|_| serde_json::from_str(&line).ok()) else { return USAGE };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(Trouble::from).and_then(|it| it.block_on(serve(task)));
    match ended {
        Ok(()) => 0,
        Err(error) => {
            console.say(&format!("an instance of the shop gives up: {error}"));
            SYSTEM
        }
    }
}

/// What is counted is shown while it moves, and read for good when all tasks were awaited, which orders it: Relaxed is enough.
struct Shop {
    seller: Seller,
    sold: AtomicU64,
    done: AtomicU64,
    last_sale: AtomicU64,
}

async fn serve(task: Task) -> Result<(), Trouble> {
    let seller = Seller::open(&task).await?;
    let shop = Arc::new(Shop {
        seller,
        sold: AtomicU64::new(0),
        done: AtomicU64::new(0),
        last_sale: AtomicU64::new(0),
    });
    tell(&Said::Ready)?;
    std::io::stdin().read_line(&mut String::new())?;
    let (clock, mut buyers) = (Clock::boot(), JoinSet::new());
    let door = Arc::new(Semaphore::new(task.at_once.min(Semaphore::MAX_PERMITS)));
    let opened = clock.now();
    for buyer in task.first..task.end {
        let (shop, clock, door) = (shop.clone(), clock.clone(), door.clone());
        buyers.spawn(async move {
            let _inside = door.acquire().await?;
            let answer = shop.serve(buyer, &clock).await;
            let waited = u64::try_from((clock.now() - opened).as_micros()).unwrap_or(u64::MAX);
            answer.map(|it| (it, waited))
        });
    }
    let mut account = Account::default();
    let mut tell_at = opened.after(TELL_EVERY);
    while let Some(served) = buyers.join_next().await {
        let (answer, waited) = served??;
        account.failed += u64::from(answer == Answer::Failed);
        account.waits_us.push(waited);
        if tell_at <= clock.now() {
            tell_at = clock.now().after(TELL_EVERY);
            tell(&shop.progress())?;
        }
    }
    tell(&shop.progress())?;
    shop.seller.close().await?;
    account.last_sale_ns = shop.last_sale.load(Ordering::Relaxed);
    account.lock_trips = shop.seller.trips.get();
    account.book_trips = shop.seller.books.statements();
    tell(&Said::Done(account))
}

impl Shop {
    fn progress(&self) -> Said {
        let (sold, done) = (self.sold.load(Ordering::Relaxed), self.done.load(Ordering::Relaxed));
        Said::Progress { sold, done }
    }

    async fn serve(&self, buyer: u32, clock: &Clock) -> Result<Answer, Trouble> {
        let answer = self.seller.sell(buyer).await?;
        if answer == Answer::Sold {
            self.sold.fetch_add(1, Ordering::Relaxed);
            self.last_sale.fetch_max(clock.now().as_nanos(), Ordering::Relaxed);
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }
}

fn tell(said: &Said) -> Result<(), Trouble> {
    let line = serde_json::to_string(said)?;
    let mut out = std::io::stdout().lock();
    match out
        .write_all(
            format!(
                "{line}
"
            )
            .as_bytes(),
        )
        .and_then(|()| out.flush())
    {
        // A parent that listens no more ends us soon.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
