//! Our session: what of ours dies when the ensemble does not hear from us, and until when it surely lives.
//!
//! The client sends pings, but an answered ping proves little: a follower answers by itself and tells the
//! leader, who alone decides, every half tick; a follower cut off from the leader goes on answering. So we
//! send a *pulse* of our own, ten in the time of a session: a write that changes nothing.
//!
//! A follower tells the leader of its clients and forwards their writes on one connection, in order. When a
//! pulse is confirmed, the leader has therefore heard of everything that was sent a tick before it. That is
//! what the deadline counts from: the latest confirmed pulse that was sent at least a tick before the last
//! confirmed one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::Result;
use lockkeeper_core::{Clock, Moment};
use tokio::sync::{Mutex, watch};
use zookeeper_client::{Acls, Client, Connector, CreateMode, Error, MultiWriteError};

use crate::options::Options;
use crate::{fault, tls};

/// Pulses per session time-out.
const PULSES: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct State {
    /// The ensemble will not end the session before this moment.
    proven_until: Moment,
    /// It is over. Final.
    lost: bool,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// The time-out that the ensemble gave.
    pub(crate) timeout: Duration,
    state: watch::Sender<State>,
}

impl Session {
    /// Until when the ensemble surely keeps it.
    pub(crate) fn proven_until(&self) -> Moment {
        self.state.borrow().proven_until
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    pub(crate) fn lose(&self) {
        self.state.send_modify(|it| it.lost = true);
    }

    /// Resolves when it is over.
    pub(crate) async fn when_lost(&self) {
        let mut state = self.state.subscribe();
        // The sender is `self`, which outlives this borrow.
        let _ = state.wait_for(|it| it.lost).await;
    }

    /// Wait until it is proven beyond `moment`, or over.
    pub(crate) async fn when_proven_beyond(&self, moment: Moment) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|it| it.lost || moment < it.proven_until).await;
    }

    /// A write that changes nothing, but only a living leader confirms it, and only if the node exists.
    pub(crate) async fn check(&self, path: &str) -> std::result::Result<(), Error> {
        let mut writer = self.client.new_multi_writer();
        // Any version will do.
        writer.add_check_version(path, -1)?;
        let answer = writer.commit().await;
        answer.map(drop).map_err(|it| match it {
            MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. } => {
                source
            }
        })
    }
}

/// The one session of this process, and the way to the next if it is lost.
#[derive(Debug)]
pub(crate) struct Sessions {
    options: Options,
    clock: Clock,
    driver: tokio::runtime::Handle,
    current: Mutex<Option<Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn new(options: Options, clock: Clock, driver: tokio::runtime::Handle) -> Self {
        Sessions { options, clock, driver, current: Mutex::default() }
    }

    /// The session; a new one if there is none or the last one was lost.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        const DOING: &str = "opening a session";
        let mut current = self.current.lock().await;
        if let Some(session) = current.as_ref().filter(|it| !it.is_lost()) {
            return Ok(session.clone());
        }
        let (options, clock) = (self.options.clone(), self.clock.clone());
        let connector = tls::connector(&options)?;
        // The client lives where it is made: on our own thread, which no application can block.
        let opened = self.driver.spawn(open(connector, options, clock)).await;
        let opened = opened.unwrap_or(Err(Error::ClientClosed));
        let session = Arc::new(opened.map_err(|it| fault::from_error(DOING, it))?);
        *current = Some(session.clone());
        drop(current);
        let path = self.options.path.clone();
        let tick = self.options.tick_of(session.timeout);
        self.driver.spawn(keep(session.clone(), self.clock.clone(), path, tick));
        Ok(session)
    }

    /// Close the session, at most for `bound`. If it is not heard the session ends by its time-out.
    pub(crate) async fn end(&self, bound: Duration) {
        let Some(session) = self.current.lock().await.take() else { return };
        let mut state = session.client.state_watcher();
        session.lose();
        // The pulse lets go of the client when it sees the loss; the last one out closes the session.
        drop(session);
        let closed = async { while !state.changed().await.is_terminated() {} };
        tokio::select! {
            () = closed => {}
            () = self.clock.sleep(bound) => {}
        }
    }
}

/// After how long a silent server is left for another.
///
/// The client tries the servers in random order, so the one that keeps silent may come first again. Its own choice, two
/// fifths of a session, would then cost the session; after a fifth there is time for three. But no busy server shall be
/// left for the pause of a moment.
fn silence_max(session: Duration) -> Duration {
    (session / 5).max(Duration::from_secs(1)).min(session * 2 / 5)
}

async fn open(connector: Connector, options: Options, clock: Clock) -> std::result::Result<Session, Error> {
    let asked_at = clock.now();
    let mut connector = connector.with_session_timeout(options.session);
    connector = connector.with_connection_timeout(silence_max(options.session));
    if let (Some(user), Some(password)) = (&options.user, &options.password) {
        connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
    }
    let client = tls::connect(connector, &options).await?;
    let timeout = client.session_timeout();
    client.mkdir(&options.path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    let id = client.session_id().0;
    // Making the session is a write of its own, so it lives from when it was asked for.
    let state = State { proven_until: asked_at.after(timeout), lost: false };
    Ok(Session { client, id, timeout, state: watch::Sender::new(state) })
}

/// Send pulses until the session is over.
async fn keep(session: Arc<Session>, clock: Clock, path: String, tick: Duration) {
    let mut sent = VecDeque::from([session.proven_until().before(session.timeout)]);
    let mut state = session.client.state_watcher();
    let ended = async { while !state.changed().await.is_terminated() {} };
    let pulses = async {
        loop {
            clock.sleep(session.timeout / PULSES).await;
            let sent_at = clock.now();
            match session.check(&path).await {
                Ok(()) => credit(&session, &mut sent, sent_at, tick),
                Err(error) if fault::is_session_over(&error) => return,
                // The client looks for another server; the next pulse waits in its queue until it has one.
                Err(_) => {}
            }
        }
    };
    tokio::select! {
        () = ended => {}
        () = pulses => {}
        () = session.when_lost() => {}
    }
    session.lose();
}

/// A pulse was confirmed: the leader has heard of those sent a tick before it.
fn credit(session: &Session, sent: &mut VecDeque<Moment>, sent_at: Moment, tick: Duration) {
    sent.push_back(sent_at);
    let heard = sent.iter().take_while(|it| it.after(tick) <= sent_at).count();
    let Some(last) = heard.checked_sub(1).and_then(|it| sent.get(it)).copied() else {
        return;
    };
    sent.drain(..heard - 1);
    session.state.send_modify(|it| it.proven_until = it.proven_until.max(last.after(session.timeout)));
}
