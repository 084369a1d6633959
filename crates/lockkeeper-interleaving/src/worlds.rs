//! The worlds: two or three threads that want one lock, in this process's own store.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use shuttle::future::block_on;
use shuttle::thread;

use crate::{Clock, Guard, Locker, Memory, Spawn, Task};

/// How many orders of events are tried in a world, at random and with few changes of thread each.
const ORDERS: usize = 1000;
/// A mistake that needs more changes of thread at the right places than this may not be found.
const CHANGES_MAX: usize = 3;

pub(crate) type World = fn();

pub(crate) const WORLDS: &[(&str, World)] =
    &[("short-way", short_way), ("goes-away", goes_away), ("listens", listens)];

/// Try orders of events until one breaks the world, or there were enough.
pub(crate) fn search(world: World) {
    shuttle::check_random(world, ORDERS);
    shuttle::check_pct(world, ORDERS, CHANGES_MAX);
}

/// Whatever is to be done in the background is another thread's work.
#[derive(Debug)]
struct Beside;

impl Spawn for Beside {
    fn spawn(&self, task: Task) {
        drop(shuttle::future::spawn(task));
    }
}

fn locker() -> Locker {
    let clock = Clock::virtual_from(std::time::Duration::from_secs(1));
    Locker::builder(Memory::new(clock.clone())).clock(clock).spawner(Arc::new(Beside)).build()
}

async fn take(locker: &Locker) -> Guard {
    locker.lock("one").wait_at_most(std::time::Duration::MAX).await.expect("the store is in memory")
}

/// Read and written apart: two holders at once would lose an update.
fn add_one(number: &AtomicU64) {
    let seen = number.load(Ordering::SeqCst);
    number.store(seen + 1, Ordering::SeqCst);
}

/// Two take a lock and give it back, twice each: free by the short way, or handed on, as it comes.
fn short_way() {
    let (locker, number) = (locker(), Arc::new(AtomicU64::new(0)));
    let threads = [(); 2].map(|()| {
        let (locker, number) = (locker.clone(), number.clone());
        thread::spawn(move || {
            let first = block_on(take(&locker));
            add_one(&number);
            let fence = first.fence();
            drop(first);
            let second = block_on(take(&locker));
            add_one(&number);
            assert!(fence < second.fence(), "fences grow");
            block_on(second.release()).expect("it is valid");
        })
    });
    for it in threads {
        it.join().expect("it ends");
    }
    assert_eq!(number.load(Ordering::SeqCst), 4);
}

/// One holds, one waits, one asks and goes away at any moment, called or not: the one who waits is served.
fn goes_away() {
    let (locker, number) = (locker(), Arc::new(AtomicU64::new(0)));
    let held = block_on(take(&locker));
    let (one, other, count) = (locker.clone(), locker.clone(), number.clone());
    let goes = thread::spawn(move || {
        let mut asked = Box::pin(take(&one));
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(guard) = asked.as_mut().poll(&mut cx) {
            drop(guard);
        }
        thread::yield_now();
        drop(asked);
    });
    let waits = thread::spawn(move || {
        let guard = block_on(take(&other));
        add_one(&count);
        drop(guard);
    });
    add_one(&number);
    drop(held);
    goes.join().expect("it ends");
    waits.join().expect("it ends");
    assert_eq!(number.load(Ordering::SeqCst), 2);
    // Nobody is left in the line.
    drop(block_on(take(&locker)));
}

/// One listens for the loss of a guard that another gives back to the next: it hears that, whenever it began to listen.
fn listens() {
    let locker = locker();
    let held = block_on(take(&locker));
    let lost = held.lost();
    let next = locker.clone();
    let listener = thread::spawn(move || {
        block_on(lost);
    });
    let waits = thread::spawn(move || {
        let guard = block_on(take(&next));
        // Held until the listener has heard of the first: its own end must not be what wakes it.
        listener.join().expect("it hears");
        drop(guard);
    });
    thread::yield_now();
    drop(held);
    waits.join().expect("it ends");
}
