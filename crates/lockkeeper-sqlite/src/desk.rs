//! Where verbs meet the file: the connection's thread runs all that wait in one transaction. While it rests a caller runs its
//! own verb, which costs no change of thread.
//!
//! A caller may be a task on somebody's runtime. So it does only what ends soon: it never waits for the disk, nor for another
//! process's transaction, nor for this desk. What would is left to the thread, and so is every error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::{ClaimId, Clock, Key, Moment};
use rusqlite::Connection;

use crate::admin;
use crate::bell::Hand;
use crate::connection::Inbox;
use crate::fault::Result;
use crate::file::File;
use crate::line::Tx;
use crate::quiet::Quiet;
use crate::wake::{Watched, Watches};
use crate::work::{Asked, Verb, Work};

/// The most requests in one transaction, so that nobody waits long for the write lock.
pub(crate) const BATCH_MAX: usize = 256;

/// The most keys that a process cleans with its first write: more than it can leave behind itself, so that what is
/// left gets less and less, and few enough that nobody notices.
const CLEAN_ONCE_MAX: usize = 32;

/// The log is copied back once for so many verbs: about a thousand pages, as SQLite does by itself.
const LOG_VERBS: u32 = 600;

/// A verb that took a caller longer than this was not short. After two in a row the thread does all again for so many times
/// the span. (One means nothing: any thread can lose its core for a while.)
const SLOW: Duration = Duration::from_micros(500);
const SLOW_SHARE: u32 = 16;

#[derive(Debug)]
pub(crate) struct Desk {
    file: File,
    hand: Hand,
    quiet: Arc<Quiet>,
    clock: Clock,
    /// Lines that moved; those of this process who watch them should look.
    touched: Vec<Key>,
    /// Claims of anybody that should hear of the last commit.
    called: Vec<ClaimId>,
    has_cleaned: bool,
    /// The connection's thread has nothing to do, or nothing that takes long. Relaxed: a hint, as is told in `worker.rs`.
    rests: Arc<AtomicBool>,
    /// How many more verbs may write before the log is copied back.
    log_left: u32,
    /// The last verb of a caller took long.
    is_slow: bool,
    /// Until then callers leave everything to the thread.
    slow_until: Moment,
    /// The lines that somebody of this process watches.
    pub(crate) watched: Watched,
}

impl Desk {
    pub(crate) fn new(mut file: File, hand: Hand, quiet: Arc<Quiet>, rests: Arc<AtomicBool>) -> Self {
        // Processes that live short copy it in their turn, too: each begins somewhere.
        let log_left = file.any_below(LOG_VERBS);
        let (touched, called) = Default::default();
        Desk {
            file,
            hand,
            quiet,
            clock: Clock::boot(),
            touched,
            called,
            has_cleaned: false,
            rests,
            log_left,
            is_slow: false,
            slow_until: Moment::from_nanos(0),
            watched: Watched::default(),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.file.connection()
    }

    pub(crate) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The lines that moved since this was last asked.
    pub(crate) fn take_touched(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.touched)
    }

    /// Run a verb on its caller's thread. `None`: the connection's thread shall do it.
    pub(crate) fn at_once<V: Verb>(&mut self, verb: &mut V) -> Option<V::Answer> {
        let began = self.clock.now();
        let is_free = self.has_cleaned && self.log_left != 0 && self.slow_until <= began;
        if !is_free || (self.file.must_flush() && verb.may_grant()) || self.file.has_moved() {
            return None;
        }
        let answer = self.try_once(verb);
        let now = self.clock.now();
        let was_slow = std::mem::replace(&mut self.is_slow, SLOW < now - began);
        if was_slow && self.is_slow {
            self.slow_until = now.after((now - began) * SLOW_SHARE);
        }
        // What nobody watches is no news, and the thread may sleep on.
        self.touched.retain(|it| self.watched.has(it));
        answer
    }

