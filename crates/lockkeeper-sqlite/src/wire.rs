//! The way to the connection's thread: it sends what is asked, wakes the thread, and awaits the answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::{self, Fault};
use lockkeeper_core::{Claim, Clock};
use lockkeeper_fork::Origin;
use tokio::sync::oneshot;

use crate::NAME;
use crate::bell::{Caller, Number};
use crate::connection::{Asked, Request, Thread, Verb};
use crate::fault::Result;
use crate::file::File;
use crate::options::SqliteOptions;
use crate::pace::{Pace, Usual, spin};
use crate::wake::Watch;

/// How long a caller spins before it lets other tasks run.
const SPIN_BURST: Duration = Duration::from_micros(50);

/// The way to the thread. When the last one is dropped, the thread closes the file and ends.
#[derive(Clone, Debug)]
pub(crate) struct Wire(Arc<End>);

/// What all clones of a wire share.
#[derive(Debug)]
struct End {
    requests: Sender<Request>,
    /// After the sender: when both are dropped the thread wakes up and sees that it is over.
    caller: Caller,
    number: Number,
    paces: Arc<Paces>,
    /// Where the thread is.
    made_in: Origin,
}

/// What both ends of the wire know about each other's speed.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    pub(crate) usual: Usual,
    answers: Pace,
    pub(crate) requests: Pace,
}

impl Wire {
    pub(crate) fn new(requests: Sender<Request>, caller: Caller, number: Number, paces: Arc<Paces>) -> Self {
        Wire(Arc::new(End { requests, caller, number, paces, made_in: Origin::here() }))
    }

    /// Start the thread and open the file on it; `opened` is told how that went.
    pub(crate) fn start(
        options: SqliteOptions,
        opened: impl FnOnce(Result<Wire>) + Send + 'static,
    ) -> std::io::Result<()> {
        let open = move || match File::open(options).and_then(Thread::wired) {
            Ok((wire, thread)) => {
                opened(Ok(wire));
                thread.serve();
            }
            Err(trouble) => opened(Err(trouble)),
        };
        std::thread::Builder::new().name("lockkeeper-sql".to_owned()).spawn(open).map(drop)
    }

    /// Send a verb and wait for its answer.
    pub(crate) async fn ask<V: Verb>(&self, verb: V) -> backend::Result<V::Answer> {
        if !self.0.made_in.is_here() {
            let why =
                "the connection's thread is in the process that this one was forked from; open the file here";
            return Err(Fault::permanent(NAME, V::DOING, why));
        }
        let (reply, answer) = oneshot::channel();
        let asked = Box::new(Asked::new(verb, Some(reply)));
        if !self.send(Request::Work(asked)) {
            return Err(thread_ended(V::DOING));
        }
        let answer = self.spin_for(answer).await;
        answer.unwrap_or_else(|_| Err(thread_ended(V::DOING)))
    }

    /// Await the answer; at first without going to sleep, but letting other tasks run.
    async fn spin_for<T>(&self, mut answer: oneshot::Receiver<T>) -> Result<T, oneshot::error::RecvError> {
        let (clock, pace) = (Clock::boot(), &self.0.paces.answers);
        let mut spin_until = pace.spin_until(self.0.paces.usual.get(), clock.now());
        poll_fn(|cx| {
            if let Some(until) = spin_until {
                let burst = clock.now().after(SPIN_BURST).min(until);
                if spin(&clock, burst, || (!answer.is_empty() || answer.is_terminated()).then_some(()))
                    .is_some()
                {
                    pace.hit();
                } else if clock.now() < until {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                } else {
                    pace.miss();
                }
                spin_until = None;
            }
            Pin::new(&mut answer).poll(cx)
        })
        .await
    }

    /// Ask to be woken. Without a thread nobody ever is, which `changed` allows.
    pub(crate) fn watch(&self, watch: Watch) {
        self.send(Request::Watch(watch));
    }

    /// The claim as the file shall know it: its id tells where to ring for it.
    pub(crate) fn marked(&self, mut claim: Claim) -> Claim {
        claim.id = self.0.number.mark(claim.id);
        claim
    }

    /// `false` if nobody is there to take it.
    fn send(&self, request: Request) -> bool {
        let sent = self.0.requests.send(request).is_ok();
        self.0.caller.call();
        sent
    }
}

pub(crate) fn thread_ended(doing: &'static str) -> Fault {
    Fault::permanent(NAME, doing, "the connection's thread has ended; open the file again")
}
