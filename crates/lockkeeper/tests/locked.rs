//! `#[locked]` on functions and methods of every shape, over a store in memory.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::spi::Memory;
use lockkeeper::{Error, Fence, Guard, Locker, LostReason, locked};

type Result<T, E = Error> = std::result::Result<T, E>;

const HANG: Duration = Duration::from_secs(30);

fn locker() -> Locker {
    Locker::new(Memory::default())
}

/// What goes wrong here.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    Empty,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Lock(error)
    }
}

struct Order {
    product_id: u64,
}

struct Shop {
    locker: Locker,
    stock: i64,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

impl Shop {
    fn new() -> Self {
        Shop { locker: locker(), stock: 3, inside: AtomicUsize::new(0), most_inside: AtomicUsize::new(0) }
    }

    #[locked("product:{product_id}", locker = self.locker)]
    async fn count(&self, product_id: u64) -> Result<u64> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(product_id)
    }

    #[locked(name = "product", key = order.product_id, locker = self.locker, guard = lock)]
    async fn key_of(&self, order: Order) -> Result<(String, Fence)> {
        let Order { product_id } = order;
        assert_eq!(product_id, 42);
        Ok((lock.key().to_string(), lock.fence()))
    }

    #[locked("product:{}/{}", order.product_id, self.stock, locker = self.locker, guard = lock)]
    fn key_of_two<'a>(&self, order: &'a Order, suffix: &'a str) -> Result<(String, &'a str)> {
        assert_eq!(order.product_id, 7);
        Ok((lock.key().to_string(), suffix))
    }

    #[locked("stock", locker = self.locker)]
    async fn take(&mut self, mut pieces: i64) -> Result<&mut i64, Failure> {
        pieces = pieces.max(1);
        if self.stock < pieces {
            return Err(Failure::Empty);
        }
        self.stock -= pieces;
        Ok(&mut self.stock)
    }

    #[locked("stock", locker = self.locker)]
    fn take_blocking(&mut self, pieces: i64) -> Result<&mut i64, Failure> {
        self.stock = self.stock.checked_sub(pieces).filter(|it| *it >= 0).ok_or(Failure::Empty)?;
        Ok(&mut self.stock)
    }

    #[locked("close", locker = self.locker)]
    async fn close(mut self) -> Result<Self> {
        self.stock = 0;
        Ok(self)
    }
}

