//! The thread that owns the connection: it takes what waits, runs it in one transaction, and answers.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::backend::{self, Fault};
use lockkeeper_core::{Clock, Key, Moment};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::fault::{Result, Trouble};
use crate::file::File;
use crate::line::Tx;
use crate::options::SqliteOptions;
use crate::pace::{Pace, Usual, spin};
use crate::wake::{Watch, Watches};
use crate::{NAME, admin};

/// The most requests in one transaction, so that nobody waits long for the write lock.
const BATCH_MAX: usize = 256;

/// How long a caller spins before it lets other tasks run.
const SPIN_BURST: Duration = Duration::from_micros(50);

/// Who just got an answer often asks the next thing at once.
const SPIN_FOR_NEXT: Duration = Duration::from_micros(20);

/// A look at the file outside a write transaction.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) options: &'a SqliteOptions,
    pub(crate) now: Moment,
}

/// What can be asked of the file. A verb may run more than once until its transaction commits.
pub(crate) trait Verb: fmt::Debug + Send + 'static {
    type Answer: Send + 'static;
    /// What the verb does, for faults.
    const DOING: &'static str;

    /// Answer without writing, if that is possible.
    fn look(&self, _look: &Look<'_>) -> Result<Option<Self::Answer>> {
        Ok(None)
    }

    /// Do it.
    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer>;
}

/// What the thread is sent.
pub(crate) enum Request {
    Work(Box<dyn Work>),
    Watch(Watch),
}

/// A verb with the one who waits for its answer, its type forgotten.
pub(crate) trait Work: Send {
    /// `true` if it is answered and done with.
    fn look(&mut self, look: &Look<'_>) -> Result<bool>;
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// Tell what `run` found.
    fn finish(self: Box<Self>);
    /// Tell that it failed.
    fn fail(self: Box<Self>, trouble: &Trouble);
}

struct Asked<V: Verb> {
    verb: V,
    found: Option<V::Answer>,
    reply: Option<oneshot::Sender<backend::Result<V::Answer>>>,
}

impl<V: Verb> Asked<V> {
    fn reply(&mut self, answer: backend::Result<V::Answer>) {
        if let Some(reply) = self.reply.take() {
            // Whoever went away does not need the answer.
            let _ = reply.send(answer);
        }
    }
}

impl<V: Verb> Work for Asked<V> {
    fn look(&mut self, look: &Look<'_>) -> Result<bool> {
        let answer = self.verb.look(look)?;
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.reply(Ok(answer));
        }
        Ok(is_answered)
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        self.found = Some(self.verb.run(tx)?);
        Ok(())
    }

    fn finish(mut self: Box<Self>) {
        let found = self.found.take().ok_or_else(|| thread_ended(V::DOING));
        self.reply(found);
    }

    fn fail(mut self: Box<Self>, trouble: &Trouble) {
        self.reply(Err(trouble.fault(V::DOING)));
    }
}

/// The way to the thread. When the last one is dropped, the thread closes the file and ends.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    requests: Sender<Request>,
    paces: Arc<Paces>,
}

/// What both ends of the wire know about each other's speed.
#[derive(Debug, Default)]
struct Paces {
    usual: Usual,
    answers: Pace,
    requests: Pace,
}

impl Wire {
    /// Start the thread and open the file on it; `opened` is told how that went.
    pub(crate) fn start(
        options: SqliteOptions,
        opened: impl FnOnce(Result<Wire>) + Send + 'static,
    ) -> std::io::Result<()> {
        let (sender, requests) = std::sync::mpsc::channel();
        let paces = Arc::<Paces>::default();
        let open = move || match File::open(options) {
            Ok(file) => {
                let thread = Thread::new(file, requests, paces.clone());
                opened(Ok(Wire { requests: sender, paces }));
                thread.serve();
            }
            Err(trouble) => opened(Err(trouble)),
        };
        std::thread::Builder::new().name("lockkeeper-sql".to_owned()).spawn(open).map(drop)
    }

    /// Send a verb and wait for its answer.
    pub(crate) async fn ask<V: Verb>(&self, verb: V) -> backend::Result<V::Answer> {
        let (reply, answer) = oneshot::channel();
        let asked = Box::new(Asked { verb, found: None, reply: Some(reply) });
        if self.requests.send(Request::Work(asked)).is_err() {
            return Err(thread_ended(V::DOING));
        }
        let answer = self.spin_for(answer).await;
        answer.unwrap_or_else(|_| Err(thread_ended(V::DOING)))
    }

    /// Await the answer; at first without going to sleep, but letting other tasks run.
    async fn spin_for<T>(&self, mut answer: oneshot::Receiver<T>) -> Result<T, oneshot::error::RecvError> {
        let (clock, pace) = (Clock::boot(), &self.paces.answers);
        let mut spin_until = pace.spin_until(self.paces.usual.get(), clock.now());
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
        let _ = self.requests.send(Request::Watch(watch));
    }
}

fn thread_ended(doing: &'static str) -> Fault {
    Fault::permanent(NAME, doing, "the connection's thread has ended; open the file again")
}

struct Thread {
    file: File,
    requests: Receiver<Request>,
    watches: Watches,
    touched: Vec<Key>,
    clock: Clock,
    clean_due: Moment,
    paces: Arc<Paces>,
}

