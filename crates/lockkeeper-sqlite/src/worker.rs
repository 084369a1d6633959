//! The way to the connection's thread: it sends what is asked, wakes the thread, and awaits the answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::{self, Fault};
use lockkeeper_core::{Claim, Clock};
use lockkeeper_fork::Origin;
use tokio::sync::oneshot;

use crate::NAME;
use crate::bell::{Caller, Number};
use crate::connection::Thread;
use crate::desk::Desk;
use crate::fault::Result;
use crate::file::File;
use crate::options::SqliteOptions;
use crate::quiet::Quiet;
use crate::spin::{Spin, Usual, spin};
use crate::wake::Watch;
use crate::work::{Asked, Request, Verb};

/// How long a caller spins before it lets other tasks run.
const SPIN_BURST: Duration = Duration::from_micros(50);

/// How long a caller spins for the desk. Longer than the thread keeps it when it has answered all.
const SPIN_FOR_DESK: Duration = Duration::from_micros(10);

/// The way to the thread. When the last one is dropped, the thread closes the file and ends.
#[derive(Clone, Debug)]
pub(crate) struct Worker(Arc<End>);

/// What all clones of a worker share.
#[derive(Debug)]
struct End {
    /// First: the thread is the last to have it, and closes the file.
    desk: Arc<Mutex<Desk>>,
    requests: Sender<Request>,
    /// After the sender: when both are dropped the thread wakes up and sees that it is over.
    caller: Caller,
    number: Number,
    quiet: Arc<Quiet>,
    spins: Arc<Spins>,
    /// Where the thread is.
    made_in: Origin,
}

/// What both ends of the worker know about each other's speed.
#[derive(Debug, Default)]
pub(crate) struct Spins {
    pub(crate) usual: Usual,
    answers: Spin,
    pub(crate) requests: Spin,
    /// The thread has nothing to do, or nothing that takes long. A hint, so Relaxed is enough: what may be done is
    /// decided by who has the desk, under its lock.
    pub(crate) rests: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) fn new(
        desk: Arc<Mutex<Desk>>,
        requests: Sender<Request>,
        caller: Caller,
        number: Number,
        quiet: Arc<Quiet>,
        spins: Arc<Spins>,
    ) -> Self {
        Worker(Arc::new(End { desk, requests, caller, number, quiet, spins, made_in: Origin::here() }))
    }

    /// Start the thread and open the file on it; `opened` is told how that went.
    pub(crate) fn start(
        options: SqliteOptions,
        opened: impl FnOnce(Result<Worker>) + Send + 'static,
    ) -> std::io::Result<()> {
        let open = move || match File::open(options).and_then(Thread::with_worker) {
            Ok((worker, thread)) => {
                opened(Ok(worker));
                thread.serve();
            }
            Err(trouble) => opened(Err(trouble)),
        };
        std::thread::Builder::new().name("lockkeeper-sql".to_owned()).spawn(open).map(drop)
    }

    /// Run a verb here, or send it and wait for its answer.
    pub(crate) async fn ask<V: Verb>(&self, mut verb: V) -> backend::Result<V::Answer> {
        if !self.0.made_in.is_here() {
            let why =
                "the connection's thread is in the process that this one was forked from; open the file here";
            return Err(Fault::permanent(NAME, V::DOING, why));
        }
        if let Some(answer) = self.at_once(&mut verb) {
            return Ok(answer);
        }
        let (reply, answer) = oneshot::channel();
        let asked = Box::new(Asked::new(verb, Some(reply)));
        if !self.send(Request::Work(asked)) {
            return Err(thread_ended(V::DOING));
        }
        let answer = self.spin_for(answer).await;
        answer.unwrap_or_else(|_| Err(thread_ended(V::DOING)))
    }

    /// Run it on this thread, if it is short and the other one rests.
    fn at_once<V: Verb>(&self, verb: &mut V) -> Option<V::Answer> {
        if !V::IS_SHORT || !self.0.spins.rests.load(Ordering::Relaxed) {
            return None;
        }
        let clock = Clock::boot();
        let mut desk = spin(&clock, clock.now().after(SPIN_FOR_DESK), || self.0.desk.try_lock().ok())?;
        let answer = desk.at_once(verb)?;
        let is_news = desk.has_touched();
        drop(desk);
        if is_news {
            self.send(Request::Touched);
        }
        Some(answer)
    }

    /// Await the answer; at first without going to sleep, but letting other tasks run.
    async fn spin_for<T>(&self, mut answer: oneshot::Receiver<T>) -> Result<T, oneshot::error::RecvError> {
        let (clock, spins) = (Clock::boot(), &self.0.spins.answers);
        let mut spin_until = spins.spin_until(self.0.spins.usual.get(), clock.now());
        poll_fn(|cx| {
            if let Some(until) = spin_until {
                let burst = clock.now().after(SPIN_BURST).min(until);
                if spin(&clock, burst, || (!answer.is_empty() || answer.is_terminated()).then_some(()))
                    .is_some()
                {
                    spins.hit();
                } else if clock.now() < until {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                } else {
                    spins.miss();
                }
                spin_until = None;
            }
            Pin::new(&mut answer).poll(cx)
        })
        .await
    }

    /// Ask to be woken. Without a thread nobody ever is, which `changed` allows.
    pub(crate) fn watch(&self, watch: Watch) {
        if let Some(watch) = self.0.quiet.watch(watch) {
            self.send(Request::Watch(watch));
        }
    }

    /// The claim as the file shall know it: its id tells where to ring for it.
    pub(crate) fn marked(&self, mut claim: Claim) -> Claim {
        claim.id = self.0.number.mark(claim.id);
        claim
    }

    /// `false` if nobody is there to take it.
    fn send(&self, request: Request) -> bool {
        // Whoever sends comes before those who would help themselves now.
        self.0.spins.rests.store(false, Ordering::Relaxed);
        let sent = self.0.requests.send(request).is_ok();
        self.0.caller.call();
        sent
    }
}

pub(crate) fn thread_ended(doing: &'static str) -> Fault {
    Fault::permanent(NAME, doing, "the connection's thread has ended; open the file again")
}
