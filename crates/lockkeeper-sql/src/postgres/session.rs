//! One open connection: its settings, its prepared statements, and when the server was last heard on it.
//!
//! No session state is relied on where a pooler in transaction mode may stand between. Prepared statements and
//! settings are session state: under a pooler they may be another process's. So they are used only where the
//! session is proven to be ours alone; elsewhere what matters most is set for each transaction.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockkeeper_core::{ClaimId, Clock, Moment};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{MutexGuard, Notify};
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Row, SimpleQueryMessage, Statement};

use super::doubt::Identity;
use super::fault::{Result, Trouble};
use super::socket::{self, Address, Socket, Stream};
use super::sql::Sql;
use super::wake::{self, Wake};
use super::wire::Wire;
use crate::joint::{self, Joint};

/// A parameter and its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What our statements rely on: a setting, what it is set to, and whether the server may write that differently.
const SETTINGS: [(&str, &str, bool); 23] = [
    ("default_transaction_isolation", "read committed", false),
    ("default_transaction_read_only", "off", false),
    ("default_transaction_deferrable", "off", false),
    ("search_path", "pg_catalog, pg_temp", false),
    // A plan that was made while the tables were small must not read them whole when they are large.
    ("enable_seqscan", "off", false),
    // The plans of our functions do not depend on what they are asked for; each session would make each of them five times.
    ("plan_cache_mode", "force_generic_plan", true),
    // Where more than that is chosen, it stays.
    ("synchronous_commit", "on", false),
    ("lock_timeout", "0", false),
    ("idle_in_transaction_session_timeout", "0", false),
    ("idle_session_timeout", "0", false),
    ("transaction_timeout", "0", false),
    ("standard_conforming_strings", "on", false),
    ("transform_null_equals", "off", false),
    ("array_nulls", "on", false),
    ("exit_on_error", "off", false),
    ("DateStyle", "ISO, MDY", false),
    ("IntervalStyle", "postgres", false),
    ("jit", "off", true),
    // The server must notice, too, that we are gone: what we no longer wait for should not be done late.
    ("client_connection_check_interval", "1s", true),
    ("tcp_keepalives_idle", "10", true),
    ("tcp_keepalives_interval", "3", true),
    ("tcp_keepalives_count", "3", true),
    ("tcp_user_timeout", "20000", true),
];

/// Where a session's messages go, and how its end is told.
#[derive(Debug)]
pub(crate) struct Ears {
    pub(crate) wake: Arc<Wake>,
    /// Rings for every message, whomever it names.
    pub(crate) heard: Notify,
    pub(crate) ended: Notify,
}

impl Ears {
    pub(crate) fn new(wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Ears { wake, heard: Notify::new(), ended: Notify::new() })
    }
}

/// One open connection. It ends when it is dropped.
pub(crate) struct Session {
    pub(crate) client: Client,
    work: Joint,
    /// Who is told, once somebody wants to be.
    ears: Arc<OnceLock<Arc<Ears>>>,
    /// Prepared statements by their text; `None` if a pooler may stand between.
    prepared: Option<tokio::sync::Mutex<HashMap<String, Statement>>>,
    /// Behind a pooler one statement at a time is under way: a pooler may give the server's session to somebody
    /// else as soon as one is answered, and if we go away then, that one hears the answers to the others.
    one_by_one: tokio::sync::Mutex<()>,
    /// When the server last answered anything here. Relaxed: it only grows, and whoever judges by it waited for long before.
    heard_at: AtomicU64,
    /// Messages arrive. `SeqCst`, as is told of the claims in `keeper.rs`.
    pub(crate) listens: AtomicBool,
    /// How the server knows it, if it is ours alone.
    pub(crate) identity: Option<Identity>,
}

