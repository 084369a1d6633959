//! Connections: one for each runtime that uses the store, which is the one where it was opened and the keeper's.
//!
//! The driver cannot bear to be interrupted in the middle of a statement, so each connection belongs to a task
//! that nobody interrupts; callers send it statements and wait. What breaks is opened again at the next one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::backend;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::fault::{Cure, Result, Trouble};
use super::options::MysqlOptions;
use super::schema;
use crate::retry;

/// The rows of each statement of a request.
pub(crate) type Answer = Vec<Vec<Row>>;

/// What a statement without rows tells: how many rows it changed, and the number that it left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) changed: u64,
    pub(crate) number: u64,
}

/// What is asked of the server.
#[derive(Clone, Debug)]
enum Ask {
    /// Statements as text.
    Text(String),
    /// One statement that is prepared on its first use, and its parameters.
    Prepared(&'static str, Vec<Value>),
}

/// What each session is told at its beginning. Nothing depends on it: the procedures choose their isolation
/// themselves, and a wait for another transaction that takes too long is repeated.
const GREETING: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                        SET SESSION autocommit = 1, innodb_lock_wait_timeout = 5";

struct Request {
    ask: Ask,
    reply: oneshot::Sender<Result<(Answer, Done)>>,
}

/// A connection's task, driven by one runtime.
#[derive(Clone)]
struct Link {
    runtime: Handle,
    requests: mpsc::UnboundedSender<Request>,
}

/// All ways of one process to one server.
pub(crate) struct Links {
    pub(crate) options: Arc<MysqlOptions>,
    pub(crate) clock: Clock,
    home: Link,
    others: Mutex<Vec<Link>>,
    /// The longest ttl asked for, which is how long the room stays closed if the tables were lost.
    ttl_max: Mutex<Duration>,
}

impl Links {
    /// `runtime` is where the store is opened; it also drives the cleaner.
    pub(crate) fn new(options: MysqlOptions, runtime: Handle) -> Self {
        let options = Arc::new(options);
        Links {
            home: Link::start(options.clone(), runtime),
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

    /// Send one or several statements and wait for their answers.
    pub(crate) async fn ask(&self, doing: &'static str, sql: &str) -> backend::Result<Answer> {
        let (answer, _) = self.try_ask(&Ask::Text(sql.to_owned())).await.map_err(|it| it.fault(doing))?;
        Ok(answer)
    }

    /// Run one statement without rows that the server prepares once and keeps. Where it cannot, nothing is done.
    pub(crate) async fn run(
        &self,
        doing: &'static str,
        sql: &'static str,
        params: Vec<Value>,
    ) -> backend::Result<Done> {
        match self.try_ask(&Ask::Prepared(sql, params)).await {
            Ok((_, done)) => Ok(done),
            Err(trouble) if trouble.is_unprepared() => Ok(Done { changed: 0, number: 0 }),
            Err(trouble) => Err(trouble.fault(doing)),
        }
    }

    /// The same for a statement that answers one row of numbers.
    pub(crate) async fn numbers(&self, doing: &'static str, sql: &str) -> backend::Result<Vec<i64>> {
        let answer = self.ask(doing, sql).await?;
        let row = answer.into_iter().flatten().next();
        let numbers = row.map(|it| (0..it.len()).map(|at| it.get_opt(at)?.ok()).collect());
        let broken = || Trouble::Refused("the answer has another form than expected".into()).fault(doing);
        numbers.flatten().ok_or_else(broken)
    }

    /// Send statements until they are answered or there is no more sense in it.
    async fn try_ask(&self, ask: &Ask) -> Result<(Answer, Done)> {
        let (mut reconnected, mut recreated) = (false, false);
        for attempt in 0.. {
            let trouble = match self.link().send(ask.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            match trouble.cure() {
                Cure::Again if attempt < retry::ATTEMPTS_MAX => {
                    let pause = retry::pause(attempt, Duration::from_millis(1), Duration::from_millis(100));
                    self.clock.sleep(pause).await;
                }
                Cure::Reconnect if !reconnected => reconnected = true,
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

    /// Send statements once.
    pub(crate) async fn send(&self, sql: &str) -> Result<Answer> {
        let (answer, _) = self.link().send(Ask::Text(sql.to_owned())).await?;
        Ok(answer)
    }

    /// The present runtime's own way to the server: no other runtime can block it, and it ends with nobody else.
    fn link(&self) -> Link {
        let Ok(here) = Handle::try_current() else {
            return self.home.clone();
        };
        if here.id() == self.home.runtime.id() {
            return self.home.clone();
        }
        let mut others = locked(&self.others);
        others.retain(|it| !it.requests.is_closed());
        if let Some(link) = others.iter().find(|it| it.runtime.id() == here.id()) {
            return link.clone();
        }
        let link = Link::start(self.options.clone(), here);
        others.push(link.clone());
        link
    }
}

impl Link {
    fn start(options: Arc<MysqlOptions>, runtime: Handle) -> Self {
        let (requests, inbox) = mpsc::unbounded_channel();
        runtime.spawn(serve(options, inbox));
        Link { runtime, requests }
    }

    async fn send(&self, ask: Ask) -> Result<(Answer, Done)> {
        let (reply, answer) = oneshot::channel();
        let request = Request { ask, reply };
        self.requests.send(request).map_err(|_| Trouble::NoRuntime)?;
        answer.await.unwrap_or(Err(Trouble::NoRuntime))
    }
}

/// The connection's task: one statement after the other, until nobody can send any more.
async fn serve(options: Arc<MysqlOptions>, mut inbox: mpsc::UnboundedReceiver<Request>) {
    let (clock, mut open) = (Clock::boot(), None);
    while let Some(Request { ask, reply }) = inbox.recv().await {
        let answer = tokio::select! {
            biased;
            answer = run(&options, &mut open, ask) => answer,
            () = clock.sleep(options.common.answer_within) => Err(Trouble::Silent),
        };
        if answer.as_ref().is_err_and(Trouble::spoils) {
            // An unanswered statement blocks all behind it, and nobody can tell whose answer comes next.
            open = None;
        }
        // Whoever went away does not need the answer.
        let _ = reply.send(answer);
    }
    if let Some(conn) = open {
        // Say goodbye; if that fails the server notices by itself.
        let _ = conn.disconnect().await;
    }
}

async fn run(options: &MysqlOptions, open: &mut Option<Conn>, ask: Ask) -> Result<(Answer, Done)> {
    let conn = if let Some(conn) = open {
        conn
    } else {
        let mut conn = Conn::new(options.opts.clone()).await?;
        conn.query_drop(GREETING).await?;
        open.insert(conn)
    };
    let mut answer = Vec::new();
    match ask {
        Ask::Text(sql) => {
            let mut results = conn.query_iter(sql).await?;
            while !results.is_empty() {
                answer.push(results.collect().await?);
            }
        }
        Ask::Prepared(sql, params) => conn.exec_drop(sql, params).await?,
    }
    let done = Done { changed: conn.affected_rows(), number: conn.last_insert_id().unwrap_or(0) };
    Ok((answer, done))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("options", &self.options).finish_non_exhaustive()
    }
}
