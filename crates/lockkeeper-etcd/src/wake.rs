//! Being told: one watch stream for all of this process, which survives lost connections and compactions.
//!
//! A watch begins at the revision after the one that was read, so nothing falls between reading and watching.
//! It tells once and is gone. After a lost connection all watches are set again from where they began, and
//! the store replays what they missed; if that was compacted away they tell at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Moment;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::connection::Connection;
use crate::grants::Grants;
use crate::wire::watch_client::WatchClient;
use crate::wire::watch_create_request::FilterType;
use crate::wire::watch_request::RequestUnion;
use crate::wire::{
    Answer as _, TxnRequest, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, delete,
    written_at,
};

/// The pause before a broken stream is opened again, which grows while nothing is heard.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The number of a watch that is set and ended only to hear that it was. Others begin at 1, and 0 means any number.
const SIGN_OF_LIFE: i64 = i64::MAX;

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// That this key is deleted.
    End(Bytes),
    /// That this key is written or deleted.
    Key(Bytes),
    /// Anything about the keys from the first to before the second.
    Line(Bytes, Bytes),
}

/// A watch. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    told: watch::Receiver<bool>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Watch {
    /// Whether it has told.
    pub(crate) fn has_told(&self) -> bool {
        *self.told.borrow()
    }

    /// Resolves when it tells. May do so for no reason.
    pub(crate) async fn told(&mut self) {
        // An error means that the stream's task is gone: asking again is then worthwhile, too.
        let _ = self.told.wait_for(|it| *it).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.has_told() {
            let _ = self.orders.send(Order::End(self.id));
        }
    }
}

#[derive(Debug)]
enum Order {
    Begin(i64, Entry),
    End(i64),
}

#[derive(Debug)]
struct Entry {
    what: What,
    from: i64,
    tell: watch::Sender<bool>,
}

/// The watches of this process.
#[derive(Debug)]
pub(crate) struct Wake {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicI64,
    told: Arc<AtomicU64>,
}

impl Wake {
    /// Start the task that holds the stream.
    pub(crate) fn start(connection: Arc<Connection>, grants: Arc<Grants>) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let told = Arc::<AtomicU64>::default();
        connection.driver.clone().spawn(serve(connection, grants, inbox, told.clone()));
        Wake { orders, next: AtomicI64::new(1), told }
    }

    /// Watch from this revision on.
    pub(crate) fn watch(&self, what: What, from: i64) -> Watch {
        let (tell, told) = watch::channel(false);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // If the task is gone the receiver sees it and tells at once.
        let _ = self.orders.send(Order::Begin(id, Entry { what, from, tell }));
        Watch { id, told, orders: self.orders.clone() }
    }

    /// How many events the store has sent us.
    pub(crate) fn events(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

/// What an answer on the stream means for the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// It goes on.
    Fine,
    /// A watch was refused: our token is too old, or our rights have changed. The stream cannot be told another token.
    Refused,
    /// The node belongs to another cluster.
    Strange,
}

