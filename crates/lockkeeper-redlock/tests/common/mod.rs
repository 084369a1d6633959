//! A node that can be cut off, stuck, muted and made to forget; and virtual time to test it in.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Grant, Place, Profile, Renewal, Result, Turn};
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::node::{Node, RaiseCounter, Standing};
use lockkeeper_core::{Claim, Clock, Key, Memory, Moment, Spawn, Task};
use lockkeeper_redlock::{Redlock, RedlockOptions};
use lockkeeper_testkit::virtual_time::in_virtual_time;
use tokio::sync::watch;

pub(crate) const TTL: Duration = Duration::from_secs(10);
pub(crate) const KEY: &str = "orders/42";

/// What becomes of calls to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Up,
    /// Calls fail at once.
    Down,
    /// Calls wait, and are carried out when the node is up again.
    Stuck,
    /// Calls are carried out, and answered when the node is up again.
    Mute,
    /// The next release fails at once, and is carried out all the same when told to; then the node is up.
    LeavesLate,
}

type Hook = Box<dyn Fn(&Shaky) + Send + Sync>;

/// A store in this process that behaves as a server on a bad day.
#[derive(Clone)]
pub(crate) struct Shaky(Arc<Inner>);

struct Inner {
    name: String,
    clock: Clock,
    mode: watch::Sender<Mode>,
    memory: Mutex<Remembered>,
    /// Calls under way.
    open: AtomicUsize,
    open_max: AtomicUsize,
    before_raise: Mutex<Option<Hook>>,
    late: Mutex<Option<Claim>>,
}

#[derive(Clone)]
struct Remembered {
    store: Memory,
    born: Moment,
    /// Counters begin above those of the memory before.
    base: u64,
}

impl Shaky {
    pub(crate) fn new(name: &str, clock: &Clock) -> Self {
        let memory = Remembered { store: Memory::new(clock.clone()), born: Moment::from_nanos(0), base: 0 };
        Shaky(Arc::new(Inner {
            name: name.into(),
            clock: clock.clone(),
            mode: watch::Sender::new(Mode::Up),
            memory: Mutex::new(memory),
            open: AtomicUsize::new(0),
            open_max: AtomicUsize::new(0),
            before_raise: Mutex::default(),
            late: Mutex::default(),
        }))
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.0.mode.send_replace(mode);
    }

    /// Lose all memory.
    pub(crate) fn forget(&self) {
        let now = self.0.clock.now();
        let (store, base) = (Memory::new(self.0.clock.clone()), now.as_nanos() / 1000);
        *self.0.memory.lock().unwrap() = Remembered { store, born: now, base };
    }

    /// Do this when the second round begins.
    pub(crate) fn before_raise(&self, hook: impl Fn(&Shaky) + Send + Sync + 'static) {
        *self.0.before_raise.lock().unwrap() = Some(Box::new(hook));
    }

    /// The release that was said to have failed arrives.
    pub(crate) async fn deliver_late(&self) {
        let claim = self.0.late.lock().unwrap().take().expect("nothing is late");
        self.store().enter(claim).leave().await.unwrap();
    }

    /// The store as it is behind the network.
    pub(crate) fn store(&self) -> Memory {
        self.memory().store
    }

    /// The most calls that were under way at once.
    pub(crate) fn open_max(&self) -> usize {
        self.0.open_max.load(Ordering::Relaxed)
    }

    fn memory(&self) -> Remembered {
        self.0.memory.lock().unwrap().clone()
    }

    async fn carry<T, F: Future<Output = Result<T>>>(&self, call: impl FnOnce(Remembered) -> F) -> Result<T> {
        let open = self.0.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.open_max.fetch_max(open, Ordering::Relaxed);
        let answer = async {
            let mut mode = self.0.mode.subscribe();
            let cut_off = || Err(Fault::transient("shaky", "calling", format!("{} is down", self.0.name)));
            if *mode.borrow() == Mode::Down {
                return cut_off();
            }
            let Ok(_) = mode.wait_for(|it| *it != Mode::Stuck).await else { return cut_off() };
            let answer = call(self.memory()).await;
            let Ok(_) = mode.wait_for(|it| *it != Mode::Mute).await else { return cut_off() };
            answer
        };
        let answer = answer.await;
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        answer
    }
}

impl fmt::Debug for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shaky({})", self.0.name)
    }
}

impl Backend for Shaky {
    type Place = ShakyPlace;

    fn profile(&self) -> Profile {
        self.store().profile()
    }

    fn enter(&self, claim: Claim) -> ShakyPlace {
        ShakyPlace { node: self.clone(), claim }
    }
}

impl Node for Shaky {
    async fn standing(&self) -> Result<Standing> {
        self.carry(async |it| {
            let remembers = Some(self.0.clock.now() - it.born);
            Ok(Standing::new(self.0.name.as_str(), remembers))
        })
        .await
    }
}

