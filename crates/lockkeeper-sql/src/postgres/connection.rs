//! Connections: one for each runtime that uses the store, which is the one where it was opened and the keeper's.
//!
//! The driver pipelines: many tasks share one connection, and a task that goes away disturbs nobody. What
//! breaks is opened again by whoever needs it next.
//!
//! No session state is relied on, so that a pooler in transaction mode may stand between. Prepared statements
//! are session state: under a pooler their names may mean another process's statement. So they are used only
//! where the session is proven to be ours alone.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::ClaimId;
use lockkeeper_core::Clock;
use lockkeeper_core::backend;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error, Row, Statement};

use super::fault::{Cure, Result, Trouble};
use super::options::PostgresOptions;
use super::schema;
use super::wire::Wire;
use crate::retry;

/// A parameter and its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// One open connection.
struct Session {
    client: Client,
    driver: AbortHandle,
    /// Prepared statements by their text; `None` if a pooler may stand between.
    prepared: Option<tokio::sync::Mutex<HashMap<String, Statement>>>,
}

/// A way to the server that is driven by one runtime.
struct Link {
    runtime: Handle,
    session: Mutex<Option<Arc<Session>>>,
    /// Held while connecting, so that those who find the connection broken open one, not many.
    connecting: tokio::sync::Mutex<()>,
}

/// All ways of one process to one server.
pub(crate) struct Links {
    pub(crate) options: PostgresOptions,
    pub(crate) clock: Clock,
    pub(crate) wire: Wire,
    home: Arc<Link>,
    others: Mutex<Vec<Arc<Link>>>,
    /// The longest ttl asked for, which is how long the room stays closed if the tables were lost.
    ttl_max: Mutex<Duration>,
}

impl Links {
    /// `runtime` is where the store is opened; it also drives the listener and the cleaner.
    pub(crate) fn new(options: PostgresOptions, wire: Wire, runtime: Handle) -> Self {
        Links {
            options,
            wire,
            clock: Clock::boot(),
            home: Arc::new(Link::new(runtime)),
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

    /// Run a statement that answers numbers, by the present runtime's own connection.
    pub(crate) async fn numbers(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> backend::Result<Vec<i64>> {
        let row = self.rows(doing, sql, params).await?.into_iter().next();
        let numbers = row.map(|it| it.try_get(0)).transpose();
        let numbers = numbers.map_err(|it| Trouble::from(it).fault(doing))?;
        numbers.ok_or_else(|| Trouble::Refused("a function of Lockkeeper gave no answer".into()).fault(doing))
    }

    /// Run a statement.
    pub(crate) async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> backend::Result<Vec<Row>> {
        self.try_rows(sql, params).await.map_err(|it| it.fault(doing))
    }

    /// Send a statement until it is answered or there is no more sense in it.
    async fn try_rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let (mut reconnected, mut recreated) = (false, false);
        for attempt in 0.. {
            let (link, session) = self.session().await?;
            let answer = self.in_time(session.query(sql, params)).await;
            let trouble = match answer {
                Ok(rows) => return Ok(rows),
                Err(trouble) => trouble,
            };
            match trouble.cure() {
                Cure::Again if attempt < retry::ATTEMPTS_MAX => {
                    let pause = retry::pause(attempt, Duration::from_millis(1), Duration::from_millis(100));
                    self.clock.sleep(pause).await;
                }
                Cure::Reconnect if !reconnected => {
                    reconnected = true;
                    link.forget(&session);
                }
                Cure::Recreate if !recreated && self.options.common.create => {
                    recreated = true;
                    let quiet = *locked(&self.ttl_max);
                    self.in_time(schema::prepare(&session.client, &self.options, quiet)).await?;
                }
                _ => {
                    if matches!(trouble, Trouble::Silent) {
                        // An unanswered statement blocks all behind it.
                        link.forget(&session);
                    }
                    return Err(trouble);
                }
            }
        }
        Err(Trouble::Silent)
    }

    /// Make the tables ready, on first use of the store.
    pub(crate) async fn prepare(&self, doing: &'static str) -> backend::Result<()> {
        let prepare = async {
            let (_, session) = self.session().await?;
            self.in_time(schema::prepare(&session.client, &self.options, Duration::ZERO)).await
        };
        prepare.await.map_err(|it| it.fault(doing))
    }

    async fn in_time<T, E: Into<Trouble>>(
        &self,
        answer: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = answer => answer.map_err(Into::into),
            () = self.clock.sleep(self.options.common.answer_within) => Err(Trouble::Silent),
        }
    }

    /// An open session of the present runtime, and the link it belongs to.
    async fn session(&self) -> Result<(Arc<Link>, Arc<Session>)> {
        let link = self.link();
        let session = link.session(&self.options, &self.wire).await?;
        Ok((link, session))
    }

    /// The present runtime's own way to the server: no other runtime can block it, and it ends with nobody else.
    fn link(&self) -> Arc<Link> {
        let Ok(here) = Handle::try_current() else {
            return self.home.clone();
        };
        if here.id() == self.home.runtime.id() {
            return self.home.clone();
        }
        let mut others = locked(&self.others);
        if let Some(link) = others.iter().find(|it| it.runtime.id() == here.id()) {
            return link.clone();
        }
        others.retain(|it| it.is_open());
        let link = Arc::new(Link::new(here));
        others.push(link.clone());
        link
    }
}

impl Session {
    /// Connect, and find out whether the session is ours alone: a word that we say when it begins is known to
    /// the server's session, but not to one that a pooler had before. Poolers refuse the word or swallow it.
    async fn open(config: Config, wire: Wire) -> Result<Self, Error> {
        let word = ClaimId::random().map_or_else(|_| String::new(), ClaimId::to_hex);
        let mut with_word = config.clone();
        let options = config.get_options().unwrap_or_default();
        with_word.options(format!("{options} -c lockkeeper.session={word}"));
        let (client, connection) = match with_word.connect(wire.tls()).await {
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                config.connect(wire.tls()).await?
            }
            connected => connected?,
        };
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let known = client.query_typed_one("SELECT current_setting('lockkeeper.session', true)", &[]).await?;
        let known: Option<&str> = known.try_get(0)?;
        let is_ours = !word.is_empty() && known == Some(word.as_str());
        let prepared = is_ours.then(tokio::sync::Mutex::default);
        Ok(Session { client, driver, prepared })
    }