/// A stream that is open: where to send requests, and the answers.
struct Open {
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

async fn serve(
    connection: Arc<Connection>,
    grants: Arc<Grants>,
    mut inbox: mpsc::UnboundedReceiver<Order>,
    told: Arc<AtomicU64>,
) {
    let (mut entries, mut checked_at) = (HashMap::new(), connection.dials());
    let mut pause = PAUSE_MIN;
    loop {
        // No stream while there is nothing to watch.
        while entries.is_empty() {
            let Some(order) = inbox.recv().await else { return };
            obey(order, &mut entries, None);
        }
        let (at, mut replaced) = (connection.current(), connection.replaced());
        let opened = tokio::select! {
            opened = open(&connection, connection.node(at), &entries) => opened,
            () = connection.clock.sleep(connection.options.timeout) => None,
        };
        let Some(mut stream) = opened else {
            connection.turn_away_from(at);
            connection.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        };
        let dials = connection.dials();
        if dials != checked_at && !is_intact(&connection, &grants).await {
            // What is replayed would be another history than the one we know.
            for (_, entry) in entries.drain() {
                entry.tell.send_replace(true);
            }
        }
        checked_at = dials;
        // Until when the stream must have shown that it lives, if that is in doubt.
        let mut doubted = Moment::NEVER;
        let end = loop {
            tokio::select! {
                order = inbox.recv() => {
                    let Some(order) = order else { return };
                    obey(order, &mut entries, Some(&stream.requests));
                }
                answer = stream.answers.message() => {
                    let Ok(Some(answer)) = answer else { break Heard::Strange };
                    if !connection.cluster.admits(at % connection.nodes(), answer.cluster()) {
                        break Heard::Strange;
                    }
                    let heard = hear(&answer, &mut entries, &stream.requests, &told);
                    if heard != Heard::Fine {
                        break heard;
                    }
                    (pause, doubted) = (PAUSE_MIN, Moment::NEVER);
                }
                // An endpoint kept silent, so this stream may be dead as well. Setting all watches again is dear, and
                // it may only be busy: it is asked for a sign of life.
                _ = replaced.changed(), if doubted == Moment::NEVER => {
                    doubted = connection.clock.now().after(connection.options.timeout);
                    let nothing = Bytes::from(format!("{}/nothing", connection.options.prefix));
                    let entry = Entry { what: What::End(nothing), from: 0, tell: watch::Sender::new(false) };
                    // It is not kept: the answer that it was set is all that is wanted.
                    let _ = stream.requests.send(begin(SIGN_OF_LIFE, &entry));
                    let _ = stream.requests.send(end(SIGN_OF_LIFE));
                }
                () = connection.clock.sleep_until(doubted) => break Heard::Fine,
            }
        };
        match end {
            Heard::Fine => continue,
            Heard::Strange => connection.turn_away_from(at),
            // If there is none to be had, opening the stream fails, too.
            Heard::Refused => drop(connection.authenticate().await),
        }
        connection.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether the store still knows the latest of what we hold, and so the history up to then. Asked after a new
/// connection, because no store goes back without ending all of them.
async fn is_intact(connection: &Connection, grants: &Grants) -> bool {
    let Some(newest) = grants.newest() else { return true };
    let nothing = delete(&Bytes::from(format!("{}/nothing", connection.options.prefix)));
    let look = TxnRequest {
        compare: vec![written_at(&newest.key, newest.written_at)],
        success: vec![nothing.clone()],
        failure: vec![nothing],
    };
    connection.txn(look).await.is_ok_and(|it| it.succeeded)
}

/// Open a stream and set all watches.
async fn open(
    connection: &Connection,
    channel: tonic::transport::Channel,
    entries: &HashMap<i64, Entry>,
) -> Option<Open> {
    let (requests, outbox) = mpsc::unbounded_channel();
    for (id, entry) in entries {
        requests.send(begin(*id, entry)).ok()?;
    }
    // A node that lost its leader ends the stream instead of keeping silent.
    let request = connection.request(UnboundedReceiverStream::new(outbox), true);
    let answers = WatchClient::new(channel).watch(request).await.ok()?.into_inner();
    Some(Open { requests, answers })
}

fn obey(
    order: Order,
    entries: &mut HashMap<i64, Entry>,
    requests: Option<&mpsc::UnboundedSender<WatchRequest>>,
) {
    let request = match order {
        Order::Begin(id, entry) => {
            let request = begin(id, &entry);
            entries.insert(id, entry);
            request
        }
        Order::End(id) => {
            if entries.remove(&id).is_none() {
                return;
            }
            end(id)
        }
    };
    if let Some(requests) = requests {
        // A closed stream is noticed by its reader, who sets all watches again.
        let _ = requests.send(request);
    }
}

fn hear(
    answer: &WatchResponse,
    entries: &mut HashMap<i64, Entry>,
    requests: &mpsc::UnboundedSender<WatchRequest>,
    told: &AtomicU64,
) -> Heard {
    told.fetch_add(u64::try_from(answer.events.len()).unwrap_or(0), Ordering::Relaxed);
    // What we ended ourselves is not there any more. What the store has forgotten tells; all else was refused, and
    // some versions do not say which watch.
    let refused = answer.canceled && answer.compact_revision == 0;
    if refused && (answer.watch_id < 0 || entries.contains_key(&answer.watch_id)) {
        return Heard::Refused;
    }
    if answer.events.is_empty() && !answer.canceled {
        return Heard::Fine;
    }
    if let Some(entry) = entries.remove(&answer.watch_id) {
        entry.tell.send_replace(true);
        if !answer.canceled {
            let _ = requests.send(end(answer.watch_id));
        }
    }
    Heard::Fine
}

fn begin(id: i64, entry: &Entry) -> WatchRequest {
    let create = match &entry.what {
        What::End(key) => WatchCreateRequest {
            key: key.clone(),
            filters: vec![FilterType::Noput.into()],
            ..WatchCreateRequest::default()
        },
        What::Key(key) => WatchCreateRequest { key: key.clone(), ..WatchCreateRequest::default() },
        What::Line(first, end) => {
            WatchCreateRequest { key: first.clone(), range_end: end.clone(), ..WatchCreateRequest::default() }
        }
    };
    let create = WatchCreateRequest { start_revision: entry.from, watch_id: id, ..create };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn end(watch_id: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })) }
}
