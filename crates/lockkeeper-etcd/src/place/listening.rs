//! What a place listens to: while it waits those who keep it out, while it holds its own key and those who come.
//!
//! Those near the head share the one watch of their process that stands for the line, and are told at once. Were everybody
//! behind to do so, each release would be told to all of them. So who is far behind watches its predecessor alone, twice:
//! from where it looked, which misses nothing and may be late by the server's tick; and from the first revision at which
//! that one can have been served, which has caught up before it is needed. In a room for several
//! it listens to those alone who keep it out, from now on: how many fellows are before it says nothing about when it is let
//! in, which may be at once.

use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::Turn;
use lockkeeper_core::record::Record;

use super::{Blocker, EtcdPlace, Look, RENEWING, Worth};
use crate::session::Lease;
use crate::standing::{Interest, Sign};
use crate::wake::{Watch, What};
use crate::wire::KeyValue;

/// Who has at most so many before it listens to the line.
const NEAR: u64 = 8;
/// With so many before us the server's tick has passed long before we are next.
const FAR: u64 = 128;
/// Whoever is served writes twice, to enter and to leave.
const WRITES: u64 = 2;
/// A look that is older is done again: the server would have to look through all that was written since.
const OLD: Duration = Duration::from_secs(1);

impl EtcdPlace {
    /// For who only tries: whether one of those in the way keeps its locks, if their keys say who made them.
    pub(super) fn met_idle<'a>(&self, in_the_way: impl Iterator<Item = &'a KeyValue>) -> Option<bool> {
        let says = |it: &KeyValue| Some(Record::read(&it.value)?.label.warm);
        in_the_way.filter_map(says).reduce(|one, other| one || other).filter(|_| !self.claim.patient)
    }

    /// Until asking is worthwhile: something was told, or our lease is lost, or what we hold may be idle and nobody could tell us.
    pub(super) async fn listen(&mut self, lease: &Lease) {
        let may_be_idle = self.counter.is_some() && self.claim.label.warm;
        let broken = may_be_idle.then(|| Box::pin(self.store.wake.when_broken()));
        let deaf = async {
            match broken {
                Some(broken) => broken.await,
                None => std::future::pending().await,
            }
        };
        self.called = true;
        let broke = tokio::select! {
            () = self.told() => false,
            () = lease.proof.when_lost() => false,
            () = deaf => true,
        };
        self.called &= !broke;
    }

    /// Stand in line until those who keep us out tell.
    pub(super) fn wait(&mut self, look: &Look) -> Turn {
        self.ahead = self.ahead.min(look.ahead);
        self.next = look.next;
        // A watch that has told nothing is better than a new one: it has caught up.
        if self.watched != look.blockers || self.may_have_changed() {
            self.watches = self.watch(look);
            self.watched.clone_from(&look.blockers);
        }
        // The watch is enough; this is for the day on which the store forgets to tell.
        let recheck = (self.claim.ttl / 3).clamp(Duration::from_millis(500), Duration::from_secs(10));
        Turn::wait(recheck, Some(self.ahead)).theirs(look.theirs)
    }

    fn watch(&self, look: &Look) -> Vec<Watch> {
        let wake = &self.store.wake;
        if self.ahead <= NEAR {
            let keys = look.blockers.iter().map(|it| &it.0).chain([&self.key]).cloned().collect();
            let mut watches = vec![wake.listen(&self.line, Interest::End(keys), look.revision, true)];
            // Of what is written only to those few keys, or everybody would be told of everybody who comes.
            let lighter = look.blockers.iter().filter_map(|(key, load)| {
                Some(wake.listen(key, Interest::Lighter(key.clone(), (*load)?), look.revision, true))
            });
            watches.extend(lighter);
            return watches;
        }
        if !self.is_alone() {
            let ends = look.blockers.iter().map(|(key, load)| {
                let interest = match load {
                    Some(load) => Interest::Lighter(key.clone(), *load),
                    None => Interest::End(vec![key.clone()]),
                };
                wake.listen(key, interest, look.revision, true)
            });
            return ends.collect();
        }
        let from = look.revision + 1;
        let end_of = |it: &Blocker, from| wake.watch(what(it), from);
        let mut watches: Vec<Watch> = look.blockers.iter().map(|it| end_of(it, from)).collect();
        if let ([one], true) = (&look.blockers[..], self.ahead < FAR) {
            let served = (self.ahead - 1) * WRITES;
            watches.push(end_of(one, from + i64::try_from(served).unwrap_or(0)));
        }
        watches
    }

    /// Whether one of those we watch is gone.
    pub(super) fn is_told(&self) -> bool {
        self.watches.iter().any(|it| it.sign() == Sign::Told)
    }

    /// Whether what we last saw may have changed, or we never looked.
    pub(super) fn may_have_changed(&self) -> bool {
        self.watches.is_empty() || self.watches.iter().any(|it| it.sign() != Sign::Silence)
    }

    /// Resolves when asking again is worthwhile.
    pub(super) async fn told(&mut self) {
        if self.counter.is_some() {
            return self.told_inside().await;
        }
        let mut watches: Vec<_> = self.watches.iter_mut().map(|it| Box::pin(it.told())).collect();
        std::future::poll_fn(|cx| {
            let ready = watches.iter_mut().any(|it| it.as_mut().poll(cx).is_ready());
            if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// While we hold: resolves when somebody begins to wait, or our key is gone, or that is in doubt.
    async fn told_inside(&mut self) {
        loop {
            if self.watches.is_empty() {
                if OLD < self.now() - self.seen.1 && !self.is_as_it_was().await {
                    return;
                }
                self.watches = vec![self.line_watch()];
            }
            for watch in &mut self.watches {
                watch.told().await;
            }
            // Whoever comes to a mutex must wait. Elsewhere it may fit in.
            if self.is_alone() && self.is_told() || !self.is_as_it_was().await {
                return;
            }
        }
    }

    /// Look again, by a read. `false` if our key is gone, somebody wants in now, or nobody answered.
    async fn is_as_it_was(&mut self) -> bool {
        let (Some(own), asked_at) = (self.revision, self.now()) else { return false };
        let patience = self.store.connection.patience();
        match self.look_again(own, Worth::Read, patience, RENEWING).await {
            Ok(Some(look)) if self.wanted || !look.wanted => {
                self.listen_inside(&look, asked_at);
                true
            }
            answer => {
                self.called = answer.is_ok();
                false
            }
        }
    }

    /// We hold, as of this look: listen to what comes after it.
    pub(super) fn listen_inside(&mut self, look: &Look, asked_at: Moment) {
        (self.wanted, self.seen) = (look.wanted, (look.revision, asked_at));
        self.watches = vec![self.line_watch()];
    }

    fn line_watch(&self) -> Watch {
        self.store.wake.listen(&self.line, self.interest(), self.seen.0, false)
    }

    fn interest(&self) -> Interest {
        if self.wanted {
            Interest::End(vec![self.key.clone()])
        } else {
            Interest::Company { own: self.key.clone(), load: self.claim.load }
        }
    }
}

/// What to watch of one who keeps us out: its end, or whatever is written to it.
fn what((key, load): &Blocker) -> What {
    match load {
        None => What::End(key.clone()),
        Some(_) => What::Range(key.clone(), [key, &b"\0"[..]].concat().into()),
    }
}
