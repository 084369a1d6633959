//! The way to a lock: the one server, or that server of a cluster which keeps its slot.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::Fault;
use redis::{RedisError, Value};
use tokio::runtime::Handle;

use crate::connection::{Asked, Link, Live};
use crate::dial::{Goal, SharedDialer};
use crate::naming;
use crate::options::{Deployment, Host};
use crate::script::{Call, Script};
use crate::shards::Shards;
use crate::wake::Ear;

/// Supervised connections to wherever locks are kept.
#[derive(Debug)]
pub(crate) enum Road {
    One(Link),
    Many(Shards),
}

impl Road {
    /// `for_calls` says that callers wait for their answers one by one. `moved` is called when another server of a cluster
    /// keeps a slot than we thought.
    pub(crate) fn new(
        dialer: &SharedDialer,
        ear: Option<Ear>,
        for_calls: bool,
        home: &Handle,
        moved: &Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        if dialer.options.deployment == Deployment::Cluster {
            return Road::Many(Shards::new(dialer.clone(), ear, for_calls, home.clone(), moved.clone()));
        }
        Road::One(Link::new(dialer.clone(), Goal::Primary, ear, for_calls, home.clone()))
    }

    /// Call a script where locks of this tag are kept. If no answer comes it is sent once more.
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        tag: u8,
        script: &Script,
        call: &Call<'_>,
        patience: Duration,
    ) -> Asked<Value> {
        match self {
            Road::One(link) => link.call(doing, script, call, patience).await,
            Road::Many(shards) => shards.call(doing, naming::slot_of_tag(tag), script, call, patience).await,
        }
    }

    /// Whether the store answers. Of a cluster it is enough that it is known who keeps what: the one that keeps some
    /// slot may be gone, which concerns only the locks in it.
    pub(crate) async fn reach(&self, doing: &'static str) -> Result<(), Fault> {
        match self {
            Road::One(link) => link.open(doing).await.map(drop),
            Road::Many(shards) => shards.primaries(doing).await.map(drop),
        }
    }

    /// The connection to where locks of this tag are kept.
    pub(crate) async fn open(&self, doing: &'static str, tag: u8) -> Result<Live, Fault> {
        match self {
            Road::One(link) => link.open(doing).await,
            Road::Many(shards) => shards.open(doing, naming::slot_of_tag(tag)).await,
        }
    }

    /// Follow a redirect of a command that is not a script. Whether there was one.
    pub(crate) fn follow(&self, tag: u8, error: &RedisError) -> bool {
        match self {
            Road::One(_) => false,
            Road::Many(shards) => shards.follow(naming::slot_of_tag(tag), error),
        }
    }

    /// Every server that keeps locks, with its name.
    pub(crate) async fn servers(&self, doing: &'static str) -> Result<Vec<(String, Live)>, Fault> {
        match self {
            Road::One(link) => Ok(vec![("the server".to_owned(), link.open(doing).await?)]),
            Road::Many(shards) => {
                let mut servers = Vec::new();
                for host in shards.primaries(doing).await? {
                    servers.push((host.to_string(), shards.reach(doing, &host).await?));
                }
                Ok(servers)
            }
        }
    }

    /// Each named node of a cluster, and whether it is one of ours, or why it does not tell.
    pub(crate) async fn roll_call(
        &self,
        doing: &'static str,
    ) -> Result<Vec<(Host, Result<bool, Fault>)>, Fault> {
        match self {
            Road::One(_) => Ok(Vec::new()),
            Road::Many(shards) => shards.roll_call(doing).await,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        match self {
            Road::One(link) => link.is_open(),
            Road::Many(shards) => shards.is_open(),
        }
    }

    /// Whether the connection to where locks of this tag are kept is open.
    pub(crate) fn is_open_for(&self, tag: u8) -> bool {
        match self {
            Road::One(link) => link.is_open(),
            Road::Many(shards) => shards.is_open_for(naming::slot_of_tag(tag)),
        }
    }

    /// Whether the runtime where its connections live does not run.
    pub(crate) fn is_stuck(&self) -> bool {
        match self {
            Road::One(link) => link.is_stuck(),
            Road::Many(shards) => shards.is_stuck(),
        }
    }
}