    /// Run a statement, prepared if that is safe.
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let Some(prepared) = &self.prepared else {
            return self.client.query_typed(sql, params).await;
        };
        let mut prepared = prepared.lock().await;
        let statement = if let Some(statement) = prepared.get(sql) {
            statement.clone()
        } else {
            let types: Vec<Type> = params.iter().map(|it| it.1.clone()).collect();
            let statement = self.client.prepare_typed(sql, &types).await?;
            prepared.insert(sql.to_owned(), statement.clone());
            statement
        };
        drop(prepared);
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|it| it.0).collect();
        self.client.query(&statement, &values).await
    }
}

impl Link {
    fn new(runtime: Handle) -> Self {
        Link { runtime, session: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn is_open(&self) -> bool {
        locked(&self.session).as_ref().is_some_and(|it| !it.client.is_closed())
    }

    fn open_session(&self) -> Option<Arc<Session>> {
        locked(&self.session).clone().filter(|it| !it.client.is_closed())
    }

    async fn session(&self, options: &PostgresOptions, wire: &Wire) -> Result<Arc<Session>> {
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        // A socket belongs to the runtime on which it was made.
        let mut connecting = self.runtime.spawn(Session::open(options.config.clone(), wire.clone()));
        let opened = tokio::select! {
            biased;
            opened = &mut connecting => opened,
            () = Clock::boot().sleep(options.common.answer_within) => {
                connecting.abort();
                return Err(Trouble::Silent);
            }
        };
        let session = Arc::new(opened.map_err(|_| Trouble::NoRuntime)??);
        *locked(&self.session) = Some(session.clone());
        Ok(session)
    }

    /// Never use this session again.
    fn forget(&self, session: &Arc<Session>) {
        let mut current = locked(&self.session);
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, session)) {
            *current = None;
        }
        session.driver.abort();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("options", &self.options).finish_non_exhaustive()
    }
}
