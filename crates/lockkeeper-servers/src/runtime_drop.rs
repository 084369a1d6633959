//! The caller's runtime goes away in the middle of calls: nobody panics, and the locker goes on.
//!
//! A program that ends one of its runtimes, or a test that ends with calls under way, must not bring down the thread
//! on which a locker finishes what was begun: with `panic = "abort"` that would be the end of the program. Everything
//! runs in a child process in which any panic, on any thread, is the end, as it is there.
//!
//! ```text
//! doomed runtime: lock · lock (waits) · try_lock · release · a guard │ dropped
//! servers:        answer ──── silent, gone or out of reach ──────────┴── answer again
//! then:           the same names from another runtime, and without any; shutdown ends
//! ```

mod child;
mod round;

use std::future::Future;
use std::panic;
use std::process::Command;

use lockkeeper_core::{Clock, Locker};
use tokio::runtime::Runtime;

use crate::proxy::{Proxy, Rule};
use lockkeeper_testkit::chance::Chance;
use round::{Flavour, Round, Way};

/// A store that is reached over a network.
pub trait Remote: Sized + Send + Sync + 'static {
    /// Start its servers.
    fn start() -> impl Future<Output = Self> + Send;

    /// The loopback ports on which they serve.
    fn ports(&self) -> Vec<u16>;

    /// A locker on these servers, which are to be found on other ports: `ports` has their numbers in the order of
    /// [`Remote::ports`]. Its ttl is [`TTL`], or near it.
    fn connect(&self, ports: &[u16]) -> impl Future<Output = Locker> + Send;
}

/// What lockers of [`Remote::connect`] use.
pub const TTL: std::time::Duration = std::time::Duration::from_secs(5);

/// Make a test of this name for a [`Remote`].
#[macro_export]
macro_rules! runtime_drop {
    ($name:ident, $remote:ty) => {
        #[test]
        fn $name() {
            $crate::runtime_drop::check::<$remote>(concat!(module_path!(), "::", stringify!($name)));
        }
    };
}

/// Make a test of this name for a [`Remote`]: see [`stand_still`].
#[macro_export]
macro_rules! runtime_still {
    ($name:ident, $remote:ty) => {
        #[test]
        fn $name() {
            $crate::runtime_drop::stand_still::<$remote>();
        }
    };
}

/// A runtime connects, and then nobody drives it any more: it holds up nobody, and what is held is kept.
///
/// # Panics
/// If a call fails: a caller has patience for less than a stuck connection takes.
pub fn stand_still<R: Remote>() {
    let stage = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (stage, still) = (stage.expect("a runtime"), still.expect("a runtime"));
    let remote = stage.block_on(R::start());
    let locker = still.block_on(remote.connect(&remote.ports()));
    for round in 0..3 {
        let guard = locker.lock("still").blocking().expect("a blocking lock");
        guard.release_blocking().expect("a blocking release");
        let guard = stage.block_on(async { locker.lock("still").await }).expect("a lock of another runtime");
        stage.block_on(guard.release()).expect("a release of another runtime");
        // It moves for a moment, in which it may open what it needs, and stands still again.
        if round == 1 {
            let guard = still.block_on(async { locker.lock("still").await }).expect("a lock of its own");
            still.block_on(guard.release()).expect("a release of its own");
        }
    }
    let guard = locker.lock("kept").blocking().expect("a blocking lock");
    stage.block_on(Clock::boot().sleep(TTL * 2));
    guard.check().expect("it is renewed");
    drop((guard, remote));
}

const CHILD: &str = "LOCKKEEPER_TEST_RUNTIME_DROP";
const DONE: &str = "every runtime was dropped";

/// Drop runtimes with calls under way, in a process of its own: the test with this full name, started again.
///
/// # Panics
/// If that process panics anywhere, stands still, or finds the locker unusable; the text is what it printed.
pub fn check<R: Remote>(test: &str) {
    if std::env::var_os(CHILD).is_some() {
        rounds::<R>();
        return;
    }
    // The first part is the program's own name, which the runner does not use.
    let name = test.split_once("::").map_or(test, |it| it.1);
    let program = std::env::current_exe().expect("a test program knows its file");
    let mut child = Command::new(program);
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    let out = child.output().expect("a test program can be started again");
    let said = [out.stdout, out.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    assert!(out.status.success() && said.contains(DONE), "{name}: {}\n{said}", out.status);
}

fn rounds<R: Remote>() {
    child::end_at_any_panic();
    let steps = child::Steps::watched();
    let stage = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let stage = stage.expect("a runtime");
    steps.now("starting the servers");
    let remote = stage.block_on(R::start());
    let network = stage.block_on(Network::before(&remote.ports()));
    steps.now("connecting");
    let rival = stage.block_on(remote.connect(&remote.ports()));
    let lasting = stage.block_on(remote.connect(&network.ports()));
    let mut chance = Chance::seeded(11);
    let mut number = 0;
    for trouble in [Trouble::Silent, Trouble::Gone, Trouble::OutOfReach] {
        for flavour in [Flavour::CurrentThread, Flavour::MultiThread] {
            for way in [Way::Drop, Way::Background] {
                number += 1;
                let name = format!("round {number} ({trouble:?}, {flavour:?}, {way:?})");
                let round = Round { name, number, steps: &steps, stage: &stage, chance: chance.fork() };
                round.run(&remote, &network, trouble, (flavour, way), (&rival, &lasting));
            }
        }
    }
    for (who, locker) in [("lasting", lasting), ("rival", rival)] {
        steps.now(&format!("shutting down the {who} locker"));
        let done = stage.block_on(locker.shutdown(TTL * 4));
        done.unwrap_or_else(|it| panic!("the {who} locker does not shut down: {it}"));
    }
    drop((network, remote));
    child::say(DONE);
}

/// What is the matter with the servers, as a client sees it.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// They are stopped: what is sent is answered when they run on.
    Silent,
    /// They have ended: connections are cut and refused.
    Gone,
    /// The cable is pulled: nothing is answered, and what was sent is lost.
    OutOfReach,
}

/// The way to the servers.
struct Network(Vec<Proxy>);

impl Network {
    async fn before(ports: &[u16]) -> Self {
        let mut proxies = Vec::new();
        for port in ports {
            proxies.push(Proxy::start(*port).await.expect("a proxy"));
        }
        Network(proxies)
    }

    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(Proxy::port).collect()
    }

    /// Where there are several servers, one of them is spared in each second round.
    fn hit(&self, number: usize) -> &[Proxy] {
        if 1 < self.0.len() && number.is_multiple_of(2) { &self.0[1..] } else { &self.0 }
    }

    fn begin(&self, stage: &Runtime, trouble: Trouble, number: usize) {
        for proxy in self.hit(number) {
            let done = match trouble {
                Trouble::Silent => {
                    proxy.set_both(Rule::Hold);
                    Ok(())
                }
                Trouble::Gone => stage.block_on(proxy.refuse()).map(|()| proxy.cut()),
                Trouble::OutOfReach => stage.block_on(proxy.vanish()),
            };
            done.expect("the proxy does as told");
        }
    }

    fn end(&self, stage: &Runtime) {
        for proxy in &self.0 {
            stage.block_on(proxy.appear()).expect("the proxy does as told");
        }
    }
}