impl Thread {
    fn new(file: File, requests: Receiver<Request>, paces: Arc<Paces>) -> Self {
        let clock = Clock::boot();
        // Soon, for those who live short; not at once, for those who are in a hurry.
        let clean_due = clock.now().after(file.options().clean_every.min(Duration::from_secs(1)));
        Thread { file, requests, watches: Watches::default(), touched: Vec::new(), clock, clean_due, paces }
    }

    fn serve(mut self) {
        let mut just_served = false;
        loop {
            let next = self.next(just_served);
            just_served = next.is_ok();
            match next {
                Ok(request) => {
                    let began = self.clock.now();
                    self.take(request);
                    self.paces.usual.add(self.clock.now() - began);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.clock.now();
            self.watches.look(self.file.connection(), now);
            if self.clean_due <= now {
                self.clean(now);
            }
        }
    }

    /// The next request, or the time to look again.
    fn next(&self, just_served: bool) -> Result<Request, RecvTimeoutError> {
        let now = self.clock.now();
        let pause = self.watches.due().min(self.clean_due) - now;
        let pace = &self.paces.requests;
        if just_served
            && SPIN_FOR_NEXT < pause
            && let Some(until) = pace.spin_until(SPIN_FOR_NEXT, now)
        {
            if let Some(request) = spin(&self.clock, until, || self.requests.try_recv().ok()) {
                pace.hit();
                return Ok(request);
            }
            pace.miss();
        }
        self.requests.recv_timeout(pause)
    }

    /// Serve this request and all others that wait.
    fn take(&mut self, first: Request) {
        let mut works = Vec::new();
        self.sort(first, &mut works);
        self.drain(&mut works);
        if works.is_empty() {
            return;
        }
        match self.file.reopen_if_moved() {
            Ok(false) => {}
            Ok(true) => self.watches.look_anew(),
            Err(trouble) => {
                return tell(works, &Err(trouble));
            }
        }
        let works = self.look(works);
        if !works.is_empty() {
            self.write(works);
        }
    }

    fn sort(&mut self, request: Request, works: &mut Vec<Box<dyn Work>>) {
        match request {
            Request::Work(work) => works.push(work),
            Request::Watch(watch) => self.watches.add(watch),
        }
    }

    fn drain(&mut self, works: &mut Vec<Box<dyn Work>>) {
        while works.len() < BATCH_MAX
            && let Ok(request) = self.requests.try_recv()
        {
            self.sort(request, works);
        }
    }

    /// Answer those who need no write. The others come back.
    fn look(&mut self, works: Vec<Box<dyn Work>>) -> Vec<Box<dyn Work>> {
        let mut rest = Vec::with_capacity(works.len());
        for mut work in works {
            match self.file.look(|look| work.look(look)) {
                Ok(true) => {}
                Ok(false) => rest.push(work),
                Err(trouble) => work.fail(&trouble),
            }
        }
        rest
    }

    /// Run all in one transaction; if that fails, each in its own, so that each gets its own answer.
    fn write(&mut self, mut works: Vec<Box<dyn Work>>) {
        let done = self.commit(&mut works, true);
        match &done {
            Err(trouble) if 1 < works.len() && !trouble.is_busy() => {
                for work in works {
                    let mut alone = vec![work];
                    let done = self.commit(&mut alone, false);
                    tell(alone, &done);
                }
            }
            _ => tell(works, &done),
        }
        let now = self.clock.now();
        self.watches.touch(&self.touched, now);
        self.touched.clear();
    }

    fn commit(&mut self, works: &mut Vec<Box<dyn Work>>, with_others: bool) -> Result<()> {
        let deadline = self.clock.now().after(self.file.busy_wait());
        let mut tried_log = false;
        loop {
            self.file.begin(deadline)?;
            if with_others {
                // Waiting for the write lock takes time; who came meanwhile travels along.
                self.drain(works);
            }
            let now = self.clock.now();
            let mut tx = self.file.tx(now, &mut self.touched);
            let done = works.iter_mut().try_for_each(|it| it.run(&mut tx));
            match done.and_then(|()| self.file.commit()) {
                Ok(()) => return Ok(()),
                Err(trouble) => {
                    self.file.roll_back();
                    if trouble.is_disk_full() && !std::mem::replace(&mut tried_log, true) {
                        self.file.reuse_log();
                    } else if !trouble.is_busy() || deadline <= self.clock.now() {
                        return Err(trouble);
                    }
                }
            }
        }
    }

    /// Remove what dead processes left. Whoever looks at such a key does so too; this is for the others.
    fn clean(&mut self, now: Moment) {
        let every = self.file.options().clean_every;
        self.clean_due = now.after(self.file.spread(every));
        // A fault here is met again by the next verb, which can tell it.
        let stale = admin::stale_keys(self.file.connection(), now, BATCH_MAX).unwrap_or_default();
        if stale.len() == BATCH_MAX {
            self.clean_due = now;
        }
        if !stale.is_empty() {
            self.write(vec![Box::new(Asked { verb: admin::Clean(stale), found: None, reply: None })]);
        }
    }
}

fn tell(works: Vec<Box<dyn Work>>, done: &Result<()>) {
    for work in works {
        match done {
            Ok(()) => work.finish(),
            Err(trouble) => work.fail(trouble),
        }
    }
}

#[cfg(test)]
mod tests;
