//! How `changed` resolves: one connection of the process listens on one channel for all its claims.
//!
//! A message names a claim. It is a hint: whoever hears it asks. Where messages do not arrive, as behind a
//! pooler in transaction mode, that is noticed by a message to ourselves, and those who wait look instead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockkeeper_core::{ClaimId, Clock};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::Store;
use crate::retry;

/// How long a message to ourselves may take.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// When to try again where messages do not arrive.
const DEAF_FOR: Duration = Duration::from_secs(5 * 60);
const HELLO: &str = "hello";

/// Who waits for a message.
#[derive(Debug)]
pub(crate) struct Wake {
    /// The channel of this process.
    channel: String,
    bells: Mutex<HashMap<ClaimId, Arc<Notify>>>,
    state: AtomicU8,
    started: AtomicBool,
    /// Dropped with the store; then the listener ends.
    alive: Mutex<Option<oneshot::Sender<()>>>,
}

const SILENT: u8 = 0;
const LISTENING: u8 = 1;

impl Wake {
    pub(crate) fn new(channel: String) -> Self {
        Wake {
            channel,
            bells: Mutex::default(),
            state: AtomicU8::new(SILENT),
            started: AtomicBool::new(false),
            alive: Mutex::default(),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether messages arrive at present.
    pub(crate) fn is_listening(&self) -> bool {
        self.state.load(Ordering::Acquire) == LISTENING
    }

    /// Hear messages for this claim from now on, until the bell is dropped.
    pub(crate) fn bell(&self, id: ClaimId) -> Arc<Notify> {
        self.bells().entry(id).or_default().clone()
    }

    /// Hear no more.
    pub(crate) fn remove(&self, id: ClaimId) {
        self.bells().remove(&id);
    }

    fn bells(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, payload: &str) {
        let bell = ClaimId::from_hex(payload).and_then(|id| self.bells().get(&id).cloned());
        if let Some(bell) = bell {
            bell.notify_one();
        }
    }

    /// Messages may have been missed, or the way of waiting has changed.
    fn ring_all(&self) {
        self.bells().values().for_each(|it| it.notify_one());
    }

    fn set(&self, state: u8) {
        if self.state.swap(state, Ordering::AcqRel) != state {
            self.ring_all();
        }
    }
}

/// Start to listen when somebody has to wait for the first time.
pub(crate) fn start(store: &Arc<Store>) {
    let wake = &store.wake;
    if !store.links.options.listen || wake.started.swap(true, Ordering::AcqRel) {
        return;
    }
    let (alive, ended) = oneshot::channel();
    *wake.alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(alive);
    let weak = Arc::downgrade(store);
    store.links.home().spawn(async move {
        tokio::select! {
            () = listen(weak) => {}
            _ = ended => {}
        }
    });
}

/// Listen until the store is gone.
async fn listen(weak: Weak<Store>) {
    let clock = Clock::boot();
    for attempt in 0.. {
        let Some((config, wire, channel)) = weak.upgrade().map(|it| {
            it.wake.set(SILENT);
            (it.links.options.config.clone(), it.links.wire.clone(), it.wake.channel.clone())
        }) else {
            return;
        };
        let pause = match config.connect(wire.tls()).await {
            Ok((client, connection)) => {
                let (sender, messages) = mpsc::unbounded_channel();
                let drive = tokio::spawn(forward(connection, sender));
                let heard = hear(&weak, &client, &channel, messages).await;
                drive.abort();
                if heard { Duration::ZERO } else { DEAF_FOR }
            }
            Err(_) => Duration::ZERO,
        };
        if let Some(store) = weak.upgrade() {
            store.wake.set(SILENT);
        }
        let again = retry::pause(attempt, Duration::from_millis(50), Duration::from_secs(5));
        clock.sleep(pause.max(again)).await;
    }
}

/// Hear messages until the connection ends. `false` if they do not arrive.
async fn hear(weak: &Weak<Store>, client: &Client, channel: &str, mut messages: Messages) -> bool {
    let Some(store) = weak.upgrade() else { return true };
    match greet(&store, client, channel, &mut messages).await {
        Greeted::Yes => store.wake.set(LISTENING),
        Greeted::No => return false,
        Greeted::Broken => return true,
    }
    drop(store);
    while let Some(payload) = messages.recv().await {
        let Some(store) = weak.upgrade() else { break };
        store.wake.ring(&payload);
    }
    true
}

enum Greeted {
    Yes,
    No,
    Broken,
}

/// Listen, and wait for a message to ourselves.
async fn greet(store: &Store, client: &Client, channel: &str, messages: &mut Messages) -> Greeted {
    // The channel's name is ours: letters and digits.
    if client.batch_execute(&format!("LISTEN {channel}")).await.is_err() {
        return Greeted::Broken;
    }
    // By another connection: a pooler must not be able to answer this from the same one.
    let params = [(&channel as _, Type::TEXT), (&HELLO as _, Type::TEXT)];
    if store.links.rows("listening", "SELECT pg_notify($1, $2)", &params).await.is_err() {
        return Greeted::Broken;
    }
    tokio::select! {
        // The first message is the greeting, or the call of a claim that waits, which proves as much; all who
        // wait ask again as soon as we listen.
        message = messages.recv() => if message.is_some() { Greeted::Yes } else { Greeted::Broken },
        () = store.links.clock.sleep(HELLO_WITHIN) => Greeted::No,
    }
}

/// Whether messages arrive, tried on a connection and a channel of their own.
pub(super) async fn hello(store: &Store) -> bool {
    let Ok((client, connection)) = store.links.options.config.connect(store.links.wire.tls()).await else {
        return false;
    };
    let (sender, mut messages) = mpsc::unbounded_channel();
    let drive = tokio::spawn(forward(connection, sender));
    let channel = format!("{}_hello", store.wake.channel);
    let greeted = greet(store, &client, &channel, &mut messages).await;
    drive.abort();
    matches!(greeted, Greeted::Yes)
}

type Messages = mpsc::UnboundedReceiver<String>;

/// Drive the connection and pass on what it hears.
async fn forward<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    messages: mpsc::UnboundedSender<String>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut heard = stream::poll_fn(move |cx| connection.poll_message(cx));
    while let Some(Ok(message)) = heard.next().await {
        if let AsyncMessage::Notification(it) = message
            && messages.send(it.payload().to_owned()).is_err()
        {
            return;
        }
    }
}
