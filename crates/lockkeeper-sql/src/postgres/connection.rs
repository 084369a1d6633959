//! All connections of one process: for each runtime that uses the store one for commands, and for each locker one
//! on its own thread for renewals and messages.
//!
//! A caller's verbs go by a connection of its own runtime, which is quicker than one of another thread. Where
//! that runtime has ended, or does not move, they go by the locker's, which always does.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::ClaimId;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::caller_runtime;
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::NAME;
use super::cleaner;
use super::crowd::Link;
use super::dial::Dialer;
use super::fault::Trouble;
use super::keeper::Keeper;
use super::options::PostgresOptions;
use super::schema;
use super::session::Param;
use super::way::{Answer, Shared, Way};
use lockkeeper_core::kit::lane::{self, Carry};

/// All ways of one process to one server.
pub(crate) struct Links {
    pub(crate) shared: Arc<Shared>,
    commands: Mutex<Vec<Arc<Link>>>,
    keepers: Mutex<Vec<Arc<Keeper>>>,
}

impl Links {
    pub(crate) fn new(options: PostgresOptions, dialer: Dialer) -> Self {
        let shared = Arc::new(Shared::new(options, dialer));
        Links { shared, commands: Mutex::default(), keepers: Mutex::default() }
    }

    /// The queues and the connection of this runtime.
    fn link_of(&self, runtime: &Handle) -> Arc<Link> {
        let mut links = locked(&self.commands);
        if let Some(link) = links.iter().find(|it| it.way.runtime.id() == runtime.id()) {
            return link.clone();
        }
        // Runtimes that have ended take their connections with them.
        links.retain(|it| it.way.open_session().is_some() || 1 < Arc::strong_count(it));
        let link = Arc::new(Link::new(Way::new(self.shared.clone(), runtime.clone(), None)));
        links.push(link.clone());
        link
    }

    /// What keeps the locks of the locker whose verb this is.
    pub(crate) fn keeper(&self, doing: &'static str) -> Result<Arc<Keeper>> {
        let own = Handle::try_current().map_err(|_| Trouble::NoRuntime.fault(doing))?;
        let mut keepers = locked(&self.keepers);
        if let Some(keeper) = keepers.iter().find(|it| it.runtime().id() == own.id()) {
            return Ok(keeper.clone());
        }
        keepers.retain(|it| it.is_open() || 1 < Arc::strong_count(it));
        let keeper = Keeper::start(self.shared.clone(), &own)?;
        cleaner::start(&keeper);
        keepers.push(keeper.clone());
        Ok(keeper)
    }

    /// Ask by the caller's connection, or by the locker's own if the caller's runtime does not move.
    pub(crate) async fn ask<I, A>(&self, doing: &'static str, patience: Duration, item: I) -> Result<A>
    where
        Link: Carry<I, A>,
        I: Clone + Send + 'static,
        A: Send + 'static,
    {
        let own = Handle::try_current().map_err(|_| Trouble::NoRuntime.fault(doing))?;
        if let Some(callers) = caller_runtime().filter(|it| it.id() != own.id()) {
            let link = self.link_of(&callers);
            let asked = lane::ask_here(&link, &callers, item.clone());
            if let Some(answer) = self.while_it_moves(&callers, patience, asked).await {
                return answer;
            }
            link.way.abandon();
        }
        let link = self.link_of(&own);
        let answer = lane::ask(&link, &own, item).await;
        answer.unwrap_or_else(|| Err(Trouble::NoRuntime.fault(doing)))
    }

    /// The answer, or `None` if it cannot come because this runtime has ended or nobody drives it.
    async fn while_it_moves<T>(
        &self,
        runtime: &Handle,
        patience: Duration,
        answer: impl Future<Output = Option<T>>,
    ) -> Option<T> {
        let (clock, mut answer) = (&self.shared.clock, std::pin::pin!(answer));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = clock.sleep(patience) => {}
            }
            let sign = runtime.spawn(async {});
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                sign = sign => if sign.is_err() { return None },
                () = clock.sleep(patience) => return None,
            }
        }
    }

    /// Another session than the one that holds this claim's bell has left for it: let go of the bell.
    pub(crate) fn silence(&self, holder: i64, id: ClaimId) {
        let holds =
            |it: &Arc<Link>| it.way.open_session().filter(|it| it.pid() == holder).map(|_| it.way.clone());
        let Some(way) = locked(&self.commands).iter().find_map(holds) else { return };
        let runtime = way.runtime.clone();
        runtime.spawn(async move {
            let Some(session) = way.open_session() else { return };
            let id = id.as_bytes().as_slice();
            // If it fails the session has ended, and the bell with it.
            let _ = session.query(&way.shared.sql.silence, &[(&id, Type::BYTEA)]).await;
        });
    }

    /// Run a statement that is no verb of a lock.
    pub(crate) async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        self.statement(doing, sql, params).await.map(|it| it.rows)
    }

    async fn statement(&self, doing: &'static str, sql: &str, params: &[Param<'_>]) -> Result<Answer> {
        let way = self.here(doing)?;
        way.ask(doing, sql, params, self.shared.options.common.timeout).await
    }

    fn here(&self, doing: &'static str) -> Result<Arc<Way>> {
        let here = caller_runtime().map_or_else(Handle::try_current, Ok);
        let here = here.map_err(|_| {
            Fault::permanent(
                NAME,
                doing,
                "this must be called inside a tokio runtime, which drives the connection",
            )
        })?;
        Ok(self.link_of(&here).way.clone())
    }

    /// Make the tables ready, and remove a little of what dead processes left: where only short processes run,
    /// nobody else does. Whether our sessions are ours alone.
    pub(crate) async fn prepare(&self, doing: &'static str) -> Result<bool> {
        let (way, shared) = (self.here(doing)?, &self.shared);
        let prepare = async {
            let session = way.session().await?;
            let _alone = session.alone().await;
            shared.in_time(schema::prepare(&session.client, &shared.options, Duration::ZERO)).await?;
            Ok(session.is_ours())
        };
        let is_ours = prepare.await.map_err(|it: Trouble| it.fault(doing))?;
        cleaner::clean(&way).await;
        Ok(is_ours)
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
