//! The connection's thread: it takes what waits, has it run at the desk in one transaction, and sleeps.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment};

use crate::bell::{Bell, Hand, Number, RINGS_KEPT};
use crate::desk::{BATCH_MAX, Desk};
use crate::fault::{Result, Trouble};
use crate::file::File;
use crate::quiet::Quiet;
use crate::spin::spin;
use crate::wake::Watches;
use crate::work::{Request, Work};
use crate::worker::{Spins, Worker};

const NONE: Duration = Duration::ZERO;

/// Who just got an answer often asks the next thing at once.
const SPIN_FOR_NEXT: Duration = Duration::from_micros(20);

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

/// What was sent to the thread.
pub(crate) struct Inbox {
    requests: Receiver<Request>,
    waiting: Waiting,
    pub(crate) watches: Watches,
}

impl Inbox {
    fn sort(&mut self, request: Request) {
        match request {
            Request::Work(work) => self.waiting.add(work),
            Request::Watch(watch) => self.watches.add(watch),
            Request::Touched => {}
        }
    }

    /// Nobody waits, as far as it was looked at.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Fill up a batch with what waits, and with what came meanwhile.
    pub(crate) fn fill(&mut self, works: &mut Vec<Box<dyn Work>>) {
        while let Ok(request) = self.requests.try_recv() {
            self.sort(request);
        }
        self.waiting.fill(works);
    }
}

pub(crate) struct Thread {
    desk: Arc<Mutex<Desk>>,
    inbox: Inbox,
    bell: Bell,
    quiet: Arc<Quiet>,
    clock: Clock,
    clean_due: Moment,
    spins: Arc<Spins>,
}

impl Thread {
    /// A thread that does not run yet, and the way to it.
    pub(crate) fn with_worker(file: File) -> Result<(Worker, Self)> {
        let no_bell =
            |it| Trouble::permanent(format!("the connection's thread has nothing to sleep on ({it})"));
        let number = Number::random().ok_or_else(|| no_bell("no randomness".to_owned()))?;
        let path = &file.options().path;
        let (bell, caller) = Bell::new(number, path).map_err(|it| no_bell(it.to_string()))?;
        let (hand, clock) = (Hand::new(number, path), Clock::boot());
        // Soon, for those who live short; not at once, for those who are in a hurry.
        let clean_due = clock.now().after(file.options().clean_every.min(Duration::from_secs(1)));
        let (sender, requests) = std::sync::mpsc::channel();
        let inbox = Inbox { requests, waiting: Waiting::default(), watches: Watches::default() };
        let spins = Arc::<Spins>::default();
        let quiet = Arc::<Quiet>::default();
        let desk = Arc::new(Mutex::new(Desk::new(file, hand, quiet.clone(), spins.rests.clone())));
        let worker = Worker::new(desk.clone(), sender, caller, number, quiet.clone(), spins.clone());
        Ok((worker, Thread { desk, inbox, bell, quiet, clock, clean_due, spins }))
    }

    pub(crate) fn serve(mut self) {
        let mut just_served = false;
        loop {
            let next = self.next(just_served);
            just_served = next.is_ok();
            match next {
                Ok(request) => self.inbox.sort(request),
                Err(RecvTimeoutError::Disconnected) if self.inbox.waiting.is_empty() => return,
                Err(_) => {}
            }
            self.turn();
        }
    }

    /// Do all that is to be done now.
    fn turn(&mut self) {
        self.work();
        let woken = self.inbox.watches.take_woken();
        if !woken.is_empty() {
            // Each asks at once, and may do so itself: nobody is at the desk.
            self.spins.rests.store(self.inbox.is_empty(), Ordering::Relaxed);
            for wake in woken {
                // Whoever went away does not need to hear it.
                let _ = wake.send(());
            }
        }
    }

    fn work(&mut self) {
        let desk = self.desk.clone();
        let mut desk = locked(&desk);
        for watch in self.quiet.take() {
            self.inbox.watches.add(watch.relied_on_a_ring());
        }
        self.take(&mut desk);
        let now = self.clock.now();
        if self.clean_due <= now {
            self.clean_due = desk.clean(now, &mut self.inbox);
        }
        self.inbox.watches.touch(&desk.take_touched(), now);
        self.listen(now);
        self.inbox.watches.look(desk.connection(), now);
        desk.watched = self.inbox.watches.watched();
        desk.tidy_log();
    }

    /// The next request, or the time to look again.
    fn next(&mut self, just_served: bool) -> Result<Request, RecvTimeoutError> {
        self.spins.rests.store(self.inbox.is_empty(), Ordering::Relaxed);
        let next = self.rest(just_served);
        self.spins.rests.store(false, Ordering::Relaxed);
        next
    }

    fn rest(&mut self, just_served: bool) -> Result<Request, RecvTimeoutError> {
        let now = self.clock.now();
        let due = self.inbox.watches.due().min(self.clean_due).min(self.bell.due());
        let pause = if self.inbox.waiting.is_empty() { due - now } else { NONE };
        let spins = &self.spins.requests;
        if just_served
            && SPIN_FOR_NEXT < pause
            && let Some(until) = spins.spin_until(SPIN_FOR_NEXT, now)
        {
            if let Some(request) = spin(&self.clock, until, || self.inbox.requests.try_recv().ok()) {
                spins.hit();
                return Ok(request);
            }
            spins.miss();
        }
        let requests = &self.inbox.requests;
        let next = self.bell.sleep(pause, || match requests.try_recv() {
            Ok(request) => Some(Ok(request)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        });
        next.unwrap_or(Err(RecvTimeoutError::Timeout))
    }

    /// Hear who rang, and see to it that others can.
    fn listen(&mut self, now: Moment) {
        // Before they are rung for: a bell that rings is needed.
        let is_needed = self.inbox.watches.anybody_listens();
        let mut rings = 0;
        for id in self.bell.rung() {
            if !self.inbox.watches.ring(id) {
                self.quiet.rung(id);
            }
            rings += 1;
        }
        if RINGS_KEPT <= rings {
            // The kernel may have kept no more of them.
            self.inbox.watches.touch_all(now);
        }
        if self.inbox.watches.has_missed() {
            self.bell.hang_anew(now);
        }
        if is_needed {
            self.bell.need(now);
        } else {
            self.bell.rest(now);
        }
        self.inbox.watches.expect_rings(self.bell.is_hung());
        for watch in self.quiet.expect_rings(self.inbox.watches.expects_rings()) {
            self.inbox.watches.add(watch);
        }
    }

    /// Serve as many of those who wait as fit into one transaction.
    fn take(&mut self, desk: &mut Desk) {
        let mut works = Vec::new();
        self.inbox.fill(&mut works);
        if works.is_empty() {
            return;
        }
        let began = self.clock.now();
        if desk.serve(works, &mut self.inbox) {
            self.inbox.watches.look_anew();
            self.bell.take_down();
        }
        self.spins.usual.add(self.clock.now() - began);
    }
}

#[cfg(test)]
mod tests;
