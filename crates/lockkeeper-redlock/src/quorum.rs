//! A round: all nodes asked at once, and the counting of what they say.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper_core::Clock;
use lockkeeper_core::backend::{Fault, FaultKind, Place, Result};
use lockkeeper_core::node::Standing;

use crate::NAME;
use crate::seat::{Cleaner, Seat, Verb};

/// Whoever is later than the majority by this much, at least, is not waited for.
const GRACE_MIN: Duration = Duration::from_millis(3);

/// What one node said in a round.
#[derive(Clone, Debug)]
pub(crate) enum Say<T> {
    Told(T),
    Failed(Fault),
    /// No answer in time, or not asked because an earlier call is still under way.
    Silent,
}

impl<T> Say<T> {
    pub(crate) fn told(&self) -> Option<&T> {
        match self {
            Say::Told(it) => Some(it),
            Say::Failed(_) | Say::Silent => None,
        }
    }
}

impl<T> From<Result<T>> for Say<T> {
    fn from(answer: Result<T>) -> Self {
        answer.map_or_else(Say::Failed, Say::Told)
    }
}

/// How many nodes told something that `is` true of.
pub(crate) fn count<T>(said: &[Say<T>], is: impl Fn(&T) -> bool) -> usize {
    said.iter().filter_map(Say::told).filter(|it| is(it)).count()
}

/// One verb on many seats. What is still under way when the round ends, or is dropped, goes on in the
/// background.
pub(crate) struct Round<'s, P: Place, T: Send + 'static> {
    seats: &'s mut [Seat<P>],
    cleaner: &'s Cleaner,
    running: Vec<Option<Verb<P, T>>>,
    said: Vec<Say<T>>,
}

impl<'s, P: Place, T: Send + 'static> Round<'s, P, T> {
    /// Begin `verb` on every seat that `asks` names.
    pub(crate) fn begin<V>(
        seats: &'s mut [Seat<P>],
        cleaner: &'s Cleaner,
        asks: impl Fn(usize) -> bool,
        verb: V,
    ) -> Self
    where
        V: Fn(usize, P) -> Verb<P, T> + Clone + Send + 'static,
    {
        let begin = |(at, seat): (usize, &mut Seat<P>)| {
            let verb = verb.clone();
            asks(at).then(|| seat.begin(move |place| verb(at, place))).flatten()
        };
        let running: Vec<_> = seats.iter_mut().enumerate().map(begin).collect();
        let said = seats.iter().map(|_| Say::Silent).collect();
        Round { seats, cleaner, running, said }
    }

    /// Wait until all have answered, the time is over, or the answers so far `decide` and the others are
    /// late: as late as the deciding ones took, once more. Nodes that failed lately are then not waited for.
    pub(crate) async fn run(mut self, timeout: Duration, decide: impl Fn(&[Say<T>]) -> bool) -> Vec<Say<T>> {
        let clock = self.cleaner.clock.clone();
        let started = clock.now();
        let (mut until, mut decided, mut timer) = (started.after(timeout), false, None);
        poll_fn(|cx| {
            if self.poll_running(cx) {
                return Poll::Ready(());
            }
            if !decided && decide(&self.said) {
                let now = clock.now();
                (decided, timer) = (true, None);
                until = until.min(now.after((now - started).max(GRACE_MIN)));
            }
            if decided && self.waits_for_none() {
                return Poll::Ready(());
            }
            let timer = timer.get_or_insert_with(|| clock.sleep_until(until));
            Pin::new(timer).poll(cx)
        })
        .await;
        std::mem::take(&mut self.said)
    }

    /// Whether only nodes that are doubted have not answered.
    fn waits_for_none(&self) -> bool {
        let running = self.running.iter().zip(self.cleaner.trust.iter()).filter(|it| it.0.is_some());
        running.into_iter().all(|(_, trust)| trust.is_doubted())
    }

    /// Poll what is under way. `true` if nothing is any more.
    fn poll_running(&mut self, cx: &mut Context<'_>) -> bool {
        let mut all_done = true;
        for (at, slot) in self.running.iter_mut().enumerate() {
            let Some(verb) = slot else { continue };
            let Poll::Ready((place, answer)) = verb.as_mut().poll(cx) else {
                all_done = false;
                continue;
            };
            *slot = None;
            self.cleaner.trust[at].note(self.cleaner.clock.now(), &answer);
            self.seats[at] = place.map_or(Seat::Empty, Seat::Here);
            self.said[at] = answer.into();
        }
        all_done
    }
}

impl<P: Place, T: Send + 'static> Drop for Round<'_, P, T> {
    fn drop(&mut self) {
        for (at, slot) in self.running.iter_mut().enumerate() {
            if let Some(verb) = slot.take() {
                self.seats[at] = self.cleaner.adopt_late(at, verb);
            }
        }
    }
}

