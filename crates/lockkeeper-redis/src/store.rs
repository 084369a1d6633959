//! What all places of one backend share: the connections, the scripts, the board of those who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::backend::Fault;
use lockkeeper_core::{ClaimId, Error, Key, Moment};
use redis::Value;
use tokio::runtime::Handle;

use crate::bulk::Bulk;
use crate::connection::{Ears, Link};
use crate::dial::{Dialer, SharedDialer};
use crate::options::{Deployment, Host, Options, Replicas};
use crate::renewal::Renewals;
use crate::script::{Call, Scripts};
use crate::sync::Sync;
use crate::wake::Board;
use crate::{doctor, fault, naming};

/// A tenth of a second, in ticks.
const CLOCK_STEP_TICKS: u64 = 10_000;

/// How long a `turn` that comes after its own `leave` is refused. Packets and stopped servers are not that late.
const REFUSED_FOR_MS: &[u8] = b"60000";

#[derive(Debug)]
pub(crate) struct Store {
    dialer: SharedDialer,
    scripts: Arc<Scripts>,
    board: Arc<Board>,
    commands: Link,
    /// Not on a cluster, where calls for different slots cannot share a script.
    bulk: Option<Bulk>,
    /// The largest counter seen, of any lock: counters are times, so a much smaller one means a clock set back.
    largest: AtomicU64,
    ears: Option<Ears>,
    renewals: Renewals,
    sync: Option<Sync>,
}

impl Store {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let process = ClaimId::random()?.to_hex()[..16].to_owned();
        let dialer = Arc::new(Dialer::new(options)?);
        let options = &dialer.options;
        let cluster = options.deployment == Deployment::Cluster;
        let (scripts, board) = (Arc::new(Scripts::new(cluster)), Arc::new(Board::new(process)));
        let home = Handle::try_current().ok();
        let link = |board, timeout, home| Link::new(dialer.clone(), board, timeout, home);
        let commands = link((!cluster).then(|| board.clone()), options.timeout, home.clone());
        let bulk = (!cluster).then(|| Bulk::new(scripts.clone()));
        let ears = cluster.then(|| Ears::new(dialer.clone(), board.clone(), home.clone()));
        let renewals = Renewals::new(link(None, options.timeout, None), scripts.clone(), cluster);
        let sync = (options.replicas != Replicas::None).then(|| {
            let timeout = options.timeout + options.replicas_timeout;
            Sync::new(link(None, timeout, home), dialer.clone(), scripts.clone())
        });
        let largest = AtomicU64::new(0);
        Ok(Store { dialer, scripts, board, commands, bulk, largest, ears, renewals, sync })
    }

    pub(crate) fn options(&self) -> &Options {
        &self.dialer.options
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    pub(crate) fn commands(&self) -> &Link {
        &self.commands
    }

    pub(crate) fn renewals(&self) -> &Renewals {
        &self.renewals
    }

    pub(crate) fn sync(&self) -> Option<&Sync> {
        self.sync.as_ref()
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn process(&self) -> &str {
        &self.board.process
    }

    pub(crate) fn now(&self) -> Moment {
        self.dialer.clock.now()
    }

    pub(crate) fn main_key(&self, key: &Key) -> (String, u8) {
        naming::main_key(&self.options().prefix, key)
    }

    /// Take a place by `turn`. A `newcomer` may find others to share a script with.
    pub(crate) async fn turn(
        &self,
        doing: &'static str,
        newcomer: bool,
        call: &Call<'_>,
    ) -> Result<Value, Fault> {
        let Some(bulk) = &self.bulk else {
            return self.commands.call(doing, &self.scripts.turn, call).await;
        };
        if newcomer
            && bulk.is_crowded()
            && let ([main], [record, ttl, ..]) = (call.keys, call.args)
            && let Some(counter) = bulk.take(&self.commands, doing, main, record, ttl).await?
        {
            return Ok(Value::Int(counter));
        }
        let _under_way = bulk.begin();
        self.commands.call(doing, &self.scripts.turn, call).await
    }

    /// Give up by `leave`. In `doubt`, because a `turn` of the claim may still be on its way, that one is refused.
    pub(crate) async fn leave(
        &self,
        doing: &'static str,
        main: &str,
        id: &[u8; 16],
        doubt: bool,
    ) -> Result<(), Fault> {
        if doubt {
            let call = Call { keys: &[main], args: &[id, REFUSED_FOR_MS] };
            return self.commands.call(doing, &self.scripts.leave, &call).await.map(drop);
        }
        let call = Call { keys: &[main], args: &[id] };
        let Some(bulk) = &self.bulk else {
            return self.commands.call(doing, &self.scripts.leave, &call).await.map(drop);
        };
        if bulk.is_crowded() && bulk.leave(&self.commands, doing, main, *id).await? {
            return Ok(());
        }
        let _under_way = bulk.begin();
        self.commands.call(doing, &self.scripts.leave, &call).await.map(drop)
    }

    /// The counter that a grant must outdo, if the server's clock was set back since an earlier grant.
    ///
    /// Answers that overtake each other differ by less than a clock that is worth setting.
    pub(crate) fn must_outdo(&self, counter: u64) -> Option<u64> {
        let largest = self.largest.fetch_max(counter, Ordering::AcqRel);
        (counter.saturating_add(CLOCK_STEP_TICKS) < largest).then_some(largest)
    }

    /// Whether a grant may be taken from a message alone.
    pub(crate) fn trusts_words(&self) -> bool {
        self.sync.is_none() && self.options().restart_guard.is_none()
    }

    /// How long the restart guard still forbids to take anything.
    pub(crate) async fn quiet_for(&self, doing: &'static str) -> Result<Option<Duration>, Fault> {
        if self.options().restart_guard.is_none() {
            return Ok(None);
        }
        let live = self.commands.open(doing).await?;
        let left = live.grants_from() - self.now();
        Ok((!left.is_zero()).then_some(left))
    }

    /// What the clock of another server of this deployment says.
    pub(crate) async fn time_of(&self, host: &Host) -> Result<Duration, Fault> {
        let asking = "asking a replica for its time";
        let opened = self.dialer.server(host, self.options().timeout, None).await;
        let (mut connection, _) = opened.map_err(|it| fault::of(asking, it))?;
        let answer = redis::cmd("TIME").query_async(&mut connection).await;
        let answer = answer.map_err(|it| fault::of(asking, it))?;
        doctor::as_time(answer).ok_or_else(|| Fault::transient(fault::NAME, asking, "it tells no time"))
    }

    /// Whether messages about locks of this tag do not reach us yet.
    pub(crate) fn must_listen(&self, tag: u8) -> bool {
        self.ears.as_ref().is_some_and(|it| !it.listens_to(tag))
    }

    pub(crate) async fn listen(&self, tag: u8) -> Result<(), Fault> {
        match &self.ears {
            Some(ears) => ears.listen_to(tag).await,
            None => Ok(()),
        }
    }
}
