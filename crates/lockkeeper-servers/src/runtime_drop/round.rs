//! One runtime, calls on it while the servers do not answer, and its end.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, Guard, Locker};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::child::Steps;
use super::{Network, Remote, TTL, Trouble};
use lockkeeper_testkit::chance::Chance;

/// The runtime that is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flavour {
    CurrentThread,
    MultiThread,
}

impl Flavour {
    fn build(self) -> Runtime {
        let mut builder = match self {
            Flavour::CurrentThread => Builder::new_current_thread(),
            Flavour::MultiThread => Builder::new_multi_thread(),
        };
        builder.enable_all().build().expect("a runtime")
    }
}

/// How it is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Drop,
    Background,
}

impl Way {
    fn end(self, runtime: Runtime) {
        match self {
            Way::Drop => drop(runtime),
            Way::Background => runtime.shutdown_background(),
        }
    }
}

/// Calls go on for up to this long before their runtime is dropped, so that it happens at any point of them; and the
/// servers do not answer for up to six times as long after it.
const SPAN: Duration = Duration::from_millis(50);

pub(super) struct Round<'a> {
    pub(super) name: String,
    pub(super) number: usize,
    pub(super) steps: &'a Steps,
    pub(super) stage: &'a Runtime,
    pub(super) chance: Chance,
}

impl Round<'_> {
    /// `rival` is not behind the network, `lasting` comes from another runtime than ours.
    pub(super) fn run<R: Remote>(
        mut self,
        remote: &R,
        network: &Network,
        trouble: Trouble,
        (flavour, way): (Flavour, Way),
        (rival, lasting): (&Locker, &Locker),
    ) {
        let names = ["free", "queue", "tried", "released", "dropped"];
        let names = names.map(|it| format!("{it}-{}", self.number));
        let doomed = flavour.build();
        self.step("connects");
        // The doomed runtime also makes the locker, every second time for each kind of trouble and runtime.
        let own = (!self.number.is_multiple_of(2)).then(|| doomed.block_on(remote.connect(&network.ports())));
        let locker = own.as_ref().unwrap_or(lasting);
        self.step("locks");
        let in_the_way = self.stage.block_on(insist(rival, &names[1]));
        let guards = [3, 4].map(|it| doomed.block_on(insist(locker, &names[it])));
        network.begin(self.stage, trouble, self.number);
        self.step("calls");
        let calls = call(&doomed, locker, &names, guards);
        doomed.block_on(async {
            // Every call was made, and has met the silence, or has been answered with an error.
            drop(calls.acquire_many(5).await);
            Clock::boot().sleep(self.chance.span(SPAN)).await;
        });
        self.step("drops the runtime");
        way.end(doomed);
        let silent = self.chance.span(SPAN * 6);
        self.stage.block_on(Clock::boot().sleep(silent));
        network.end(self.stage);
        self.step("releases what is in the way");
        self.stage.block_on(in_the_way.release()).expect("the rival's way is free");
        self.use_again(locker, &names);
        if let Some(locker) = own {
            self.step("shuts down");
            let done = self.stage.block_on(locker.shutdown(TTL * 4));
            done.unwrap_or_else(|it| panic!("{}: no shutdown: {it}", self.name));
        }
    }

    fn step(&self, what: &str) {
        self.steps.now(&format!("{} {what}", self.name));
    }

    /// Take every name from a runtime that lives, and from a thread without one.
    fn use_again(&self, locker: &Locker, names: &[String; 5]) {
        let fresh = Builder::new_current_thread().enable_all().build().expect("a runtime");
        for name in names {
            self.step(&format!("locks {name} from another runtime"));
            fresh.block_on(async {
                loop {
                    let guard = insist(locker, name).await;
                    if is_done(guard.release().await, "release") {
                        break;
                    }
                }
            });
        }
        drop(fresh);
        for name in names {
            self.step(&format!("locks {name} without a runtime"));
            while !take_blocking(locker, name) {}
        }
    }
}

/// Make every call once. What is returned has a permit for each that was polled.
fn call(
    doomed: &Runtime,
    locker: &Locker,
    names: &[String; 5],
    [release, keep]: [Guard; 2],
) -> Arc<Semaphore> {
    let made = Arc::new(Semaphore::new(0));
    let [free, queue, tried, ..] = names;
    let (free, queue, tried) = (locker.lock(free), locker.lock(queue), locker.try_lock(tried));
    doomed.spawn(polled(Arc::clone(&made), async { drop(free.await) }));
    doomed.spawn(polled(Arc::clone(&made), async { drop(queue.await) }));
    doomed.spawn(polled(Arc::clone(&made), async { drop(tried.await) }));
    doomed.spawn(polled(Arc::clone(&made), async { drop(release.release().await) }));
    doomed.spawn(polled(Arc::clone(&made), async move {
        std::future::pending::<()>().await;
        drop(keep);
    }));
    made
}

async fn polled(made: Arc<Semaphore>, call: impl Future<Output = ()>) {
    let (mut call, mut first) = (pin!(call), true);
    std::future::poll_fn(|context| {
        let answer = call.as_mut().poll(context);
        if std::mem::take(&mut first) {
            made.add_permits(1);
        }
        if answer.is_ready() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Lock, again and again if the store could not be asked: it may need a moment to find out that it can.
async fn insist(locker: &Locker, name: &str) -> Guard {
    loop {
        match locker.lock(name).await {
            Ok(guard) => return guard,
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{name} cannot be locked: {error}"),
        }
    }
}

fn take_blocking(locker: &Locker, name: &str) -> bool {
    match locker.lock(name).blocking() {
        Ok(guard) => is_done(guard.release_blocking(), "release"),
        result => is_done(result.map(drop), "lock"),
    }
}

/// Whether it worked; a failure that another try may cure is not the end.
fn is_done(result: Result<(), Error>, what: &str) -> bool {
    match result {
        Ok(()) => true,
        Err(error) if error.is_transient() => false,
        Err(error) => panic!("{what}: {error}"),
    }
}
