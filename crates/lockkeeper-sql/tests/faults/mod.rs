//! Faults that every SQL store must survive, told once for all of them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Place, Turn};
use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::{Claim, Clock, Guard, Key, Locker};
use lockkeeper_servers::proxy::{Proxy, Rule};
use lockkeeper_servers::{Daemon, KitError, rooms};
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use crate::child::{self, Other};

/// A patience that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(3);

/// A database server under test.
pub(crate) trait Site: Deref<Target = Daemon> + Sized + Send + Sync + 'static {
    type Store: Backend + Inspect + Clone;
    async fn start(settings: &[(&str, &str)]) -> Self;
    /// Open the store, as a new process would.
    async fn open_url(url: &str) -> Self::Store;
    fn url(&self) -> String;
    /// Run statements as the server's master.
    async fn try_sql(&self, statements: &str) -> Result<String, KitError>;
    /// A write that its fence protects. `false` if it was refused.
    async fn write(url: &str, fence: u64) -> bool;
    /// How a name's hash looks on its way to the server: when the lock is taken, and when it is given back after
    /// the answer to that was lost.
    fn marks(hash: &[u8]) -> [Vec<u8>; 2];
    /// The setting by which idle connections are ended soon.
    const IDLE_TIME_OUT: (&'static str, &'static str);
    /// The setting for the isolation of sessions that choose none, and its values.
    const ISOLATION: (&'static str, [&'static str; 2]);
    const DROP_TABLES: &'static str;
    /// What stands before the names of tables.
    const SCHEMA: &'static str;
    /// End all connections but the one that says so.
    const KILL_CONNECTIONS: &'static str;

    /// Open the store on this port of the loopback.
    async fn open(&self, port: u16) -> Self::Store {
        let url = self.url().replacen(&format!(":{}/", self.port()), &format!(":{port}/"), 1);
        Self::open_url(&url).await
    }

    async fn sql(&self, statements: &str) -> String {
        self.try_sql(statements).await.unwrap()
    }

    async fn kill_connections(&self) {
        self.sql(Self::KILL_CONNECTIONS).await;
    }
}

fn locker(store: impl Backend) -> Locker {
    Locker::builder(store).ttl(TTL).wait_at_most(PATIENCE).build()
}

pub(crate) async fn rooms<S: Site>(site: &S) {
    let (proxy, ttl) = (Proxy::start(site.port()).await.unwrap(), Duration::from_secs(600));
    let (near, far) = (site.open(site.port()).await, site.open(proxy.port()).await);
    rooms::readers_behind_are_called(&near, &far, ttl).await;
    rooms::a_disagreement_is_told(&near, &far, ttl).await;
    let locker = Locker::builder(far).ttl(ttl).build();
    rooms::taken_in_one_trip(&proxy, &locker, &near, ["a", "b", "c"]).await;
}

/// The full name of the test that runs, by which it is started again in another process.
pub(crate) fn this_test() -> String {
    std::thread::current().name().unwrap().to_owned()
}

/// The outcome of what must not hang.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        out = work => out,
        () = Clock::boot().sleep(PATIENCE) => panic!("this hangs"),
    }
}