    fn try_once<V: Verb>(&mut self, verb: &mut V) -> Option<V::Answer> {
        let seen = self.file.look_once(|look| verb.look(look)).ok()?;
        // Who keeps a place keeps all those of the process, which only the thread knows.
        if seen.is_some() || verb.keeps_a_place() {
            return seen;
        }
        self.file.begin_once().ok()?;
        self.called.clear();
        let mut tx = self.file.tx(self.clock.now(), &mut self.touched, &mut self.called);
        let found = verb.run(&mut tx).ok();
        let must_flush = tx.must_last || (tx.has_granted && self.file.must_flush());
        if found.is_none() || must_flush || self.file.commit().is_err() {
            self.file.roll_back();
            return None;
        }
        self.log_left -= 1;
        self.ring();
        found
    }

    /// Serve a batch. Answers whether the file is another one than before.
    pub(crate) fn serve(&mut self, works: Vec<Box<dyn Work>>, inbox: &mut Inbox) -> bool {
        let has_moved = match self.file.reopen_if_moved() {
            Ok(has_moved) => has_moved,
            Err(trouble) => {
                tell(works, &Err(trouble));
                return false;
            }
        };
        let mut works = self.look(works);
        if !works.is_empty() {
            self.clean_once(&mut works);
            self.write(works, inbox);
        }
        has_moved
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
    fn write(&mut self, mut works: Vec<Box<dyn Work>>, inbox: &mut Inbox) {
        let done = self.commit(&mut works, inbox, true);
        let count = u32::try_from(works.len()).unwrap_or(u32::MAX);
        match &done {
            Err(trouble) if 1 < works.len() && !trouble.is_busy() => {
                for work in works {
                    let mut alone = vec![work];
                    let done = self.commit(&mut alone, inbox, false);
                    tell(alone, &done);
                }
            }
            _ => {
                // Whoever is answered may do the next thing itself.
                self.rests.store(inbox.is_empty(), Ordering::Relaxed);
                tell(works, &done);
            }
        }
        self.log_left = self.log_left.saturating_sub(count);
    }

    fn commit(&mut self, works: &mut Vec<Box<dyn Work>>, inbox: &mut Inbox, with_others: bool) -> Result<()> {
        let deadline = self.clock.now().after(self.file.timeout());
        let must_flush = self.file.must_flush();
        let mut flushes = works.iter().any(|it| it.is_lasting() || (must_flush && it.may_grant()));
        let mut tried_log = false;
        loop {
            self.file.begin(deadline, flushes)?;
            if with_others {
                // Waiting for the write lock takes time; who came meanwhile travels along.
                inbox.fill(works);
            }
            let now = self.clock.now();
            self.called.clear();
            let mut tx = self.file.tx(now, &mut self.touched, &mut self.called);
            let done = run(works, &inbox.watches, &mut tx);
            if done.is_ok() && !flushes && (tx.must_last || (tx.has_granted && must_flush)) {
                // Somebody came in whom nobody expected, or a block of numbers begins: once more, and wait for the disk.
                self.file.roll_back();
                flushes = true;
                continue;
            }
            match done.and_then(|()| self.file.commit()) {
                Ok(()) => {
                    self.ring();
                    return Ok(());
                }
                Err(trouble) => {
                    self.file.roll_back();
                    if trouble.is_disk_full() && !std::mem::replace(&mut tried_log, true) {
                        self.file.copy_log();
                    } else if !trouble.is_busy() || deadline <= self.clock.now() {
                        return Err(trouble);
                    }
                }
            }
        }
    }

    fn ring(&mut self) {
        for id in self.called.drain(..) {
            if self.hand.is_own(id) {
                self.quiet.rung(id);
            } else {
                self.hand.ring(id);
            }
        }
    }

    /// Copy the log back if that is due. Nobody waits for it.
    pub(crate) fn tidy_log(&mut self) {
        if self.log_left == 0 {
            self.log_left = LOG_VERBS;
            self.rests.store(false, Ordering::Relaxed);
            self.file.copy_log();
        }
    }

    /// Remove what dead processes left, and say when to do so again. Whoever looks at such a key does so too; this is for
    /// the others.
    pub(crate) fn clean(&mut self, now: Moment, inbox: &mut Inbox) -> Moment {
        let stale = self.stale(now, BATCH_MAX);
        let (every, is_all) = (self.file.options().clean_every, stale.len() < BATCH_MAX);
        if !stale.is_empty() {
            self.write(vec![clean(stale)], inbox);
        }
        if is_all { now.after(self.file.spread(every)) } else { now }
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
