//! Our sessions: what of ours dies when the ensemble does not hear from us, and until when it surely lives.
//!
//! There is one session for every ttl that claims of this process ask for, however many locks it carries. It ends when
//! the ensemble has not heard of it for that ttl.
//!
//! The client sends pings, but an answered ping proves little: a follower answers by itself and tells the
//! leader, who alone decides, every half tick; a follower cut off from the leader goes on answering. So we
//! send a *pulse* of our own, ten in the time of a session: a write that changes nothing.
//!
//! A follower tells the leader of its clients and forwards their writes on one connection, in order. When a
//! pulse is confirmed, the leader has therefore heard of everything that was sent a tick before it. That is
//! what the deadline counts from: the latest confirmed pulse that was sent at least a tick before the last
//! confirmed one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::kit::{Proof, locked};
use lockkeeper_core::{Clock, Moment};
use tokio::sync::Mutex as AsyncMutex;
use zookeeper_client::{Client, CreateOptions, Error, MultiWriteError};

use crate::connection::{self, Opened};
use crate::fault::{self, NAME};
use crate::fences::{Known, Ledger, Written};
use crate::options::{ZooKeeperOptions, session_min};
use crate::tls;

/// Pulses per session timeout.
const PULSES: u32 = 10;

/// Why several writes were not done.
pub(crate) fn reason(error: MultiWriteError) -> Error {
    match error {
        MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. } => source,
    }
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// The timeout that the ensemble gave.
    pub(crate) timeout: Duration,
    ledger: Mutex<Option<Known>>,
    /// Until when the ensemble surely keeps it.
    pub(crate) proof: Proof,
}

impl Session {
    fn new(Opened { client, asked_at }: Opened) -> Self {
        let (id, timeout) = (client.session_id().0, client.session_timeout());
        // Making the session is a write of its own, so it lives from when it was asked for.
        let proof = Proof::until(asked_at.after(timeout));
        Session { client, id, timeout, ledger: Mutex::default(), proof }
    }

    /// A write that changes nothing, but only a living leader confirms it, and only if the node exists.
    pub(crate) async fn check(&self, path: &str) -> std::result::Result<(), Error> {
        let mut writer = self.client.new_multi_writer();
        // Any version will do.
        writer.add_check_version(path, -1)?;
        writer.commit().await.map(drop).map_err(reason)
    }

    /// Create a node if another exists.
    pub(crate) async fn create_beside(
        &self,
        path: &str,
        beside: &str,
        options: &CreateOptions<'_>,
    ) -> std::result::Result<(), Error> {
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version(path, -1)?;
        writer.add_create(beside, b"", options)?;
        writer.commit().await.map(drop).map_err(reason)
    }

    /// What the ledger of fences says, if we have read it and it has not changed since.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        locked(&self.ledger).as_mut()?.if_true().cloned()
    }

    /// The counter of a write, if the ledger that we have read reaches that far.
    pub(crate) fn counter(&self, written: Written) -> Option<u64> {
        locked(&self.ledger).as_mut()?.if_true()?.counter_now(written)
    }

    pub(crate) fn keep_ledger(&self, known: Known) {
        *locked(&self.ledger) = Some(known);
    }

    pub(crate) fn forget_ledger(&self) {
        *locked(&self.ledger) = None;
    }
}

/// The session of one ttl, if there is one. Whoever opens a new one holds the lock meanwhile.
type Class = Arc<AsyncMutex<Option<Arc<Session>>>>;

/// The sessions of this process, by the timeout that was asked for, and the way to the next if one is lost.
#[derive(Debug)]
pub(crate) struct Sessions {
    options: ZooKeeperOptions,
    clock: Clock,
    driver: tokio::runtime::Handle,
    classes: Mutex<HashMap<Duration, Class>>,
}

impl Sessions {
    pub(crate) fn new(options: ZooKeeperOptions, clock: Clock, driver: tokio::runtime::Handle) -> Self {
        Sessions { options, clock, driver, classes: Mutex::default() }
    }

    /// The session for claims of this ttl; a new one if there is none or the last one was lost.
    pub(crate) async fn session(&self, ttl: Duration) -> Result<Arc<Session>> {
        const DOING: &str = "opening a session for the ttl";
        // In milliseconds, as the ensemble counts them.
        let ttl = Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let session = self.open(ttl).await?;
        match refusal(&self.options, ttl, session.timeout) {
            None => Ok(session),
            Some(text) => Err(Fault::permanent(NAME, DOING, text)),
        }
    }

    /// A session to look around with, and for locks of the usual ttl. The ensemble may have given it another timeout.
    pub(crate) async fn usual(&self) -> Result<Arc<Session>> {
        self.open(self.options.usual_session()).await
    }

