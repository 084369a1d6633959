//! Being told: one watch stream for all of this process, which survives lost connections and compactions.
//!
//! A watch of a key begins at the revision after the one that was read, so nothing falls between reading and watching.
//! It tells once and is gone. A watch of a line stands: see `standing.rs`. After a lost connection all watches are set again
//! from where they began, or had come to, and the store replays what they missed; if that was compacted away they tell at
//! once.

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
use crate::standing::{Interest, Kind, LineWatches, Sign, Subscription};
use crate::wire::watch_client::WatchClient;
use crate::wire::watch_create_request::FilterType;
use crate::wire::watch_request::RequestUnion;
use crate::wire::{
    Answer as _, TxnRequest, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, delete,
    range_end, written_at,
};

/// The pause before a broken stream is opened again, which grows while nothing is heard.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often standing watches that nobody listens to are looked for.
const ROUND: Duration = Duration::from_secs(5);

/// The number of a watch that is set and ended only to hear that it was. Others begin at 1, and 0 means any number.
const SIGN_OF_LIFE: i64 = i64::MAX;

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// That this key is deleted.
    End(Bytes),
    /// Anything about the keys from the first to before the second.
    Range(Bytes, Bytes),
    /// A line: that keys with this beginning are deleted, or all that happens to them.
    Line(Bytes, Kind),
}

/// A watch. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    told: watch::Receiver<Sign>,
    source: Source,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Source {
    /// A watch of its own, by its number.
    Own(i64),
    /// The one that stands for all of us in a line.
    Line(Subscription, Arc<LineWatches>),
}

impl Watch {
    /// What it has told.
    pub(crate) fn sign(&self) -> Sign {
        *self.told.borrow()
    }

    /// Resolves when it tells. May do so for no reason.
    pub(crate) async fn told(&mut self) {
        // An error means that the stream's task is gone: asking again is then worthwhile, too.
        let _ = self.told.wait_for(|it| *it != Sign::Silence).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let order = match &self.source {
            Source::Own(_) if self.sign() != Sign::Silence => None,
            Source::Own(id) => Some(Order::End(*id)),
            Source::Line(subscription, standing) => standing.leave(subscription).map(Order::Idle),
        };
        if let Some(order) = order {
            let _ = self.orders.send(order);
        }
    }
}

/// How the stream is that carries all watches of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Health {
    /// How often it broke so far.
    breaks: u64,
    /// No other has been opened since.
    broken: bool,
}

impl Health {
    fn breaks(&mut self) {
        (self.breaks, self.broken) = (self.breaks + u64::from(!self.broken), true);
    }
}

#[derive(Debug)]
enum Order {
    Begin(i64, Entry),
    End(i64),
    /// Nobody listens to this standing one any more, and there are too many such.
    Idle(i64),
}

#[derive(Debug)]
struct Entry {
    what: What,
    /// The revision at which it begins, or goes on after a lost connection; 0 for now.
    from: i64,
    /// Whom to tell; `None` for one that stands.
    tell: Option<watch::Sender<Sign>>,
}

/// The watches of this process.
#[derive(Debug)]
pub(crate) struct Wake {
    orders: mpsc::UnboundedSender<Order>,
    /// The number of the next watch. Only that each is given once matters: Relaxed.
    next: AtomicI64,
    /// How many events the store has sent us. Relaxed: only counted.
    told: Arc<AtomicU64>,
    standing: Arc<LineWatches>,
    health: watch::Receiver<Health>,
}

impl Wake {
    /// Start the task that holds the stream.
    pub(crate) fn start(connection: Arc<Connection>, grants: Arc<Grants>) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (told, standing) = (Arc::<AtomicU64>::default(), Arc::<LineWatches>::default());
        let (tell, health) = watch::channel(Health::default());
        let watched = Watched { standing: standing.clone(), told: told.clone(), ..Watched::default() };
        connection.driver.clone().spawn(serve(connection, grants, inbox, watched, tell));
        Wake { orders, next: AtomicI64::new(1), told, standing, health }
    }

    /// Resolves when the stream breaks, or at once while it is broken: nothing is told until another is open.
    pub(crate) fn when_broken(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut health = self.health.clone();
        async move {
            let before = health.borrow_and_update().breaks;
            // An error means that its task is gone.
            let _ = health.wait_for(|it| it.broken || it.breaks != before).await;
        }
    }

    /// Watch from this revision on.
    pub(crate) fn watch(&self, what: What, from: i64) -> Watch {
        let (tell, told) = watch::channel(Sign::Silence);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // If the task is gone the receiver sees it and tells at once.
        let _ = self.orders.send(Order::Begin(id, Entry { what, from, tell: Some(tell) }));
        Watch { told, source: Source::Own(id), orders: self.orders.clone() }
    }

    /// Listen to a line that was looked at as of revision `after`. If its watch must be set first, it begins now, or where
    /// the look ended.
    pub(crate) fn listen(&self, line: &Bytes, interest: Interest, after: i64, from_now: bool) -> Watch {
        let fresh = self.next.fetch_add(1, Ordering::Relaxed);
        let listening = self.standing.listen(line, interest, after, from_now, fresh);
        if let Some(id) = listening.outdated {
            let _ = self.orders.send(Order::End(id));
        }
        if let Some(kind) = listening.is_new {
            let from = if from_now { 0 } else { after + 1 };
            let entry = Entry { what: What::Line(line.clone(), kind), from, tell: None };
            // The task ends with the last place, so it is there.
            let _ = self.orders.send(Order::Begin(fresh, entry));
        }
        let source = Source::Line(listening.subscription, self.standing.clone());
        Watch { told: listening.told, source, orders: self.orders.clone() }
    }

    /// How many events the store has sent us.
    pub(crate) fn events(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }
}

