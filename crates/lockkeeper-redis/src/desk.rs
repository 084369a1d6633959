//! A desk: the connections that live on one runtime, and the name by which messages find it.
//!
//! ```text
//!  commands   turn, leave and the messages of the wake channel; beside it a socket for whoever is alone
//!  ears       cluster only: sharded wake channels, apart from the commands, because the client library
//!             takes an unsubscription that the server decided on for the answer to a command
//!  renewals   apart from the commands, which may queue; used on the keeper's own thread only
//!  sync       WAIT, which blocks a connection
//! ```
//!
//! A connection is quickest on the runtime of those who use it: no thread must wake another. But a runtime may stand
//! still, or end, while others need the store. So every runtime has connections of its own, and where one does not
//! run, the locker's own does the work. There, too, those are called who may be idle, whatever runtime they asked from.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::Fault;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Error};
use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::bulk::Bulk;
use crate::dial::SharedDialer;
use crate::fault;
use crate::naming;
use crate::options::{Deployment, Replicas};
use crate::renewal::Renewals;
use crate::road::Road;
use crate::script::Scripts;
use crate::sync::Sync;
use crate::wake::{Bells, Ear, ring_all};

/// How often a subscription follows a slot that moves.
const MOVES_MAX: usize = 4;

/// What the desks of one store have in common.
#[derive(Clone, Debug)]
pub(crate) struct Office {
    pub(crate) dialer: SharedDialer,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) bells: Arc<Bells>,
    /// Rung when something broke or changed: what is held should be renewed at once.
    pub(crate) alarm: Arc<Notify>,
}

impl Office {
    /// Called when a connection breaks: whoever waits asks again, and whoever holds is renewed.
    fn on_break(&self) -> Arc<dyn Fn() + Send + std::marker::Sync> {
        let (bells, alarm) = (self.bells.clone(), self.alarm.clone());
        Arc::new(move || {
            ring_all(&bells);
            alarm.notify_one();
        })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.dialer.options.deployment == Deployment::Cluster
    }
}

#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) home: Handle,
    /// Our name in wake channels: 16 characters.
    pub(crate) process: String,
    pub(crate) commands: Road,
    /// Not on a cluster, where calls for different slots cannot share a script.
    pub(crate) bulk: Option<Bulk>,
    pub(crate) ears: Option<Ears>,
    pub(crate) renewals: Renewals,
    pub(crate) sync: Option<Sync>,
}

impl Desk {
    pub(crate) fn new(office: &Office, home: Handle) -> Result<Self, Error> {
        let process = ClaimId::random()?.to_hex()[..16].to_owned();
        let (dialer, cluster, broken) = (&office.dialer, office.is_cluster(), office.on_break());
        let options = &dialer.options;
        let channel = (!cluster).then(|| naming::channel(&options.prefix, None, &process));
        let bells = (!cluster).then(|| office.bells.clone());
        let ear = Ear { bells, channel, deaf: broken.clone() };
        let silent = Ear { bells: None, channel: None, deaf: broken.clone() };
        let road = |ear, for_calls| Road::new(dialer, Some(ear), for_calls, &home, &broken);
        let ears = cluster.then(|| Ears::new(office, &home, process.clone()));
        Ok(Desk {
            process,
            commands: road(ear, true),
            bulk: (!cluster).then(|| Bulk::new(office.scripts.clone())),
            ears,
            renewals: Renewals::new(road(silent.clone(), false), office.scripts.clone(), cluster),
            sync: (options.replicas != Replicas::None)
                .then(|| Sync::new(road(silent, false), dialer.clone(), office.scripts.clone())),
            home,
        })
    }

    /// Whether it is of no use: its runtime does not run.
    pub(crate) fn is_stuck(&self) -> bool {
        self.commands.is_stuck() || self.sync.as_ref().is_some_and(Sync::is_stuck)
    }

    /// The connection for renewals of this tag, where it is the only one that is open.
    ///
    /// Whoever gives something back in the background comes to a desk from which nothing may have been asked yet. What is
    /// open is quicker than what must be opened first, and still leads to the server where no answer comes back any more:
    /// there nothing can be opened.
    pub(crate) fn open_for_renewals(&self, tag: u8) -> Option<&Road> {
        (!self.commands.is_open_for(tag)).then(|| self.renewals.open_road(tag)).flatten()
    }

    /// Whether anything is open here.
    pub(crate) fn is_open(&self) -> bool {
        self.commands.is_open() || self.renewals.is_open()
    }

    /// Whether messages about locks of this tag reach us here.
    pub(crate) fn hears(&self, tag: u8) -> bool {
        match &self.ears {
            Some(ears) => ears.listens_to(tag),
            None => self.commands.is_open_for(tag),
        }
    }

    /// See to it that they do.
    pub(crate) async fn begin_to_hear(&self, doing: &'static str, tag: u8) -> Result<(), Fault> {
        match &self.ears {
            Some(ears) => ears.listen_to(doing, tag).await,
            None => self.commands.open(doing, tag).await.map(drop),
        }
    }
}

/// A cluster's sharded wake channels: one per hash tag in which somebody waits.
pub(crate) struct Ears {
    road: Road,
    prefix: String,
    process: String,
    timeout: Duration,
    heard: Arc<Mutex<HashSet<u8>>>,
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ears").field("channels", &locked(&self.heard).len()).finish_non_exhaustive()
    }
}

impl Ears {
    fn new(office: &Office, home: &Handle, process: String) -> Self {
        let heard: Arc<Mutex<HashSet<u8>>> = Arc::default();
        let (forget, broken) = (heard.clone(), office.on_break());
        let deaf: Arc<dyn Fn() + Send + std::marker::Sync> = Arc::new(move || {
            locked(&forget).clear();
            broken();
        });
        let ear = Ear { bells: Some(office.bells.clone()), channel: None, deaf: deaf.clone() };
        let options = &office.dialer.options;
        let road = Road::new(&office.dialer, Some(ear), false, home, &deaf);
        Ears { road, prefix: options.prefix.clone(), process, timeout: options.timeout, heard }
    }

    /// Whether the channel of this tag is subscribed, as far as we know.
    pub(crate) fn listens_to(&self, tag: u8) -> bool {
        locked(&self.heard).contains(&tag)
    }

    /// Subscribe to the channel of this tag.
    pub(crate) async fn listen_to(&self, doing: &'static str, tag: u8) -> Result<(), Fault> {
        if self.listens_to(tag) {
            return Ok(());
        }
        let mut command = Cmd::new();
        command.arg("SSUBSCRIBE").arg(naming::channel(&self.prefix, Some(tag), &self.process));
        for _ in 0..MOVES_MAX {
            let live = self.road.open(doing, tag).await?;
            match live.send(&command, self.timeout).await {
                Ok(_) => {
                    locked(&self.heard).insert(tag);
                    return Ok(());
                }
                Err(error) if self.road.follow(tag, &error) => {}
                Err(error) => return Err(live.fault(doing, error)),
            }
        }
        Err(Fault::transient(fault::NAME, doing, "the cluster sends us from one server to the other"))
    }
}
