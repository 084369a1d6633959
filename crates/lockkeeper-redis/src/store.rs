//! What all places of one backend share: the desks, the scripts, the bells of those who wait, and who minds them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::{caller_runtime, locked};
use lockkeeper_core::{Error, Key, Moment};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::bulk::{Bulk, Way};
use crate::connection::Asked;
use crate::desk::{Desk, Office};
use crate::dial::Dialer;
use crate::options::{Deployment, Host, RedisOptions, Replicas};
use crate::renewal::Answer;
use crate::script::{Call, Script, Scripts};
use crate::wake::{self, Bells, Holding};
use crate::{doctor, fault, naming, sentinel};

/// How long a `turn` that comes after its own `leave` is refused. Packets and stopped servers are not that late.
const REFUSED_FOR_MS: &[u8] = b"60000";

/// What is held is renewed after an alarm until it is answered, so often and with such pauses.
const RENEW_TRIES: u32 = 40;
const RENEW_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Store {
    office: Office,
    desks: Mutex<Vec<Arc<Desk>>>,
    /// The mark of all locks; none on a cluster, where each tag has its own.
    mark: Option<Arc<str>>,
    /// The largest counter seen, of any lock: what is given later must be larger. It only grows.
    /// Acquire and Release are more than enough: whoever asks for a name after somebody of this process had it knows of that by the
    /// queue, which orders the two.
    largest: AtomicU64,
    /// Whether a task minds alarms and sentinels, and how to end it. Acquire and Release, so that one caller begins it.
    minded: Arc<AtomicBool>,
    minder: Mutex<Option<AbortHandle>>,
    this: Weak<Store>,
}

/// Which call of a place.
pub(crate) struct Errand<'a> {
    pub(crate) doing: &'static str,
    pub(crate) main: &'a Arc<str>,
    pub(crate) tag: u8,
    pub(crate) mark: &'a str,
}

impl Store {
    pub(crate) fn new(options: RedisOptions) -> Result<Arc<Self>, Error> {
        let dialer = Arc::new(Dialer::new(options)?);
        let options = &dialer.options;
        let cluster = options.deployment == Deployment::Cluster;
        let mark = (!cluster).then(|| naming::mark_key(&options.prefix, None).into());
        let (bells, alarm): (Arc<Bells>, Arc<Notify>) = Default::default();
        let office = Office { dialer, scripts: Arc::new(Scripts::new(cluster)), bells, alarm };
        Ok(Arc::new_cyclic(|this| Store {
            office,
            desks: Mutex::default(),
            mark,
            largest: AtomicU64::new(0),
            minded: Arc::default(),
            minder: Mutex::default(),
            this: this.clone(),
        }))
    }

    pub(crate) fn options(&self) -> &RedisOptions {
        &self.office.dialer.options
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.office.scripts
    }

    pub(crate) fn bells(&self) -> &Bells {
        &self.office.bells
    }

    pub(crate) fn now(&self) -> Moment {
        self.office.dialer.clock.now()
    }

    pub(crate) fn main_key(&self, key: &Key) -> (String, u8) {
        naming::main_key(&self.options().prefix, key)
    }

    /// Where the largest counter of locks of this tag is kept.
    pub(crate) fn mark_key(&self, tag: u8) -> Arc<str> {
        self.mark.clone().unwrap_or_else(|| naming::mark_key(&self.options().prefix, Some(tag)).into())
    }

    /// The desk of whoever calls: on the caller's own runtime if it has one that runs, otherwise on the present one.
    pub(crate) fn desk(&self, doing: &'static str) -> Result<Arc<Desk>, Fault> {
        if let Some(caller) = caller_runtime() {
            let desk = self.desk_on(doing, caller)?;
            if !desk.is_stuck() {
                return Ok(desk);
            }
        }
        self.own_desk(doing)
    }

    /// The desk on the runtime that polls us, which runs.
    pub(crate) fn own_desk(&self, doing: &'static str) -> Result<Arc<Desk>, Fault> {
        let home = Handle::try_current().map_err(|_| {
            let what =
                "there is no tokio runtime here; call it from one, or through a `Locker`, which has its own";
            Fault::permanent(fault::NAME, doing, what)
        })?;
        self.desk_on(doing, home)
    }

    fn desk_on(&self, doing: &'static str, home: Handle) -> Result<Arc<Desk>, Fault> {
        let mut desks = locked(&self.desks);
        if let Some(desk) = desks.iter().find(|it| it.home.id() == home.id()) {
            return Ok(desk.clone());
        }
        // Runtimes come and go; what they leave behind is closed.
        desks.retain(|it| 1 < Arc::strong_count(it) || it.is_open());
        let desk = Desk::new(&self.office, home).map_err(|it| {
            Fault::transient(fault::NAME, doing, "no random name could be drawn").with_source(it)
        })?;
        let desk = Arc::new(desk);
        desks.push(desk.clone());
        Ok(desk)
    }