/// Ask several things at once that may be dropped half-way, and wait for each at most `timeout`.
pub(crate) async fn gather<T, F>(
    clock: &Clock,
    timeout: Duration,
    asked: impl Iterator<Item = F>,
) -> Vec<Say<T>>
where
    F: Future<Output = Result<T>> + Send,
{
    let mut running: Vec<_> = asked.map(|it| Some(Box::pin(it))).collect();
    let mut said: Vec<_> = running.iter().map(|_| Say::Silent).collect();
    let mut timer = clock.sleep(timeout);
    poll_fn(|cx| {
        let mut all_done = true;
        for (slot, said) in running.iter_mut().zip(&mut said) {
            let Some(call) = slot else { continue };
            match call.as_mut().poll(cx) {
                Poll::Ready(answer) => (*slot, *said) = (None, answer.into()),
                Poll::Pending => all_done = false,
            }
        }
        if all_done { Poll::Ready(()) } else { Pin::new(&mut timer).poll(cx) }
    })
    .await;
    said
}

/// The fault of a round in which too few nodes answered: which, and why.
pub(crate) fn too_few<T>(doing: &'static str, majority: usize, said: &[Say<T>]) -> Fault {
    let reasons = said.iter().enumerate().filter_map(|(at, it)| match it {
        Say::Told(_) => None,
        Say::Failed(fault) => Some((at, fault.message.clone(), fault.kind)),
        Say::Silent => Some((at, "no answer in time".to_owned(), FaultKind::Transient)),
    });
    from_reasons(doing, majority, said.len(), &reasons.collect::<Vec<_>>())
}

/// A fault for the nodes that keep a majority from being had.
pub(crate) fn from_reasons(
    doing: &'static str,
    majority: usize,
    nodes: usize,
    reasons: &[(usize, String, FaultKind)],
) -> Fault {
    let permanent = reasons.iter().filter(|it| it.2 == FaultKind::Permanent).count();
    let left = nodes - reasons.len();
    let reasons: Vec<_> = reasons.iter().map(|(at, why, _)| format!("node {}: {why}", at + 1)).collect();
    let message =
        format!("{majority} of {nodes} nodes are needed, {left} could be used ({})", reasons.join("; "));
    if nodes - permanent < majority {
        Fault::permanent(NAME, doing, message)
    } else {
        Fault::transient(NAME, doing, message)
    }
}

/// The first node that refuses for good, if one does.
pub(crate) fn refusal<T>(said: &[Say<T>]) -> Option<Fault> {
    said.iter().enumerate().find_map(|(at, it)| match it {
        Say::Failed(fault) if !fault.is_transient() => {
            let what = format!("node {} can never be used: {}", at + 1, fault.message);
            Some(Fault::permanent(NAME, "connecting", what))
        }
        _ => None,
    })
}

/// Tells if two nodes are the same server.
pub(crate) fn same_server(standings: &[Say<Standing>]) -> Option<String> {
    let known: Vec<_> = standings.iter().enumerate().filter_map(|(at, it)| Some((at, it.told()?))).collect();
    for (index, (at, one)) in known.iter().enumerate() {
        for (other_at, other) in &known[index + 1..] {
            if one.identity == other.identity {
                return Some(format!(
                    "nodes {} and {} are the same server ({}), which would vote twice; name each server once",
                    at + 1,
                    other_at + 1,
                    one.identity
                ));
            }
        }
    }
    None
}

/// The longest span that at least `majority` of the spans reach.
pub(crate) fn reached_by(majority: usize, mut spans: Vec<Duration>) -> Option<Duration> {
    spans.sort_unstable_by(|one, other| other.cmp(one));
    spans.get(majority - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_keeps_its_word_for_as_long_as_its_weakest_member() {
        let spans = |it: &[u64]| it.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        assert_eq!(reached_by(3, spans(&[9, 1, 5, 7, 3])), Some(Duration::from_secs(5)));
        assert_eq!(reached_by(2, spans(&[2, 8])), Some(Duration::from_secs(2)));
        assert_eq!(reached_by(2, spans(&[8])), None);
    }

    #[test]
    fn wrong_passwords_on_a_majority_do_not_pass_by_themselves() {
        let no = |kind| Say::<()>::Failed(Fault::new(kind, "x", "y", "no password"));
        let (permanent, transient) = (FaultKind::Permanent, FaultKind::Transient);
        assert!(!too_few("z", 2, &[no(permanent), no(permanent), Say::Told(())]).is_transient());
        assert!(too_few("z", 2, &[no(permanent), no(transient), Say::Told(())]).is_transient());
    }
}
