//! A way to the server that is driven by one runtime: a connection, opened anew whenever it breaks or is silent.
//!
//! The driver pipelines: many tasks share one connection, and a task that goes away disturbs nobody. A connection
//! on which nothing at all is heard for a share of the ttl is given up as soon as a fresh one is open, and the
//! statement goes by that: whatever stands between may have dropped an idle connection without a word. Where the
//! server is only slow, the answer comes before the fresh connection does.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::Moment;
use lockkeeper_core::backend;
use lockkeeper_core::kit::locked;
use tokio::runtime::Handle;
use tokio_postgres::Row;

use super::dial::Dialer;
use super::doubt::Doubts;
use super::fault::{Cure, Result, Trouble};
use super::options::PostgresOptions;
use super::schema;
use super::session::{Ears, Param, Session};
use super::sql::{Sql, Statements};
use super::wake::Wake;
use crate::ahead::Chairs;
use crate::retry;

/// How often one statement is sent anew because its connection broke or was given up.
const RECONNECTS_MAX: u32 = 3;

/// What all ways of one process to one server have in common.
pub(crate) struct Shared {
    pub(crate) options: PostgresOptions,
    pub(crate) clock: Clock,
    pub(crate) dialer: Dialer,
    pub(crate) sql: Statements,
    pub(crate) wake: Arc<Wake>,
    pub(crate) chairs: Chairs<Session>,
    doubts: Doubts,
    /// A way that is always open, by which can be seen what the sessions of others do.
    witness: Mutex<Weak<Way>>,
    /// The longest ttl asked for, which is how long the room stays closed if the tables were lost.
    ttl_max: Mutex<Duration>,
}

impl Shared {
    pub(crate) fn new(options: PostgresOptions, dialer: Dialer) -> Self {
        Shared {
            sql: Statements::new(&options.schema),
            options,
            clock: Clock::boot(),
            dialer,
            wake: Arc::default(),
            chairs: Chairs::default(),
            doubts: Doubts::default(),
            witness: Mutex::default(),
            ttl_max: Mutex::default(),
        }
    }

    /// Remember a ttl, should the tables ever be lost.
    pub(crate) fn note_ttl(&self, ttl: Duration) {
        let mut longest = locked(&self.ttl_max);
        *longest = ttl.max(*longest);
    }

    pub(crate) async fn in_time<T, E: Into<Trouble>>(
        &self,
        answer: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = answer => answer.map_err(Into::into),
            () = self.clock.sleep(self.options.common.timeout) => Err(Trouble::Silent),
        }
    }
}

/// What a statement answered, and when it left.
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) sent_at: Moment,
    /// The session that answered; 0 if it may be another's the next moment.
    pub(crate) by: i64,
    /// It was sent more than once, and may have been done before.
    pub(crate) again: bool,
}

impl Answer {
    /// The numbers in the only row.
    pub(crate) fn numbers(&self, doing: &'static str) -> backend::Result<Vec<i64>> {
        let numbers = self.rows.first().map(|it| it.try_get(0)).transpose();
        let numbers = numbers.map_err(|it| Trouble::from(it).fault(doing))?;
        numbers.ok_or_else(|| Trouble::Refused("a function of Lockkeeper gave no answer".into()).fault(doing))
    }
}

/// A connection of one runtime, whenever it is needed.
pub(crate) struct Way {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Handle,
    ears: Option<Arc<Ears>>,
    session: Mutex<Option<Arc<Session>>>,
    /// Held while connecting, so that those who find the connection broken open one, not many.
    connecting: tokio::sync::Mutex<()>,
}