/// All that is watched.
#[derive(Default)]
struct Watched {
    entries: HashMap<i64, Entry>,
    standing: Arc<LineWatches>,
    /// As in [`Wake`]. Relaxed: only counted.
    told: Arc<AtomicU64>,
    /// The largest revision that the store has named on the stream.
    reached: i64,
}

impl Watched {
    /// Do what was ordered. Answers what the server must hear.
    fn obey(&mut self, order: Order) -> Option<WatchRequest> {
        match order {
            Order::Begin(id, entry) => {
                let request = begin(id, &entry);
                self.entries.insert(id, entry);
                Some(request)
            }
            // Somebody may listen again.
            Order::Idle(id) if !self.standing.forget_if_idle(id) => None,
            Order::End(id) | Order::Idle(id) => self.end(id),
        }
    }

    fn end(&mut self, id: i64) -> Option<WatchRequest> {
        self.entries.remove(&id).map(|_| end(id))
    }

    /// End those that nobody has listened to for long enough.
    fn sweep(&mut self) -> Vec<WatchRequest> {
        self.standing.sweep().into_iter().filter_map(|it| self.end(it)).collect()
    }

    /// What was watched may not be what there is now: all of it tells and ends. Answers what the server must hear.
    fn tell_all(&mut self) -> Vec<WatchRequest> {
        self.reached = 0;
        let tell = |(id, entry): (i64, Entry)| {
            match entry.tell {
                Some(tell) => drop(tell.send_replace(Sign::Told)),
                None => self.standing.fail(id),
            }
            end(id)
        };
        self.entries.drain().map(tell).collect()
    }