    async fn open(&self, asked: Duration) -> Result<Arc<Session>> {
        const DOING: &str = "opening a session";
        let class = locked(&self.classes).entry(asked).or_default().clone();
        let mut current = class.lock().await;
        if let Some(session) = current.as_ref().filter(|it| !it.proof.is_lost()) {
            return Ok(session.clone());
        }
        let (options, clock) = (self.options.clone(), self.clock.clone());
        let connector = tls::connector(&options)?;
        // The client lives where it is made: on our own thread, which no application can block.
        let opened = self.driver.spawn(connection::open(connector, options, clock, asked)).await;
        let opened = opened.unwrap_or(Err(Error::ClientClosed.into()));
        let session = Arc::new(Session::new(opened.map_err(|it| fault::of_opening(DOING, it))?));
        *current = Some(session.clone());
        drop(current);
        let idle_max = self.options.idle_of(session.timeout);
        let heart = Heart { session: session.clone(), class, clock: self.clock.clone(), idle_max };
        let tick = self.options.tick_of(session.timeout);
        self.driver.spawn(heart.keep(self.options.path.clone(), tick));
        Ok(session)
    }

    /// Close all sessions, at most for `bound`. What is not heard ends by its timeout.
    pub(crate) async fn end(&self, bound: Duration) {
        let classes: Vec<Class> = locked(&self.classes).drain().map(|it| it.1).collect();
        let mut states = Vec::new();
        for class in classes {
            let Some(session) = class.lock().await.take() else { continue };
            states.push(session.client.state_watcher());
            // The pulse lets go of the client when it sees the loss; the last one out closes the session.
            session.proof.lose();
        }
        let closed = async {
            for state in &mut states {
                while !state.changed().await.is_terminated() {}
            }
        };
        tokio::select! {
            () = closed => {}
            () = self.clock.sleep(bound) => {}
        }
    }
}

/// Why a ttl cannot be kept with the session that the ensemble gave for it.
fn refusal(options: &ZooKeeperOptions, ttl: Duration, given: Duration) -> Option<String> {
    let tick = options.tick_of(given);
    if ttl < given {
        Some(format!(
            "a ttl of {ttl:?} cannot be kept: the servers give no session shorter than {given:?} \
             (minSessionTimeout, two ticks if it is not set); ask for a ttl of {given:?} or more, or lower it there"
        ))
    } else if given < ttl {
        Some(format!(
            "a ttl of {ttl:?} cannot be kept: the servers give no session longer than {given:?} \
             (maxSessionTimeout, twenty ticks if it is not set); ask for a ttl of {given:?} or less, or raise it there"
        ))
    } else if given < session_min(tick) {
        Some(format!(
            "a ttl of {ttl:?} is too short for a tick of {tick:?}, which is taken off every deadline; ask for a ttl \
             of {:?} or more, or set `tick` in the URL to the servers' tickTime",
            session_min(tick)
        ))
    } else {
        None
    }
}

/// Who keeps a session alive.
struct Heart {
    session: Arc<Session>,
    class: Class,
    clock: Clock,
    /// A session that nobody uses is kept this long, so that the next lock need not wait for one.
    idle_max: Duration,
}

impl Heart {
    /// Send pulses until the session is over, or nobody has used it for a while.
    async fn keep(self, path: String, tick: Duration) {
        let session = &self.session;
        let mut state = session.client.state_watcher();
        let ended = async { while !state.changed().await.is_terminated() {} };
        tokio::select! {
            () = ended => {}
            () = self.pulses(&path, tick) => {}
            () = session.proof.when_lost() => {}
        }
        session.proof.lose();
    }

    async fn pulses(&self, path: &str, tick: Duration) {
        let (session, clock) = (&self.session, &self.clock);
        let mut sent = VecDeque::from([session.proof.proven_until().before(session.timeout)]);
        let mut used_at = clock.now();
        loop {
            clock.sleep(session.timeout / PULSES).await;
            let sent_at = clock.now();
            match session.check(path).await {
                Ok(()) => credit(session, &mut sent, sent_at, tick),
                Err(error) if fault::is_session_over(&error) => return,
                // The client looks for another server; the next pulse waits in its queue until it has one.
                Err(_) => {}
            }
            // One is ours and one is the class's.
            if 2 < Arc::strong_count(session) {
                used_at = clock.now();
            } else if self.idle_max < clock.now() - used_at {
                let mut class = self.class.lock().await;
                if Arc::strong_count(session) <= 2 {
                    *class = None;
                    return;
                }
            }
        }
    }
}

/// A pulse was confirmed: the leader has heard of those sent a tick before it.
fn credit(session: &Session, sent: &mut VecDeque<Moment>, sent_at: Moment, tick: Duration) {
    sent.push_back(sent_at);
    let heard = sent.iter().take_while(|it| it.after(tick) <= sent_at).count();
    let Some(last) = heard.checked_sub(1).and_then(|it| sent.get(it)).copied() else {
        return;
    };
    sent.drain(..heard - 1);
    session.proof.extend(last.after(session.timeout));
}