    /// Call a script for a lock of this tag from the caller's desk; where that does not run, from our own.
    pub(crate) async fn call(
        &self,
        desk: &Desk,
        errand: &Errand<'_>,
        script: &Script,
        call: &Call<'_>,
    ) -> Asked<Value> {
        let patience = self.options().timeout;
        let asked = desk.commands.call(errand.doing, errand.tag, script, call, patience).await;
        if asked.answer.is_ok() || !desk.is_stuck() {
            return asked;
        }
        let Ok(own) = self.own_desk(errand.doing) else { return asked };
        let again = own.commands.call(errand.doing, errand.tag, script, call, patience).await;
        Asked { in_doubt: asked.in_doubt || again.in_doubt, ..again }
    }

    /// The same, with what it needs on the way in memory of its own. It is so much that, as a part of each `turn` and `leave`,
    /// it would make them too large for the quick ways of the allocator, also where a crowd shares scripts and does not come
    /// by here.
    fn call_apart<'a>(
        &'a self,
        desk: &'a Desk,
        errand: &'a Errand<'_>,
        script: &'a Script,
        call: &'a Call<'_>,
    ) -> BoxFuture<'a, Asked<Value>> {
        Box::pin(self.call(desk, errand, script, call))
    }

    /// Take a place by `turn`. A newcomer, who names its `ttl_ms`, may find others to share a script with.
    pub(crate) async fn turn(
        &self,
        desk: &Desk,
        errand: &Errand<'_>,
        newcomer: Option<u64>,
        call: &Call<'_>,
    ) -> Asked<Value> {
        let script = if newcomer.is_some() { &self.scripts().turn } else { &self.scripts().turn_again };
        let Some(bulk) = &desk.bulk else {
            return self.call_apart(desk, errand, script, call).await;
        };
        let mut in_doubt = false;
        if let Some(ttl_ms) = newcomer
            && bulk.is_crowded()
            && let [record, ..] = call.args
        {
            let asked = bulk.take(&self.way(desk, errand), errand.main, record, ttl_ms).await;
            let Asked { sent_at, .. } = asked;
            in_doubt = asked.in_doubt;
            match asked.answer {
                Ok(None) => {}
                Ok(Some(counter)) => return Asked { answer: Ok(Value::Int(counter)), in_doubt, sent_at },
                Err(fault) => return Asked { answer: Err(fault), in_doubt, sent_at },
            }
        }
        let _under_way = bulk.begin();
        let asked = self.call_apart(desk, errand, script, call).await;
        Asked { in_doubt: in_doubt || asked.in_doubt, ..asked }
    }

    /// Give up by `leave`. In `doubt`, because a `turn` of the claim may still be on its way, that one is refused.
    pub(crate) async fn leave(&self, errand: &Errand<'_>, id: &[u8; 16], doubt: bool) -> Result<(), Fault> {
        let script = &self.scripts().leave;
        let args: [&[u8]; 2] = [id, REFUSED_FOR_MS];
        let call = Call { keys: &[errand.main], args: if doubt { &args } else { &args[..1] } };
        let desk = self.desk(errand.doing)?;
        let road = desk.open_for_renewals(errand.tag);
        let way = Way { road: road.unwrap_or(&desk.commands), ..self.way(&desk, errand) };
        let bulk = desk.bulk.as_ref().filter(|_| !doubt);
        if let Some(bulk) = bulk
            && bulk.is_crowded()
            && bulk.leave(&way, errand.main, *id).await.answer?
        {
            return Ok(());
        }
        let _under_way = bulk.map(Bulk::begin);
        let asked = match road {
            Some(road) => Box::pin(road.call(errand.doing, errand.tag, script, &call, way.patience)).await,
            None => self.call_apart(&desk, errand, script, &call).await,
        };
        asked.answer.map(drop)
    }

    /// Keep what this claim holds for the time that `kept` says. Whoever asks replicas asks them here, too.
    pub(crate) async fn linger(&self, errand: &Errand<'_>, kept: &Holding, doubt: bool) -> Result<(), Fault> {
        let mut span = [0; 20];
        let args: [&[u8]; 3] =
            [kept.id.as_bytes(), crate::place::digits(kept.ttl_ms, &mut span), REFUSED_FOR_MS];
        let call = Call { keys: &[&kept.main, errand.mark], args: if doubt { &args } else { &args[..2] } };
        let desk = self.desk(errand.doing)?;
        let answer = self.call(&desk, errand, &self.scripts().linger, &call).await.answer?;
        match &desk.sync {
            Some(sync) if answer == Value::Int(1) => sync.confirm(errand.doing, kept).await,
            _ => Ok(()),
        }
    }

    fn way<'a>(&self, desk: &'a Desk, errand: &Errand<'a>) -> Way<'a> {
        let Errand { doing, mark, .. } = *errand;
        let patience = self.options().timeout;
        Way { road: &desk.commands, doing, mark, floor: self.largest(), patience }
    }

    /// The largest counter that this process has seen.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Acquire)
    }

    /// This counter was given.
    pub(crate) fn note(&self, counter: u64) {
        self.largest.fetch_max(counter, Ordering::AcqRel);
    }

    /// Whether a grant may be taken from a message alone.
    pub(crate) fn trusts_words(&self) -> bool {
        self.options().replicas == Replicas::None && self.options().restart_guard.is_none()
    }

    /// How long the restart guard still forbids to take anything.
    pub(crate) async fn quiet_for(&self, doing: &'static str) -> Result<Option<Duration>, Fault> {
        if self.options().restart_guard.is_none() {
            return Ok(None);
        }
        let live = self.desk(doing)?.commands.open(doing, 0).await?;
        let left = live.grants_from() - self.now();
        Ok((!left.is_zero()).then_some(left))
    }

    /// What the clock of another server of this deployment says.
    pub(crate) async fn time_of(&self, host: &Host) -> Result<Duration, Fault> {
        let asking = "asking a replica for its time";
        let opened = self.office.dialer.server(host, Some(self.options().timeout), None).await;
        let mut connection = opened.map_err(|it| fault::of(asking, it))?;
        let answer = redis::cmd("TIME").query_async(&mut connection).await;
        let answer = answer.map_err(|it| fault::of(asking, it))?;
        doctor::as_time(answer).ok_or_else(|| Fault::transient(fault::NAME, asking, "it tells no time"))
    }

    /// See to it that somebody minds alarms and sentinels, on the present runtime.
    pub(crate) fn be_minded(&self) {
        if self.minded.load(Ordering::Acquire) || self.minded.swap(true, Ordering::AcqRel) {
            return;
        }
        let (minding, this) = (Minding(self.minded.clone()), self.this.clone());
        let (office, deployment) = (self.office.clone(), self.options().deployment.clone());
        let task = tokio::spawn(async move {
            let _minding = minding;
            let alarms = answer_alarms(this, office.alarm.clone());
            match deployment {
                Deployment::Sentinel { service } => {
                    let switched = || {
                        office.dialer.switch();
                        wake::ring_all(&office.bells);
                        office.alarm.notify_one();
                    };
                    tokio::join!(alarms, sentinel::watch(office.dialer.clone(), service, switched));
                }
                Deployment::Single | Deployment::Cluster => alarms.await,
            }
        });
        *locked(&self.minder) = Some(task.abort_handle());
    }

    /// Renew all that is held, at once. Whoever has lost it is told.
    async fn renew_all(&self) {
        for _ in 0..RENEW_TRIES {
            let (held, Ok(desk)) = (wake::held(self.bells()), self.own_desk("renewing the lock")) else {
                return;
            };
            if held.is_empty() {
                return;
            }
            let answers = join_all(held.iter().map(|it| desk.renewals.renew(&it.0))).await;
            for ((_, bell), answer) in held.iter().zip(&answers) {
                if let Ok(Answer::Lost) = answer {
                    bell.lose();
                }
            }
            if answers.iter().all(|it| it.is_ok() || it.as_ref().is_err_and(|it| !it.is_transient())) {
                return;
            }
            self.office.dialer.clock.sleep(RENEW_PAUSE).await;
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(minder) = locked(&self.minder).take() {
            minder.abort();
        }
    }
}

/// A task minds the store. If it goes away with its runtime, the next caller begins another. Release, for that one.
struct Minding(Arc<AtomicBool>);

impl Drop for Minding {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// After a switch, a reconnection or a move nobody knows whether what is held is still known. Ask, not at its turn
/// but at once: another server may have other clocks, and may have missed the last renewals.
async fn answer_alarms(store: Weak<Store>, alarm: Arc<Notify>) {
    loop {
        alarm.notified().await;
        // Those who are idle were rung before us, and give back what we would renew.
        tokio::task::yield_now().await;
        let Some(store) = store.upgrade() else { return };
        store.renew_all().await;
    }
}