    /// Tell whom it concerns. Answers what the server must hear.
    fn hear(&mut self, answer: &WatchResponse) -> (Heard, Option<WatchRequest>) {
        let (id, fine) = (answer.watch_id, (Heard::Fine, None));
        self.reached = self.reached.max(answer.revision());
        self.told.fetch_add(u64::try_from(answer.events.len()).unwrap_or(0), Ordering::Relaxed);
        // What we ended ourselves is not there any more. What the store has forgotten tells; all else was refused, and
        // some versions do not say which watch.
        let refused = answer.canceled && answer.compact_revision == 0;
        if refused && (id < 0 || self.entries.contains_key(&id)) {
            return (Heard::Refused, None);
        }
        let Some(entry) = self.entries.get_mut(&id) else { return fine };
        if entry.tell.is_none() && !answer.canceled {
            if answer.created && entry.from == 0 {
                entry.from = answer.revision() + 1;
                self.standing.begins(id, answer.revision());
            }
            let last = answer.events.iter().filter_map(|it| it.kv.as_ref()).map(|it| it.mod_revision).max();
            entry.from = entry.from.max(last.map_or(0, |it| it + 1));
            self.standing.hear(id, &answer.events);
            return fine;
        }
        if answer.events.is_empty() && !answer.canceled {
            return fine;
        }
        match self.entries.remove(&id).and_then(|it| it.tell) {
            Some(tell) => drop(tell.send_replace(Sign::Told)),
            None => self.standing.fail(id),
        }
        (Heard::Fine, (!answer.canceled).then(|| end(id)))
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
    mut watched: Watched,
    health: watch::Sender<Health>,
) {
    let (mut pause, mut checked_at) = (PAUSE_MIN, connection.dials());
    loop {
        // No stream while there is nothing to watch.
        while watched.entries.is_empty() {
            let Some(order) = inbox.recv().await else { return };
            watched.obey(order);
        }
        let (at, replaced) = (connection.current(), connection.replaced());
        let opened = tokio::select! {
            opened = open(&connection, connection.node(at), &watched.entries) => opened,
            () = connection.clock.sleep(connection.options.timeout) => None,
        };
        let Some(mut stream) = opened else {
            health.send_modify(Health::breaks);
            connection.turn_away_from(at);
            connection.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        };
        health.send_modify(|it| it.broken = false);
        let dials = connection.dials();
        if dials != checked_at && !is_intact(&connection, &grants, watched.reached).await {
            // What is replayed would be another history than the one we know.
            for request in watched.tell_all() {
                let _ = stream.requests.send(request);
            }
        }
        checked_at = dials;
        let ended =
            follow(&connection, (at, replaced), &mut inbox, &mut watched, &mut stream, &mut pause).await;
        health.send_modify(Health::breaks);
        match ended {
            None => return,
            Some(Heard::Fine) => continue,
            Some(Heard::Strange) => connection.turn_away_from(at),
            // If there is none to be had, opening the stream fails, too.
            Some(Heard::Refused) => drop(connection.authenticate().await),
        }
        connection.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Follow an open stream until another must be opened; `None` if nobody is left who could listen.
async fn follow(
    connection: &Connection,
    (at, mut replaced): (usize, watch::Receiver<u64>),
    inbox: &mut mpsc::UnboundedReceiver<Order>,
    watched: &mut Watched,
    stream: &mut Open,
    pause: &mut Duration,
) -> Option<Heard> {
    let clock = &connection.clock;
    let mut round_ends = clock.now().after(ROUND);
    // Until when the stream must have shown that it lives, if that is in doubt.
    let mut doubted = Moment::NEVER;
    // A closed stream is noticed by its reader, who sets all watches again.
    loop {
        tokio::select! {
            order = inbox.recv() => {
                let request = watched.obey(order?);
                request.map(|it| stream.requests.send(it));
            }
            answer = stream.answers.message() => {
                let Ok(Some(answer)) = answer else { return Some(Heard::Strange) };
                if !connection.cluster.admits(at % connection.nodes(), answer.cluster()) {
                    return Some(Heard::Strange);
                }
                let (heard, request) = watched.hear(&answer);
                request.map(|it| stream.requests.send(it));
                if heard != Heard::Fine {
                    return Some(heard);
                }
                (*pause, doubted) = (PAUSE_MIN, Moment::NEVER);
            }
            // An endpoint kept silent, so this stream may be dead as well. Setting all watches again is expensive, and
            // it may only be busy: it is asked for a sign of life.
            _ = replaced.changed(), if doubted == Moment::NEVER => {
                doubted = clock.now().after(connection.options.timeout);
                let nothing = Bytes::from(format!("{}/nothing", connection.options.prefix));
                let entry = Entry { what: What::End(nothing), from: 0, tell: None };
                // It is not kept: the answer that it was set is all that is wanted.
                let _ = stream.requests.send(begin(SIGN_OF_LIFE, &entry));
                let _ = stream.requests.send(end(SIGN_OF_LIFE));
            }
            () = clock.sleep_until(doubted) => return Some(Heard::Fine),
            () = clock.sleep_until(round_ends) => {
                round_ends = clock.now().after(ROUND);
                for request in watched.sweep() {
                    let _ = stream.requests.send(request);
                }
            }
        }
    }
}

/// Whether the store has come as far as it had before, and still knows the latest of what we hold. Asked after a new
/// connection, because no store goes back without ending all of them.
async fn is_intact(connection: &Connection, grants: &Grants, reached: i64) -> bool {
    let newest = grants.newest();
    if newest.is_none() && reached == 0 {
        return true;
    }
    let nothing = delete(&Bytes::from(format!("{}/nothing", connection.options.prefix)));
    let look = TxnRequest {
        compare: newest.iter().map(|it| written_at(&it.key, it.written_at)).collect(),
        success: vec![nothing.clone()],
        failure: vec![nothing],
    };
    connection.txn(look).await.is_ok_and(|it| it.succeeded && reached <= it.revision())
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

fn begin(id: i64, entry: &Entry) -> WatchRequest {
    let create = match &entry.what {
        What::End(key) => WatchCreateRequest {
            key: key.clone(),
            filters: vec![FilterType::Noput.into()],
            ..WatchCreateRequest::default()
        },
        What::Range(first, end) => {
            WatchCreateRequest { key: first.clone(), range_end: end.clone(), ..WatchCreateRequest::default() }
        }
        What::Line(line, kind) => WatchCreateRequest {
            key: line.clone(),
            range_end: range_end(line),
            filters: if *kind == Kind::Ends { vec![FilterType::Noput.into()] } else { Vec::new() },
            ..WatchCreateRequest::default()
        },
    };
    let create = WatchCreateRequest { start_revision: entry.from, watch_id: id, ..create };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn end(watch_id: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })) }
}
