//! The thread that owns the connection: it takes what waits, runs it in one transaction, and answers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use lockkeeper_core::backend;
use lockkeeper_core::{ClaimId, Clock, Key, Moment};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::admin;
use crate::bell::{Bell, Number};
use crate::fault::{Result, Trouble};
use crate::file::File;
use crate::line::Tx;
use crate::options::SqliteOptions;
use crate::pace::spin;
use crate::wake::{Watch, Watches};
use crate::wire::{Paces, Wire, thread_ended};

/// The most requests in one transaction, so that nobody waits long for the write lock.
const BATCH_MAX: usize = 256;

/// The most keys that a process cleans with its first write: more than it can leave behind itself, so that what is
/// left gets less and less, and few enough that nobody notices.
const CLEAN_ONCE_MAX: usize = 32;

const NONE: Duration = Duration::ZERO;

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
    /// Goes before all others that wait: what is held already must not be lost because others ask for more.
    const IS_URGENT: bool = false;

    /// Answer without writing, if that is possible.
    fn look(&mut self, _look: &Look<'_>) -> Result<Option<Self::Answer>> {
        Ok(None)
    }

    /// Do it.
    fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer>;

    /// Whether it is likely to let somebody in. If it does so unexpectedly, its transaction is done again.
    fn may_grant(&self) -> bool {
        false
    }

    /// Whether it most likely only keeps its place in line. Then all others of the process are kept with it.
    fn keeps_a_place(&self) -> bool {
        false
    }
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
    fn is_urgent(&self) -> bool;
    fn may_grant(&self) -> bool;
    fn keeps_a_place(&self) -> bool;
    /// Tell what `run` found.
    fn finish(self: Box<Self>);
    /// Tell that it failed.
    fn fail(self: Box<Self>, trouble: &Trouble);
}

pub(crate) struct Asked<V: Verb> {
    verb: V,
    found: Option<V::Answer>,
    reply: Option<oneshot::Sender<backend::Result<V::Answer>>>,
}

impl<V: Verb> Asked<V> {
    pub(crate) fn new(verb: V, reply: Option<oneshot::Sender<backend::Result<V::Answer>>>) -> Self {
        Asked { verb, found: None, reply }
    }

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

    fn is_urgent(&self) -> bool {
        V::IS_URGENT
    }

    fn may_grant(&self) -> bool {
        self.verb.may_grant()
    }

    fn keeps_a_place(&self) -> bool {
        self.verb.keeps_a_place()
    }

    fn finish(mut self: Box<Self>) {
        let found = self.found.take().ok_or_else(|| thread_ended(V::DOING));
        self.reply(found);
    }

    fn fail(mut self: Box<Self>, trouble: &Trouble) {
        self.reply(Err(trouble.fault(V::DOING)));
    }
}

/// What was asked and is not yet begun.
#[derive(Default)]
struct Waiting {
    urgent: VecDeque<Box<dyn Work>>,
    others: VecDeque<Box<dyn Work>>,
}

impl Waiting {
    fn add(&mut self, work: Box<dyn Work>) {
        let side = if work.is_urgent() { &mut self.urgent } else { &mut self.others };
        side.push_back(work);
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.others.is_empty()
    }

    /// The urgent first, then the others in the order in which they came.
    fn fill(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        while batch.len() < BATCH_MAX
            && let Some(work) = self.urgent.pop_front().or_else(|| self.others.pop_front())
        {
            batch.push(work);
        }
    }
}

pub(crate) struct Thread {
    file: File,
    requests: Receiver<Request>,
    waiting: Waiting,
    watches: Watches,
    touched: Vec<Key>,
    /// Claims of anybody that the last commit let in.
    called: Vec<ClaimId>,
    bell: Bell,
    clock: Clock,
    clean_due: Moment,
    has_cleaned: bool,
    paces: Arc<Paces>,
}

impl Thread {
    /// A thread that does not run yet, and the way to it.
    pub(crate) fn wired(file: File) -> Result<(Wire, Self)> {
        let no_bell =
            |it| Trouble::permanent(format!("the connection's thread has nothing to sleep on ({it})"));
        let number = Number::random().ok_or_else(|| no_bell("no randomness".to_owned()))?;
        let (bell, caller) = Bell::new(number, &file.options().path).map_err(|it| no_bell(it.to_string()))?;
        let (sender, requests) = std::sync::mpsc::channel();
        let paces = Arc::<Paces>::default();
        let thread = Thread::new(file, requests, bell, paces.clone());
        Ok((Wire::new(sender, caller, number, paces), thread))
    }

    fn new(file: File, requests: Receiver<Request>, bell: Bell, paces: Arc<Paces>) -> Self {
        let clock = Clock::boot();
        // Soon, for those who live short; not at once, for those who are in a hurry.
        let clean_due = clock.now().after(file.options().clean_every.min(Duration::from_secs(1)));
        let (waiting, watches, touched, called) = Default::default();
        let has_cleaned = false;
        Thread {
            file,
            requests,
            waiting,
            watches,
            touched,
            called,
            bell,
            clock,
            clean_due,
            has_cleaned,
            paces,
        }
    }