impl Way {
    pub(crate) fn new(shared: Arc<Shared>, runtime: Handle, ears: Option<Arc<Ears>>) -> Arc<Self> {
        let (session, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        let way = Arc::new(Way { shared, runtime, ears, session, connecting });
        if way.ears.is_some() {
            *locked(&way.shared.witness) = Arc::downgrade(&way);
        }
        way
    }

    /// The session, if one is open.
    pub(crate) fn open_session(&self) -> Option<Arc<Session>> {
        locked(&self.session).clone().filter(|it| !it.is_closed())
    }

    /// An open session.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        match self.open_session() {
            Some(session) => Ok(session),
            None => self.another(None).await,
        }
    }

    /// An open session other than this one, which is given up when there is another, and not before. Opened by a
    /// task of the way's own runtime, to which its socket belongs; whoever waits for it may go away or not be
    /// polled, and holds up nobody.
    async fn another(self: &Arc<Self>, silent: Option<Arc<Session>>) -> Result<Arc<Session>> {
        let way = self.clone();
        let opening = self.runtime.spawn(async move {
            let _connecting = way.connecting.lock().await;
            let is_silent = |it: &Arc<Session>| silent.as_ref().is_some_and(|silent| Arc::ptr_eq(it, silent));
            if let Some(session) = way.open_session().filter(|it| !is_silent(it)) {
                return Ok(session);
            }
            let session = Arc::new(way.shared.dialer.dial(way.ears.as_ref()).await?);
            *locked(&way.session) = Some(session.clone());
            if let Some(silent) = &silent {
                way.give_up(silent);
            }
            Ok(session)
        });
        self.shared.in_time(async { opening.await.unwrap_or(Err(Trouble::NoRuntime)) }).await
    }

    /// Never use this session again.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let mut current = locked(&self.session);
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, session)) {
            *current = None;
        }
        drop(current);
        self.give_up(session);
    }

    /// End a session on which something may be under way. What keeps locks and places changes nothing if it is late.
    fn give_up(&self, session: &Session) {
        if self.ears.is_none() {
            self.shared.doubts.add(session);
        }
        session.end();
    }

    /// Never use the present session again: its runtime does not move, and what it has not sent must not be sent.
    pub(crate) fn abandon(&self) {
        let session = locked(&self.session).clone();
        if let Some(session) = session {
            self.forget(&session);
        }
    }

    /// Run a statement. A connection that is silent for `patience` is given up for a fresh one.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        doing: &'static str,
        sql: impl Into<Sql<'_>>,
        params: &[Param<'_>],
        patience: Duration,
    ) -> backend::Result<Answer> {
        self.ask_or_again(doing, sql, [params, params], patience).await
    }

    /// The same with other parameters if it must be sent again.
    pub(crate) async fn ask_or_again(
        self: &Arc<Self>,
        doing: &'static str,
        sql: impl Into<Sql<'_>>,
        params: [&[Param<'_>]; 2],
        patience: Duration,
    ) -> backend::Result<Answer> {
        self.try_ask(sql.into(), params, patience).await.map_err(|it| it.fault(doing))
    }

    /// Send a statement until it is answered or there is no more sense in it.
    async fn try_ask(
        self: &Arc<Self>,
        sql: Sql<'_>,
        [mut params, again]: [&[Param<'_>]; 2],
        mut patience: Duration,
    ) -> Result<Answer> {
        let shared = &self.shared;
        let until = shared.clock.now().after(shared.options.common.timeout);
        let (mut reconnects, mut recreated) = (0, false);
        for attempt in 0.. {
            let session = self.session().await?;
            if self.ears.is_none() {
                shared.doubts.settle(&shared.clock, &session).await;
            }
            let trouble = match self.send(&session, sql, params, patience, until).await {
                Ok((rows, sent_at)) => {
                    return Ok(Answer { rows, sent_at, by: session.pid(), again: 0 < attempt });
                }
                Err(trouble) => trouble,
            };
            match trouble.cure() {
                Cure::Again if attempt < retry::ATTEMPTS_MAX => {
                    let pause = retry::pause(attempt, Duration::from_millis(1), Duration::from_millis(100));
                    shared.clock.sleep(pause).await;
                }
                Cure::Reconnect if reconnects < RECONNECTS_MAX => {
                    reconnects += 1;
                    self.forget(&session);
                }
                Cure::Recreate if !recreated && shared.options.common.create => {
                    recreated = true;
                    let quiet = *locked(&shared.ttl_max);
                    let _alone = session.alone().await;
                    shared.in_time(schema::prepare(&session.client, &shared.options, quiet)).await?;
                }
                _ if matches!(trouble, Trouble::Silent) => {
                    // An unanswered statement blocks all behind it.
                    self.forget(&session);
                    return Err(trouble);
                }
                _ => return Err(trouble),
            }
            // If it is the server that is slow, do not knock ever faster.
            (params, patience) = (again, patience.saturating_mul(2));
        }
        Err(Trouble::Silent)
    }

    /// Whether the server is busy with this session, as it says by another way.
    async fn is_at_work(&self, session: &Session, patience: Duration) -> bool {
        let witness = locked(&self.shared.witness).upgrade().and_then(|it| it.open_session());
        let (Some(identity), Some(witness)) = (&session.identity, witness) else { return false };
        tokio::select! {
            biased;
            it = identity.is_at_work(&witness) => it,
            () = self.shared.clock.sleep(patience) => false,
        }
    }

    /// Send a statement once. If nothing at all is heard for `patience`, and the server is not at work on it, a fresh
    /// connection is opened beside; if that is there before the answer, this one is given up: the answer is then an
    /// error that calls for another attempt.
    async fn send(
        self: &Arc<Self>,
        session: &Arc<Session>,
        sql: Sql<'_>,
        params: &[Param<'_>],
        patience: Duration,
        until: Moment,
    ) -> Result<(Vec<Row>, Moment)> {
        let clock = &self.shared.clock;
        let silence = async {
            let mut begun = clock.now();
            loop {
                let heard = begun.max(session.heard_at()).after(patience);
                if clock.now() < heard {
                    clock.sleep_until(heard).await;
                } else if self.ears.is_none() && self.is_at_work(session, patience).await {
                    begun = clock.now();
                } else {
                    return;
                }
            }
        };
        let doubt = async {
            silence.await;
            // Without another connection there is nothing to do but to wait for this one.
            let _ = self.another(Some(session.clone())).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            answer = session.query(sql, params) => answer.map_err(Trouble::from),
            () = doubt => Err(Trouble::Silent),
            () = clock.sleep_until(until) => Err(Trouble::Silent),
        }
    }
}