impl Session {
    /// Connect to the first address that lets us in and takes writes. The socket of one that `lends` may be heard by the
    /// event loop of a caller.
    pub(crate) async fn open(
        config: &Config,
        wire: &Wire,
        answer_within: Duration,
        lends: bool,
    ) -> Result<Self> {
        let mut last = Trouble::Silent;
        for address in socket::addresses(config).await? {
            match Session::at(&address, config, wire, answer_within, lends).await {
                Ok(session) => return Ok(session),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Connect, and find out whether the session is ours alone: a word that we say when it begins is known to
    /// the server's session, but not to one that a pooler had before. Poolers refuse the word or swallow it.
    async fn at(
        address: &Address,
        config: &Config,
        wire: &Wire,
        answer_within: Duration,
        lends: bool,
    ) -> Result<Self> {
        let word = ClaimId::random().map_or_else(|_| String::new(), ClaimId::to_hex);
        let mut with_word = config.clone();
        let options = config.get_options().unwrap_or_default();
        // Whether a session can write is asked by the driver before we can set anything else, in little time perhaps.
        let ours = "-c default_transaction_read_only=off -c statement_timeout=0";
        with_word.options(format!("{options} {ours} -c lockkeeper.session={word}"));
        let ears = Arc::<OnceLock<Arc<Ears>>>::default();
        let (client, work) = match begin(address, &with_word, wire, &ears, lends).await {
            Err(Trouble::Sql(error)) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                begin(address, config, wire, &ears, lends).await?
            }
            begun => begun?,
        };
        let mut session = Session {
            client,
            work,
            ears,
            prepared: None,
            one_by_one: tokio::sync::Mutex::default(),
            heard_at: AtomicU64::new(0),
            listens: AtomicBool::new(false),
            identity: None,
        };
        session.identity = session.set_up(&word, answer_within).await?;
        if session.identity.is_some() {
            session.prepared = Some(tokio::sync::Mutex::default());
        }
        session.heard();
        Ok(session)
    }

    /// Set what our statements rely on, if the session is ours. A pooled one is left as it is.
    async fn set_up(&self, word: &str, answer_within: Duration) -> Result<Option<Identity>> {
        let millis = answer_within.as_millis().clamp(1, 2_000_000_000).to_string();
        // Whoever is not answered by then has given up; the statement must not be done after that.
        let timeout = ("statement_timeout", millis.as_str(), true);
        let settings: Vec<_> = SETTINGS.into_iter().chain([timeout]).collect();
        let column = |at: fn(&(&str, &str, bool)) -> String| settings.iter().map(at).collect::<Vec<_>>();
        let names = column(|it| it.0.to_owned());
        let values = column(|it| it.1.to_owned());
        // A setting that this version of the server lacks is not needed there.
        let rows = self
            .client
            .query_typed(
                "SELECT s.name, CASE WHEN s.name = 'synchronous_commit' AND current_setting(s.name) = 'remote_apply' \
                 THEN replace(set_config(s.name, 'remote_apply', false), 'remote_apply', s.value) \
                 ELSE set_config(s.name, s.value, false) END, s.at FROM unnest($1, $2) WITH ORDINALITY AS \
                 s (name, value, at) WHERE current_setting('lockkeeper.session', true) = $3 \
                 AND current_setting(s.name, true) IS NOT NULL AND (s.name <> 'client_connection_check_interval' \
                 OR version() LIKE '%linux%') UNION ALL SELECT NULL, \
                 extract(epoch FROM a.backend_start)::text, -a.pid::bigint FROM pg_stat_get_activity(pg_backend_pid()) AS a \
                 WHERE current_setting('lockkeeper.session', true) = $3",
                &[(&names, Type::TEXT_ARRAY), (&values, Type::TEXT_ARRAY), (&word, Type::TEXT)],
            )
            .await?;
        for row in &rows {
            let (name, value, at): (Option<&str>, Option<&str>, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let wished = usize::try_from(at - 1).ok().and_then(|at| settings.get(at));
            if let (Some(name), Some(value), Some((_, wished, false))) = (name, value, wished)
                && value != *wished
            {
                return Err(Trouble::Refused(format!(
                    "the setting {name} is {value:?} and cannot be set to {wished:?}, on which locks rely; \
                     ask whoever runs the server"
                )));
            }
        }
        let ours = rows.iter().find(|it| it.try_get::<_, i64>(2).is_ok_and(|it| it < 0));
        let identity =
            |it: &Row| Some(Identity { pid: -it.try_get::<_, i64>(2).ok()?, began: it.try_get(1).ok()? });
        Ok(ours.filter(|_| !word.is_empty()).and_then(identity))
    }

    /// Tell these what is heard from now on, and that the session has ended. They are told of one session, and not of those
    /// that were tried beside it.
    pub(crate) fn tell(&self, ears: &Arc<Ears>) {
        // A session has one listener.
        let _ = self.ears.set(ears.clone());
        if self.is_closed() {
            ears.ended.notify_one();
        }
    }

    /// What drives it, and can end it.
    pub(crate) fn work(&self) -> Joint {
        self.work.clone()
    }

    /// The number of the server's process; 0 if it may be another's the next moment.
    pub(crate) fn pid(&self) -> i64 {
        self.identity.as_ref().map_or(0, |it| it.pid)
    }

    /// Whether no pooler stands between.
    pub(crate) fn is_ours(&self) -> bool {
        self.prepared.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Never send or hear anything again.
    pub(crate) fn end(&self) {
        self.work.end();
    }

    /// Wait until nothing else is under way, where that matters. For statements that are not sent by `query`.
    pub(crate) async fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        if self.is_ours() { None } else { Some(self.one_by_one.lock().await) }
    }

    /// When the server last answered anything here.
    pub(crate) fn heard_at(&self) -> Moment {
        Moment::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    fn heard(&self) {
        self.heard_at.fetch_max(Clock::boot().now().as_nanos(), Ordering::Relaxed);
    }

    /// Run a statement, prepared if that is safe. Tells when it left.
    pub(crate) async fn query(
        &self,
        sql: impl Into<Sql<'_>>,
        params: &[Param<'_>],
    ) -> Result<(Vec<Row>, Moment), Error> {
        let _alone = self.alone().await;
        let sql = sql.into();
        let sql = if self.is_ours() { sql.own } else { sql.pooled };
        let statement = self.prepare(sql, params).await?;
        let sent_at = Clock::boot().now();
        let answer = match statement {
            None => self.work.ask(pin!(self.client.query_typed(sql, params))).await,
            Some(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|it| it.0).collect();
                self.work.ask(pin!(self.client.query(&statement, &values))).await
            }
        };
        // A refusal is an answer, too.
        if answer.as_ref().map_or_else(|it| it.code().is_some(), |_| true) {
            self.heard();
        }
        Ok((answer?, sent_at))
    }

    async fn prepare(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Statement>, Error> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let mut prepared = prepared.lock().await;
        if let Some(statement) = prepared.get(sql) {
            return Ok(Some(statement.clone()));
        }
        let types: Vec<Type> = params.iter().map(|it| it.1.clone()).collect();
        let statement = self.work.ask(pin!(self.client.prepare_typed(sql, &types))).await?;
        self.heard();
        prepared.insert(sql.to_owned(), statement.clone());
        Ok(Some(statement))
    }
}

/// Connect, and begin to drive the connection.
async fn begin(
    address: &Address,
    config: &Config,
    wire: &Wire,
    ears: &Arc<OnceLock<Arc<Ears>>>,
    lends: bool,
) -> Result<(Client, Joint)> {
    let socket = Socket::connect(config, address).await?;
    let name = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name,
        _ => "",
    };
    let tls =
        MakeTlsConnect::<Stream>::make_tls_connect(&mut wire.tls(), name).map_err(std::io::Error::other)?;
    let (client, connection) = config.connect_raw(socket.stream(), tls).await?;
    let socket: Arc<dyn joint::Socket> = socket;
    let work = Joint::start(&Handle::current(), drive(connection, ears.clone()), lends.then_some(&socket));
    if takes_writes(&client, &work).await? { Ok((client, work)) } else { Err(Trouble::ReadOnly) }
}

async fn takes_writes(client: &Client, work: &Joint) -> Result<bool, Error> {
    let told = work.ask(pin!(client.simple_query("SHOW transaction_read_only"))).await?;
    Ok(told.iter().any(|it| matches!(it, SimpleQueryMessage::Row(row) if row.get(0) == Some("off"))))
}

/// Drive the connection and pass on what it hears.
async fn drive<S, T>(mut connection: Connection<S, T>, ears: Arc<OnceLock<Arc<Ears>>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let ended = Ended(ears);
    let mut heard = stream::poll_fn(move |cx| connection.poll_message(cx));
    while let Some(Ok(message)) = heard.next().await {
        if let (AsyncMessage::Notification(it), Some(ears)) = (message, ended.0.get()) {
            wake::deliver(&ears.wake, it.payload());
            ears.heard.notify_one();
        }
    }
}

/// Tells that a session is over, also if its task was aborted.
struct Ended(Arc<OnceLock<Arc<Ears>>>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(ears) = self.0.get() {
            ears.ended.notify_one();
        }
    }
}