#[tokio::test]
async fn one_body_runs_at_a_time_per_key() {
    let shop = Arc::new(Shop::new());
    let all = (0..32).map(|_| {
        tokio::spawn({
            let shop = shop.clone();
            async move { shop.count(7).await }
        })
    });
    for call in all.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
    assert_eq!(shop.most_inside.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_id_is_made_of_the_arguments() {
    let shop = Shop::new();
    let (key, first) = shop.key_of(Order { product_id: 42 }).await.unwrap();
    assert_eq!(key, "product:42");
    assert!(first < shop.key_of(Order { product_id: 42 }).await.unwrap().1);
    let (key, suffix) = shop.key_of_two(&Order { product_id: 7 }, "x").unwrap();
    assert_eq!((key.as_str(), suffix), ("product:7/3", "x"));
}

#[tokio::test]
async fn early_returns_and_errors_give_the_lock_back() {
    let mut shop = Shop::new();
    assert!(matches!(shop.take(9).await, Err(Failure::Empty)));
    *shop.take(0).await.unwrap() += 0;
    assert!(matches!(shop.take_blocking(9), Err(Failure::Empty)));
    assert_eq!(*shop.take_blocking(2).unwrap(), 0);
    assert!(shop.locker.try_lock("stock").await.unwrap().is_some());
    assert_eq!(shop.close().await.unwrap().stock, 0);
}

#[locked("x", locker = locker, wait = "20ms")]
async fn with_wait(locker: &Locker) -> Result<u8, Failure> {
    Ok(1)
}

#[locked("x", locker = locker, try, or = Ok(2))]
async fn with_try(locker: &Locker) -> Result<u8> {
    Ok(1)
}

#[locked("x", locker = locker, try)]
async fn with_try_or_error(locker: Locker) -> Result<u8> {
    Ok(1)
}

#[locked("x", locker = locker, try, or = ())]
fn with_nothing_to_say(locker: &Locker, ran: &AtomicUsize) {
    ran.fetch_add(1, Ordering::SeqCst);
}

#[locked("x", locker = locker, wait = Duration::from_millis(5), or_else = |it| format!("no: {it}"))]
fn with_words(locker: &Arc<Locker>) -> String {
    "yes".into()
}

#[tokio::test]
async fn a_lock_that_is_not_obtained_answers_as_told_and_never_runs_the_body() {
    let (locker, ran) = (Arc::new(locker()), AtomicUsize::new(0));
    let guard = locker.lock("x").await.unwrap();
    assert!(matches!(with_wait(&locker).await, Err(Failure::Lock(Error::TimedOut { .. }))));
    assert_eq!(with_try(&locker).await.unwrap(), 2);
    let error = with_try_or_error((*locker).clone()).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { waited: Duration::ZERO, .. }) && error.is_transient());
    with_nothing_to_say(&locker, &ran);
    assert!(with_words(&locker).starts_with("no: the lock was not obtained"));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    guard.release().await.unwrap();
    assert_eq!(with_wait(&locker).await.unwrap(), 1);
    assert_eq!(with_try(&locker).await.unwrap(), 1);
    assert_eq!(with_try_or_error((*locker).clone()).await.unwrap(), 1);
    with_nothing_to_say(&locker, &ran);
    assert_eq!(with_words(&locker), "yes");
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[locked("job:{name}", locker = locker, or_else = |it| it.to_string())]
async fn named(locker: &Locker, name: &str) -> String {
    String::new()
}

#[tokio::test]
async fn a_name_that_is_no_key_is_a_lock_not_obtained() {
    assert!(named(&locker(), "a\nb").await.contains("control character"));
    assert!(named(&locker(), &"x".repeat(600)).await.contains("604 bytes"));
    assert!(named(&locker(), "fine").await.is_empty());
}

#[locked("{}", id, locker = locker)]
async fn generic<T, F>(locker: &Locker, id: T, make: impl FnOnce() -> F) -> Result<F::Output>
where
    T: Display + Send,
    F: Future,
{
    Ok(make().await)
}

#[locked("it", locker = locker)]
async fn an_iterator(locker: &Locker, to: u8) -> Result<impl Iterator<Item = u8>, Failure> {
    if to == 0 {
        return Err(Failure::Empty);
    }
    Ok(0..to)
}

trait Work {
    fn work(&self) -> impl Future<Output = Result<u8>> + Send;
}

impl Work for Locker {
    #[locked("w", locker = self)]
    async fn work(&self) -> Result<u8> {
        Ok(5)
    }
}

fn must_be_send<T: Send>(it: T) -> T {
    it
}

#[tokio::test]
async fn generic_functions_traits_and_impl_answers_can_be_locked() {
    let locker = locker();
    assert_eq!(must_be_send(generic(&locker, 7, || async { "x" })).await.unwrap(), "x");
    assert_eq!(an_iterator(&locker, 3).await.unwrap().collect::<Vec<_>>(), [0, 1, 2]);
    assert!(an_iterator(&locker, 0).await.is_err());
    assert_eq!(must_be_send(locker.work()).await.unwrap(), 5);
    // A value that only one thread at a time may look at is no obstacle to a future that moves.
    let (_sender, receiver) = std::sync::mpsc::channel::<u8>();
    must_be_send(holds_a_receiver(&locker, receiver)).await.unwrap();
}

#[locked("r", locker = locker)]
async fn holds_a_receiver(locker: &Locker, receiver: std::sync::mpsc::Receiver<u8>) -> Result<()> {
    tokio::task::yield_now().await;
    drop(receiver);
    Ok(())
}

#[locked("deep", locker = locker, wait = "20ms", guard = lock)]
async fn deep(locker: &Locker, depth: u8) -> Result<Fence> {
    if depth == 0 {
        return deep_blocking(locker, 2);
    }
    let inner = Box::pin(deep(locker, depth - 1)).await?;
    assert_eq!(inner, lock.fence());
    Ok(inner)
}

#[locked("deep", locker = locker, wait = "20ms", guard = lock)]
fn deep_blocking(locker: &Locker, depth: u8) -> Result<Fence> {
    if depth == 0 { Ok(lock.fence()) } else { deep_blocking(locker, depth - 1) }
}

#[tokio::test]
async fn a_locked_function_may_call_itself_and_gives_back_as_often() {
    let locker = locker();
    let first = deep(&locker, 3).await.unwrap();
    assert!(locker.try_lock("deep").await.unwrap().is_some());
    assert!(first < deep(&locker, 0).await.unwrap());
    assert!(deep_blocking(&locker, 4).is_ok());
    // Calls that no locked function encloses are different owners.
    let (one, other) = tokio::join!(deep(&locker, 1), deep(&locker, 1));
    assert_ne!(one.unwrap(), other.unwrap());
}

#[locked("held", locker = locker, max_hold = "30ms")]
async fn too_long(locker: &Locker, ended: &AtomicUsize) -> Result<(), Failure> {
    std::future::pending::<()>().await;
    ended.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[locked("held", locker = locker, max_hold = "30ms", or = false)]
async fn too_long_for_a_flag(locker: &Locker) -> bool {
    std::future::pending::<()>().await;
    true
}

#[locked("held", locker = locker, max_hold = "1ms", guard = lock)]
fn too_long_blocking(locker: &Locker, ended: &AtomicUsize) -> Result<(), Failure> {
    wait_for_loss(lock);
    ended.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

fn wait_for_loss(guard: &Guard) {
    while guard.is_valid() {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_lost_lock_stops_the_body_and_the_caller_hears_of_it() {
    let (locker, ended) = (locker(), AtomicUsize::new(0));
    let lost = tokio::time::timeout(HANG, too_long(&locker, &ended)).await.unwrap();
    assert!(matches!(lost, Err(Failure::Lock(Error::Lost { reason: LostReason::MaxHold, .. }))), "{lost:?}");
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    assert!(!tokio::time::timeout(HANG, too_long_for_a_flag(&locker)).await.unwrap());
    let lost = too_long_blocking(&locker, &ended);
    assert!(matches!(lost, Err(Failure::Lock(Error::Lost { .. }))), "{lost:?}");
    assert_eq!(ended.load(Ordering::SeqCst), 1, "a body that does not await runs to its end");
}

#[locked("p", locker = locker, or = ())]
async fn panics(locker: &Locker) {
    tokio::task::yield_now().await;
    panic!("on purpose");
}

#[tokio::test]
async fn a_panic_or_a_dropped_call_gives_the_lock_back() {
    let locker = locker();
    let call = tokio::spawn({
        let locker = locker.clone();
        async move { panics(&locker).await }
    });
    assert!(call.await.unwrap_err().is_panic());
    drop(locker.lock("p").wait_at_most(HANG).await.unwrap());
    {
        let mut call = std::pin::pin!(with_wait_for_ever(&locker));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        assert!(locker.try_lock("p").await.unwrap().is_none());
    }
    drop(locker.lock("p").wait_at_most(HANG).await.unwrap());
}

#[locked("p", locker = locker)]
async fn with_wait_for_ever(locker: &Locker) -> Result<()> {
    std::future::pending().await
}

#[locked("n", locker = locker, or = 0)]
async fn nested_1(locker: &Locker) -> usize {
    let big = [0_u8; 1024];
    tokio::task::yield_now().await;
    big.len()
}

#[locked("n", locker = locker, or = 0)]
async fn nested_2(locker: &Locker) -> usize {
    nested_1(locker).await
}

#[locked("n", locker = locker, or = 0)]
async fn nested_3(locker: &Locker) -> usize {
    nested_2(locker).await
}

#[tokio::test]
async fn nesting_does_not_multiply_the_size_of_futures() {
    let locker = locker();
    let (one, three) = (size_of_val(&nested_1(&locker)), size_of_val(&nested_3(&locker)));
    assert!(three < one * 3, "{one} bytes alone, {three} bytes three levels deep");
    assert_eq!(nested_3(&locker).await, 1024);
}

/// What two futures of one body do side by side belongs to one owner; it does not lead twice for that, nor do a tick twice at once.
#[tokio::test]
async fn a_body_that_stands_twice_at_once_leads_once_and_does_a_tick_once() {
    #[locked("body", locker = locker)]
    async fn body(locker: &Locker) -> Result<[usize; 2], Error> {
        let (leaders, jobs) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let alone = async |inside: &AtomicUsize| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two of one body are inside at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        let campaign = locker.campaign("role", "here");
        let lead = || campaign.run(async |_| alone(&leaders).await);
        let led = tokio::join!(lead(), lead());
        led.0.and(led.1)?;
        let job = || {
            locker.once("nightly", "1").run(async |_| {
                alone(&jobs).await;
                Ok::<_, Error>(())
            })
        };
        let (one, other) = tokio::join!(job(), job());
        Ok([one?, other?].map(|it| usize::from(it == lockkeeper::Once::Ran(()))))
    }
    let locker = locker();
    let ran = tokio::time::timeout(HANG, body(&locker)).await.expect("nobody waits for itself");
    assert_eq!(ran.unwrap().into_iter().sum::<usize>(), 1);
}