impl Inspect for Shaky {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.carry(async |it| it.store.list(prefix).await).await
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.carry(async |it| it.store.show(key).await).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        self.carry(async |it| it.store.break_lock(key).await).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
pub(crate) struct ShakyPlace {
    node: Shaky,
    claim: Claim,
}

impl Place for ShakyPlace {
    async fn turn(&mut self) -> Result<Turn> {
        let claim = self.claim.clone();
        let serve = async |it: Remembered| {
            Ok(match it.store.enter(claim).turn().await? {
                Turn::Held(mut grant) => {
                    grant.counter += it.base;
                    Turn::Held(grant)
                }
                wait @ Turn::Wait { .. } => wait,
            })
        };
        self.node.carry(serve).await
    }

    async fn changed(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let claim = self.claim.clone();
        self.node.carry(async |it| it.store.enter(claim).renew().await).await
    }

    async fn leave(&mut self) -> Result<()> {
        let claim = self.claim.clone();
        if *self.node.0.mode.borrow() == Mode::LeavesLate {
            *self.node.0.late.lock().unwrap() = Some(claim);
            self.node.set(Mode::Up);
            return Err(Fault::transient("shaky", "leaving", "no answer in time"));
        }
        self.node.carry(async |it| it.store.enter(claim).leave().await).await
    }
}

impl RaiseCounter for ShakyPlace {
    async fn raise(&mut self, counter: u64) -> Result<Option<u64>> {
        let claim = self.claim.clone();
        if let Some(hook) = &*self.node.0.before_raise.lock().unwrap() {
            hook(&self.node);
        }
        self.node
            .carry(async |it| {
                let raised = it.store.enter(claim).raise(counter.saturating_sub(it.base)).await?;
                Ok(raised.map(|counter| counter + it.base))
            })
            .await
    }
}

/// Background tasks on the runtime of the test.
#[derive(Debug)]
pub(crate) struct OnRuntime;

impl Spawn for OnRuntime {
    fn spawn(&self, task: Task) {
        drop(tokio::spawn(task));
    }
}

/// Several nodes in virtual time. They were born long ago.
pub(crate) struct Cluster {
    pub(crate) clock: Clock,
    pub(crate) nodes: Vec<Shaky>,
}

impl Cluster {
    pub(crate) fn of(nodes: usize) -> Self {
        let clock = Clock::virtual_from(Duration::from_secs(1_000_000));
        let nodes = (1..=nodes).map(|it| Shaky::new(&format!("server {it}"), &clock)).collect();
        Cluster { clock, nodes }
    }

    pub(crate) fn options(&self) -> RedlockOptions<Shaky> {
        self.options_for(self.nodes.clone())
    }

    pub(crate) fn options_for(&self, nodes: Vec<Shaky>) -> RedlockOptions<Shaky> {
        let options = RedlockOptions::new(nodes).clock(self.clock.clone());
        options.spawner(Arc::new(OnRuntime)).restart_guard(TTL)
    }

    pub(crate) fn redlock(&self) -> Redlock<Shaky> {
        Redlock::lazy(self.options()).unwrap()
    }

    pub(crate) fn set(&self, nodes: impl IntoIterator<Item = usize>, mode: Mode) {
        nodes.into_iter().for_each(|it| self.nodes[it].set(mode));
    }

    pub(crate) fn heal(&self) {
        self.set(0..self.nodes.len(), Mode::Up);
    }

    /// Run a test in virtual time; a test that hangs fails.
    pub(crate) fn run<T>(&self, test: impl Future<Output = T>) -> T {
        in_virtual_time(&self.clock, test).expect("everybody waits for nothing")
    }

    /// Wait until no node knows of anybody, much sooner than by forgetting.
    pub(crate) async fn all_empty(&self) {
        let give_up = self.clock.now().after(TTL / 2);
        while !self.nodes.iter().all(|it| it.store().is_empty()) {
            assert!(self.clock.now() < give_up, "something is left: {:?}", self.left());
            self.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    fn left(&self) -> Vec<usize> {
        self.nodes.iter().map(|it| it.store().len()).collect()
    }
}

pub(crate) fn claim() -> Claim {
    Claim::new(Key::new(KEY).unwrap(), TTL).unwrap()
}

pub(crate) async fn held(place: &mut impl Place) -> Grant {
    match place.turn().await.unwrap() {
        Turn::Held(grant) => grant,
        Turn::Wait { .. } => panic!("told to wait"),
    }
}

pub(crate) async fn must_wait(place: &mut impl Place) {
    let turn = place.turn().await.unwrap();
    assert!(matches!(turn, Turn::Wait { .. }), "granted: {turn:?}");
}

pub(crate) async fn still_holds(place: &mut impl Place) {
    let renewal = place.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
}
