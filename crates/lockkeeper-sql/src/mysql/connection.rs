//! All ways of one process to one server: which connection carries what, and what to do about one that fails.
//!
//! Commands travel over a connection on the caller's own runtime, so that a free lock costs no change of thread.
//! Renewals have a connection of their own, on the locker's thread, which is open before anything is granted: no
//! burst of commands and no want of connections comes between them and the server.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::kit::{caller_runtime, locked};
use lockkeeper_core::{Clock, Moment};
use mysql_async::Row;
use tokio::runtime::Handle;

use super::doubt::Doubts;
use super::fault::{Cure, Result, Trouble};
use super::link::{Ask, Link, Reply};
use super::options::MysqlOptions;
use super::schema;
use crate::retry;

/// The longest wait for the answer to a command, so that two attempts fit into what callers bear.
const COMMAND_MAX: Duration = Duration::from_secs(2);
const COMMAND_MIN: Duration = Duration::from_millis(500);
const RENEWAL_MIN: Duration = Duration::from_millis(100);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Commands,
    Renewals,
}

/// All ways of one process to one server.
pub(crate) struct Links {
    pub(crate) options: Arc<MysqlOptions>,
    pub(crate) clock: Clock,
    home: Arc<Link>,
    others: Mutex<Vec<(Use, Arc<Link>)>>,
    doubts: Arc<Doubts>,
    /// The longest ttl asked for, which is how long the room stays closed if the tables were lost.
    ttl_max: Mutex<Duration>,
}

impl Links {
    /// `runtime` is where the store is opened; it also drives the cleaner.
    pub(crate) fn new(options: MysqlOptions, runtime: Handle) -> Self {
        let (options, doubts) = (Arc::new(options), Arc::<Doubts>::default());
        Links {
            home: Arc::new(Link::start(options.clone(), runtime, Some(doubts.clone()))),
            doubts,
            options,
            clock: Clock::boot(),
            others: Mutex::default(),
            ttl_max: Mutex::default(),
        }
    }

    /// The runtime where the store was opened.
    pub(crate) fn home(&self) -> &Handle {
        &self.home.runtime
    }

    /// Remember a ttl, should the tables ever be lost.
    pub(crate) fn note_ttl(&self, ttl: Duration) {
        let mut longest = locked(&self.ttl_max);
        *longest = ttl.max(*longest);
    }

    /// How long to wait for the answer to a command about a lock of this ttl.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        (ttl / 6).clamp(COMMAND_MIN, COMMAND_MAX).min(self.options.common.timeout)
    }

    /// The same for a renewal: what the lock has left must suffice for a second attempt.
    pub(super) fn renewal_patience(&self, ttl: Duration) -> Duration {
        (ttl / 6).max(RENEWAL_MIN).min(self.options.common.timeout)
    }

    /// Send one or several statements for the operator and wait for their answers.
    pub(crate) async fn ask(&self, doing: &'static str, sql: &str) -> backend::Result<Vec<Vec<Row>>> {
        let (ask, patience) = (Ask::Text(sql.to_owned()), self.options.common.timeout);
        let reply = self.try_ask(&self.commands(), &ask, patience).await.map_err(|it| it.fault(doing))?;
        Ok(reply.rows)
    }

    /// Send a request by this way, or by a better one, until it is answered or there is no more sense in it.
    pub(super) async fn try_ask(&self, way: &Arc<Link>, ask: &Ask, patience: Duration) -> Result<Reply> {
        let (mut way, mut heard_since) = (way.clone(), Moment::from_nanos(0));
        let (mut reconnected, mut recreated) = (false, false);
        for attempt in 0.. {
            let began = self.clock.now();
            let trouble = match way.send(ask.clone(), patience, heard_since).await {
                Ok(reply) => return Ok(reply),
                Err(trouble) => trouble,
            };
            match trouble.cure() {
                Cure::Again if attempt < retry::ATTEMPTS_MAX => {
                    let pause = retry::pause(attempt, Duration::from_millis(1), Duration::from_millis(100));
                    self.clock.sleep(pause).await;
                }
                Cure::Reconnect if !reconnected => {
                    // A connection over which nothing was heard since then may be as dead as this one.
                    (reconnected, heard_since) = (true, began);
                    if way.is_dead() || way.is_stalled() {
                        way = self.own(Use::Commands);
                    }
                }
                Cure::Recreate if !recreated && self.options.common.create => {
                    recreated = true;
                    let quiet = *locked(&self.ttl_max);
                    schema::prepare(self, quiet).await?;
                }
                _ => return Err(trouble),
            }
        }
        Err(Trouble::Silent)
    }

    /// Make the tables ready, on first use of the store.
    pub(crate) async fn prepare(&self, doing: &'static str) -> backend::Result<()> {
        schema::prepare(self, Duration::ZERO).await.map_err(|it| it.fault(doing))
    }

    /// Open the connection for renewals, if there is none.
    pub(super) async fn ready_to_renew(&self, doing: &'static str) -> backend::Result<()> {
        let way = self.renewals();
        if !way.is_connected() {
            let patience = self.options.common.timeout;
            self.try_ask(&way, &Ask::Nothing, patience).await.map_err(|it| it.fault(doing))?;
        }
        Ok(())
    }

    /// The way for commands of the present caller: on its own runtime, unless nobody drives that.
    pub(super) fn commands(&self) -> Arc<Link> {
        let Some(caller) = caller_runtime() else { return self.own(Use::Commands) };
        let link = self.on(Use::Commands, caller);
        if link.is_dead() || link.is_stalled() { self.own(Use::Commands) } else { link }
    }

    /// Any way that is connected.
    pub(super) fn connected(&self) -> Option<Arc<Link>> {
        let usable = |it: &Arc<Link>| it.is_connected() && !it.is_dead() && !it.is_stalled();
        let others = locked(&self.others);
        others.iter().map(|it| &it.1).chain([&self.home]).find(|it| usable(it)).cloned()
    }

    /// The way for renewals.
    pub(super) fn renewals(&self) -> Arc<Link> {
        self.own(Use::Renewals)
    }

    /// A way on the present runtime, which while verbs are polled is the locker's own.
    fn own(&self, purpose: Use) -> Arc<Link> {
        Handle::try_current().map_or_else(|_| self.home.clone(), |it| self.on(purpose, it))
    }

    /// The way on this runtime: no other can block it, and it ends with nobody else.
    fn on(&self, purpose: Use, runtime: Handle) -> Arc<Link> {
        if purpose == Use::Commands && runtime.id() == self.home.runtime.id() {
            return self.home.clone();
        }
        let mut others = locked(&self.others);
        let found = others.iter().find(|it| it.0 == purpose && it.1.runtime.id() == runtime.id());
        if let Some((_, link)) = found {
            return link.clone();
        }
        others.retain(|it| !it.1.is_dead());
        // What keeps locks and places changes nothing if it is late, and must not be late itself.
        let doubts = (purpose == Use::Commands).then(|| self.doubts.clone());
        let link = Arc::new(Link::start(self.options.clone(), runtime, doubts));
        others.push((purpose, link.clone()));
        link
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("options", &self.options).finish_non_exhaustive()
    }
}