/// The cases that are told in the same words on every server.
macro_rules! cases {
    ($site:ty) => {
        #[tokio::test]
        async fn killed_connections_lose_no_lock() {
            faults::killed_connections(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn an_idle_time_out_shorter_than_the_hold_does_not_matter() {
            faults::idle_time_out(&<$site>::start(&[<$site>::IDLE_TIME_OUT]).await).await;
        }

        #[tokio::test]
        async fn a_restarted_server_knows_its_holders() {
            faults::restarted_server(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn lost_requests_and_replies_are_repeated_without_harm() {
            faults::lost_messages(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn a_take_that_arrives_after_its_own_release_takes_nothing() {
            faults::late_take(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn a_downgrade_calls_readers_and_three_free_locks_are_one_trip() {
            faults::rooms(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn a_silent_server_is_an_outage_that_passes() {
            faults::silent_server(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn a_paused_server_is_waited_for() {
            faults::paused_server(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn dropped_tables_are_made_anew_after_the_holder_has_learnt_of_it() {
            faults::dropped_tables(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn renewals_go_on_while_the_application_blocks_its_thread() {
            faults::blocked_runtime(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn every_isolation_level_counts_right() {
            let (setting, levels) = <$site>::ISOLATION;
            for level in levels {
                let site = <$site>::start(&[(setting, level)]).await;
                faults::exact_count(&site, site.port()).await;
            }
        }

        #[tokio::test]
        async fn the_operator_sees_and_breaks() {
            faults::operators_view(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn what_dead_processes_left_is_removed() {
            faults::cleaned(&<$site>::start(&[]).await).await;
        }

        #[tokio::test]
        async fn a_killed_holder_is_replaced() {
            faults::killed_holder::<$site>(&faults::this_test()).await;
        }

        #[tokio::test]
        async fn a_frozen_holders_late_write_is_refused() {
            faults::frozen_holder::<$site>(&faults::this_test()).await;
        }
    };
}
pub(crate) use cases;

/// Killed connections lose no lock, and whoever waits is still served.
pub(crate) async fn killed_connections<S: Site>(site: &S) {
    let (one, other) = (locker(site.open(site.port()).await), locker(site.open(site.port()).await));
    let guard = one.lock("killed").await.unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn(async move { other.lock("killed").await.unwrap().fence() });
    let lines = one.clone();
    wait_until(async || is_wanted(site, "killed").await).await;
    site.kill_connections().await;
    // Long enough for renewals, by new connections.
    Clock::boot().sleep(TTL * 3 / 2).await;
    guard.check().unwrap();
    site.kill_connections().await;
    guard.release().await.unwrap();
    assert!(fence < within(waiting).await.unwrap());
    drop(lines);
}

async fn is_wanted<S: Site>(site: &S, name: &str) -> bool {
    let store = site.open(site.port()).await;
    let info = store.show(&Key::new(name).unwrap()).await.unwrap();
    info.is_some_and(|it| !it.waiters.is_empty())
}

async fn wait_until(check: impl AsyncFn() -> bool) {
    within(async {
        while !check().await {
            Clock::boot().sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A lock is kept for longer than the server keeps an idle connection.
pub(crate) async fn idle_time_out<S: Site>(site: &S) {
    let one = locker(site.open(site.port()).await);
    let guard = one.lock("idle").await.unwrap();
    Clock::boot().sleep(TTL * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    // The connection for commands was idle for long as well.
    one.lock("idle").await.unwrap().release().await.unwrap();
}

/// A server that was restarted knows its holders, and a guard survives it.
pub(crate) async fn restarted_server<S: Site>(site: &S) {
    let (one, other) = (locker(site.open(site.port()).await), locker(site.open(site.port()).await));
    let guard = one.lock("restarted").ttl(Duration::from_secs(30)).await.unwrap();
    site.restart().await.unwrap();
    guard.check().unwrap();
    let taken = within(async {
        // The first verbs may still meet the dead connection.
        loop {
            match other.try_lock("restarted").await {
                Ok(taken) => return taken.is_some(),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    });
    assert!(!taken.await, "the holder was forgotten");
    guard.release().await.unwrap();
    assert!(other.lock("restarted").await.is_ok());
}

/// A request or a reply that is lost on its way is repeated and does nothing twice.
pub(crate) async fn lost_messages<S: Site>(site: &S) {
    let proxy = Proxy::start(site.port()).await.unwrap();
    let (near, far) = (site.open(site.port()).await, site.open(proxy.port()).await);
    let (near_locker, far_locker) = (locker(near.clone()), locker(far));
    let (name, mut fence) = ("lost", None);
    // Both verbs carry the name's hash.
    let [taking, leaving] = S::marks(&Sha256::digest(name));
    for (lose, then) in [(Proxy::lose_request as fn(&_, &_), &taking), (Proxy::lose_reply, &leaving)] {
        lose(&proxy, &taking);
        let guard = far_locker.lock(name).await.unwrap();
        assert!(fence.replace(guard.fence()) < Some(guard.fence()));
        let info = near.show(&Key::new(name).unwrap()).await.unwrap().unwrap();
        assert_eq!((info.holders.len(), info.waiters.len()), (1, 0));
        lose(&proxy, then);
        guard.release().await.unwrap();
        let again = near_locker.try_lock(name).await.unwrap();
        again.unwrap().release().await.unwrap();
    }
    assert!(4 <= proxy.counters().cut);
}

/// A take that was held up on its way, and reaches the server after its own release, takes nothing.
pub(crate) async fn late_take<S: Site>(site: &S) {
    let proxy = Proxy::start(site.port()).await.unwrap();
    let (near, far) = (site.open(site.port()).await, site.open(proxy.port()).await);
    let take = async |name: &str| {
        let claim = Claim::new(Key::new(name).unwrap(), Duration::from_secs(600)).unwrap();
        let mut place = far.enter(claim);
        assert!(matches!(place.turn().await.unwrap(), Turn::Held(_)));
        place
    };
    take("before").await.leave().await.unwrap();
    let [taking, _] = S::marks(&Sha256::digest("late"));
    for round in 1..=2 {
        let open = proxy.counters().open;
        proxy.keep_request(&taking);
        // No answer comes on this connection: the same is asked again on another, and answered.
        let mut place = within(take("late")).await;
        assert_eq!(proxy.counters().kept, round);
        place.leave().await.unwrap();
        proxy.let_go();
        within(proxy.wait_for(|it| it.open <= open)).await.unwrap();
        let info = near.show(&Key::new("late").unwrap()).await.unwrap();
        assert!(info.is_none(), "held by nobody: {info:?}");
    }
}

/// A server that does not answer is an outage that passes, not a hang; and locks do not outlive their ttl.
pub(crate) async fn silent_server<S: Site>(site: &S) {
    let proxy = Proxy::start(site.port()).await.unwrap();
    let far =
        Locker::builder(site.open(proxy.port()).await).ttl(TTL).outage_max(Duration::from_secs(1)).build();
    let guard = far.lock("silent").await.unwrap();
    proxy.set_both(Rule::Hold);
    let error = within(async { far.lock("other").await.unwrap_err() }).await;
    assert!(error.is_transient(), "{error}");
    within(guard.lost()).await;
    assert!(!guard.is_valid());
    let near = locker(site.open(site.port()).await);
    let next = within(async { near.lock("silent").await.unwrap() }).await;
    assert!(guard.fence() < next.fence());
    proxy.set_both(Rule::Pass);
    within(async { while far.lock("other").await.is_err() {} }).await;
}

/// A server that stands still for a while is waited for.
pub(crate) async fn paused_server<S: Site>(site: &S) {
    let one = locker(site.open(site.port()).await);
    let guard = one.lock("paused").await.unwrap();
    site.pause().unwrap();
    Clock::boot().sleep(TTL / 3).await;
    site.resume().unwrap();
    Clock::boot().sleep(TTL).await;
    guard.check().unwrap();
}

/// Tables that were dropped are made anew; the old holder learns of it before a new one is let in.
pub(crate) async fn dropped_tables<S: Site>(site: &S) {
    let (one, other) = (locker(site.open(site.port()).await), locker(site.open(site.port()).await));
    let guard = one.lock("dropped").await.unwrap();
    let (fence, mut lost) = (guard.fence(), guard.lost());
    site.sql(S::DROP_TABLES).await;
    let mut waiting = tokio::spawn(async move { other.lock("dropped").await.unwrap().fence() });
    let first = within(async {
        tokio::select! {
            biased;
            reason = &mut lost => Ok(reason),
            next = &mut waiting => Err(next),
        }
    });
    assert!(first.await.is_ok(), "somebody was let in while the old holder believed itself valid");
    assert!(fence < within(waiting).await.unwrap());
}

/// Renewals go on while the application blocks its only thread.
pub(crate) async fn blocked_runtime<S: Site>(site: &S) {
    let one = locker(site.open(site.port()).await);
    let guard = one.lock("blocked").await.unwrap();
    std::thread::sleep(TTL * 3 / 2);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Tasks of several processes count to the right number.
pub(crate) async fn exact_count<S: Site>(site: &S, port: u16) {
    let counter = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let one = locker(site.open(port).await);
        for _ in 0..4 {
            let (one, counter) = (one.clone(), counter.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = one.lock("counted").await.unwrap();
                    let seen = counter.load(std::sync::atomic::Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    within(async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
    assert_eq!(counter.load(std::sync::atomic::Ordering::SeqCst), 120);
}

/// What the operator sees and does.
pub(crate) async fn operators_view<S: Site>(site: &S) {
    let store = site.open(site.port()).await;
    let (one, other) = (locker(store.clone()), locker(site.open(site.port()).await));
    let names = ["view/a", "view/a ", "view/A", "view/é", "views"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(one.lock(name).note("it's me \\ 🔒").await.unwrap());
    }
    let waiting = tokio::spawn(async move { other.lock("view/a").await.unwrap().fence() });
    wait_until(async || is_wanted(site, "view/a").await).await;
    let listed = store.list("view/").await.unwrap();
    let keys: Vec<&str> = listed.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["view/A", "view/a", "view/a ", "view/é"]);
    let blank: Vec<_> = store.list("view/a ").await.unwrap();
    assert_eq!(blank.len(), 1, "{blank:?}");
    let info = &listed[1];
    assert_eq!((info.holders.len(), info.waiters.len()), (1, 1));
    let holder = &info.holders[0];
    assert_eq!(holder.fence, Some(guards[0].fence()));
    assert_eq!(holder.label.pid, std::process::id());
    assert_eq!(holder.label.note.as_deref(), Some("it's me \\ 🔒"));
    assert!(holder.valid_for <= TTL && holder.since.is_some());
    assert_eq!(info.waiters[0].fence, None);
    assert!(store.show(&Key::new("view/none").unwrap()).await.unwrap().is_none());
    // Broken by hand: the holder is told, the next one enters with a larger fence.
    let broken = store.break_lock(&info.key).await.unwrap();
    assert_eq!(broken.len(), 1);
    assert!(guards[0].fence() < within(waiting).await.unwrap());
    within(guards[0].lost()).await;
    assert!(store.break_lock(&Key::new("view/none").unwrap()).await.unwrap().is_empty());
}

/// What dead processes left is removed, by several cleaners at once, and nothing else is.
pub(crate) async fn cleaned<S: Site>(site: &S) {
    let count = |table| format!("SELECT count(*) FROM {}lockkeeper_{table}", S::SCHEMA);
    let age = format!("UPDATE {}lockkeeper_lock SET counter = 1 WHERE name LIKE 'dead/%'", S::SCHEMA);
    let url = format!("{}?clean_every=100ms", site.url());
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(S::open_url(&url).await);
    }
    // Half of them alone, half with one who waits.
    for at in 0..30 {
        let claim =
            Claim::new(Key::new(&format!("dead/{}", at % 20)).unwrap(), Duration::from_millis(200)).unwrap();
        stores[0].enter(claim).turn().await.unwrap();
    }
    let guard = locker(stores[1].clone()).lock("living").await.unwrap();
    let left = async |table| site.sql(&count(table)).await.trim().parse::<u32>().unwrap();
    // The living one may stand in the lock's row.
    wait_until(async || left("claim").await <= 1).await;
    site.sql(&age).await;
    wait_until(async || left("lock").await == 1).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Hold many locks for a while; how many renewals the server has seen.
pub(crate) async fn hold_many<S: Site>(site: &S) -> usize {
    let one = locker(site.open(site.port()).await);
    let mut guards = Vec::new();
    for at in 0..100 {
        guards.push(one.lock(format!("many/{at}")).await.unwrap());
    }
    Clock::boot().sleep(TTL * 3 / 2).await;
    assert!(guards.iter().all(Guard::is_valid));
    guards.len()
}

/// A holder whose process is killed is replaced after its ttl, with a larger fence.
pub(crate) async fn killed_holder<S: Site>(test: &str) {
    if let Some(url) = child::told() {
        return hold_and_write::<S>(&url).await;
    }
    let site = S::start(&[]).await;
    let other = Other::start(test, &site.url());
    let fence: u64 = other.expect("held").parse().unwrap();
    let one = locker(site.open(site.port()).await);
    assert!(one.try_lock("process").await.unwrap().is_none());
    other.signal(Signal::KILL);
    let guard = within(async { one.lock("process").await.unwrap() }).await;
    assert!(fence < guard.fence().get());
}

/// A holder that is frozen past its ttl writes too late and is refused, because another has worked meanwhile.
pub(crate) async fn frozen_holder<S: Site>(test: &str) {
    if let Some(url) = child::told() {
        return hold_and_write::<S>(&url).await;
    }
    let site = S::start(&[]).await;
    let mut other = Other::start(test, &site.url());
    let fence: u64 = other.expect("held").parse().unwrap();
    other.say("write");
    other.expect("written");
    other.signal(Signal::STOP);
    let one = locker(site.open(site.port()).await);
    let guard = within(async { one.lock("process").await.unwrap() }).await;
    assert!(fence < guard.fence().get());
    assert!(S::write(&site.url(), guard.fence().get()).await);
    other.signal(Signal::CONT);
    other.say("write");
    other.expect("refused");
}

/// The other process: hold the lock, and write whenever told, without looking whether it is still ours.
async fn hold_and_write<S: Site>(url: &str) {
    let one = locker(S::open_url(url).await);
    let guard = one.lock("process").await.unwrap();
    child::tell(&format!("held {}", guard.fence().get()));
    while child::hear().await.is_some() {
        let written = S::write(url, guard.fence().get()).await;
        child::tell(if written { "written" } else { "refused" });
    }
}

/// Two clients in different time zones agree on who holds.
pub(crate) async fn agree(east: impl Backend, west: impl Backend) {
    let (east, west) = (Locker::new(east), Locker::new(west));
    for (one, other) in [(&east, &west), (&west, &east)] {
        let guard = one.lock("zones").await.unwrap();
        assert!(other.try_lock("zones").await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}