    pub(crate) fn serve(mut self) {
        let mut just_served = false;
        loop {
            let next = self.next(just_served);
            just_served = next.is_ok();
            match next {
                Ok(request) => self.sort(request),
                Err(RecvTimeoutError::Disconnected) if self.waiting.is_empty() => return,
                Err(_) => {}
            }
            let began = self.clock.now();
            if self.take() {
                self.paces.usual.add(self.clock.now() - began);
            }
            let now = self.clock.now();
            self.listen(now);
            self.watches.look(self.file.connection(), now);
            if self.clean_due <= now {
                self.clean(now);
            }
        }
    }

    /// The next request, or the time to look again.
    fn next(&mut self, just_served: bool) -> Result<Request, RecvTimeoutError> {
        let now = self.clock.now();
        let due = self.watches.due().min(self.clean_due).min(self.bell.due());
        let pause = if self.waiting.is_empty() { due - now } else { NONE };
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
        let requests = &self.requests;
        let next = self.bell.sleep(pause, || match requests.try_recv() {
            Ok(request) => Some(Ok(request)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        });
        next.unwrap_or(Err(RecvTimeoutError::Timeout))
    }

    /// Hear who rang, and see to it that others can.
    fn listen(&mut self, now: Moment) {
        for id in self.bell.rung() {
            self.watches.ring(id);
        }
        if self.watches.has_missed() {
            self.bell.hang_anew(now);
        }
        if self.watches.anybody_waits() {
            self.bell.need(now);
        } else {
            self.bell.rest(now);
        }
        self.watches.expect_rings(self.bell.is_hung());
    }

    /// Serve as many of those who wait as fit into one transaction. Answers whether there was one.
    fn take(&mut self) -> bool {
        let mut works = Vec::new();
        self.fill(&mut works);
        if works.is_empty() {
            return false;
        }
        match self.file.reopen_if_moved() {
            Ok(false) => {}
            Ok(true) => {
                self.watches.look_anew();
                self.bell.take_down();
            }
            Err(trouble) => {
                tell(works, &Err(trouble));
                return true;
            }
        }
        let mut works = self.look(works);
        if !works.is_empty() {
            self.clean_once(&mut works);
            self.write(works);
        }
        true
    }

    fn sort(&mut self, request: Request) {
        match request {
            Request::Work(work) => self.waiting.add(work),
            Request::Watch(watch) => self.watches.add(watch),
        }
    }

    /// Fill up a batch with what waits, and with what came meanwhile.
    fn fill(&mut self, works: &mut Vec<Box<dyn Work>>) {
        while let Ok(request) = self.requests.try_recv() {
            self.sort(request);
        }
        self.waiting.fill(works);
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
        let deadline = self.clock.now().after(self.file.timeout());
        let (mut tried_log, mut flushes) = (false, works.iter().any(|it| it.may_grant()));
        loop {
            self.file.begin(deadline, flushes && self.file.must_flush())?;
            if with_others {
                // Waiting for the write lock takes time; who came meanwhile travels along.
                self.fill(works);
            }
            let now = self.clock.now();
            self.called.clear();
            let mut tx = self.file.tx(now, &mut self.touched, &mut self.called);
            let done = run(works, &self.watches, &mut tx);
            if done.is_ok() && tx.has_granted && !flushes && self.file.must_flush() {
                // Somebody came in whom nobody expected: once more, and wait for the disk.
                self.file.roll_back();
                flushes = true;
                continue;
            }
            match done.and_then(|()| self.file.commit()) {
                Ok(()) => {
                    self.called.drain(..).for_each(|it| self.bell.ring(it));
                    return Ok(());
                }
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
        let stale = self.stale(now, BATCH_MAX);
        if stale.len() == BATCH_MAX {
            self.clean_due = now;
        }
        if !stale.is_empty() {
            self.write(vec![clean(stale)]);
        }
    }

    /// With its first write each process removes some of what others left: where all live shorter than the cleaner
    /// takes to come, nobody else would.
    fn clean_once(&mut self, works: &mut Vec<Box<dyn Work>>) {
        if !std::mem::replace(&mut self.has_cleaned, true) {
            let stale = self.stale(self.clock.now(), CLEAN_ONCE_MAX);
            if !stale.is_empty() {
                works.push(clean(stale));
            }
        }
    }

    /// A fault here is met again by the next verb, which can tell it.
    fn stale(&self, now: Moment, count_max: usize) -> Vec<Key> {
        admin::stale_keys(self.file.connection(), now, count_max).unwrap_or_default()
    }
}

/// Do all of a batch. If one of them keeps its place in line, so do all others of this process.
fn run(works: &mut [Box<dyn Work>], watches: &Watches, tx: &mut Tx<'_>) -> Result<()> {
    works.iter_mut().try_for_each(|it| it.run(tx))?;
    if works.iter().any(|it| it.keeps_a_place()) {
        watches.keep_places(tx)?;
    }
    Ok(())
}

fn clean(keys: Vec<Key>) -> Box<dyn Work> {
    Box::new(Asked::new(admin::Clean(keys), None))
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
