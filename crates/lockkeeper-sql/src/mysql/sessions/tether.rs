//! One connection of session locks, and the task that owns it. What breaks stays broken: its locks are gone.
//!
//! The driver cannot bear to be interrupted in the middle of a statement, and does not look at a connection that nobody
//! uses. So a task owns the connection, callers send it statements, and whoever holds something asks often.

use std::pin::pin;
use std::sync::Arc;

use lockkeeper_core::{Clock, Moment};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::super::fault::{Result, Trouble};
use crate::joint::Joint;

/// Rows, and the moment before the request left this process.
pub(super) type Answer = (Vec<Row>, Moment);

struct Request {
    /// Statements as text; `None` asks only whether the server is there.
    sql: Option<String>,
    reply: oneshot::Sender<Result<Answer>>,
}

/// The way to a connection's task.
pub(super) struct Tether {
    requests: mpsc::UnboundedSender<Request>,
    work: Joint,
    over: Arc<watch::Sender<bool>>,
    /// The session's number at the server.
    pub(super) number: u32,
}

impl Tether {
    pub(super) fn start(conn: Conn, runtime: &Handle, clock: Clock) -> Self {
        let (requests, inbox) = mpsc::unbounded_channel();
        let (over, number) = (Arc::new(watch::Sender::new(false)), conn.id());
        let work = Joint::start(runtime, serve(conn, inbox, over.clone(), clock), None);
        Tether { requests, work, over, number }
    }

    /// Send statements and wait for the rows of the first.
    pub(super) async fn ask(&self, sql: String) -> Result<Answer> {
        self.send(Some(sql)).await
    }

    /// Ask whether the server is there. It is not a statement, and counts as a sign of life all the same.
    pub(super) async fn ping(&self) -> Result<Moment> {
        self.send(None).await.map(|it| it.1)
    }

    async fn send(&self, sql: Option<String>) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let request = Request { sql, reply };
        let asking = async {
            self.requests.send(request).map_err(|_| Trouble::NoRuntime)?;
            answer.await.unwrap_or(Err(Trouble::NoRuntime))
        };
        self.work.ask(pin!(asking)).await
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.over.borrow() || self.requests.is_closed()
    }

    /// Never use it again.
    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    /// When it has ended.
    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }
}

/// The connection's task: one request after the other, until it breaks, is ended, or nobody can send any more.
async fn serve(
    mut conn: Conn,
    mut inbox: mpsc::UnboundedReceiver<Request>,
    over: Arc<watch::Sender<bool>>,
    clock: Clock,
) {
    let mut ended = over.subscribe();
    loop {
        let request = tokio::select! {
            biased;
            _ = ended.wait_for(|it| *it) => return,
            request = inbox.recv() => request,
        };
        let Some(Request { sql, reply }) = request else { break };
        let sent_at = clock.now();
        let answer = tokio::select! {
            biased;
            rows = run(&mut conn, sql) => rows,
            _ = ended.wait_for(|it| *it) => Err(Trouble::Silent),
        };
        let breaks = answer.as_ref().is_err_and(breaks);
        if breaks {
            over.send_replace(true);
        }
        // Whoever went away does not need the answer.
        let _ = reply.send(answer.map(|rows| (rows, sent_at)));
        if breaks {
            return;
        }
    }
    over.send_replace(true);
    // Say goodbye, so that what it held is free at once; if that fails the server notices by itself.
    let _ = conn.disconnect().await;
}

/// Whether the session is over after this: everything but a plain no of the server.
fn breaks(trouble: &Trouble) -> bool {
    !trouble.is_answer() || trouble.ends_session()
}

async fn run(conn: &mut Conn, sql: Option<String>) -> Result<Vec<Row>> {
    let Some(sql) = sql else {
        conn.ping().await?;
        return Ok(Vec::new());
    };
    let mut results = conn.query_iter(sql).await?;
    let rows = results.collect().await?;
    results.drop_result().await?;
    Ok(rows)
}
