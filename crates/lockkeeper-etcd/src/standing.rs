//! Standing watches: one for a line and this process, shared by all of ours in it and kept for a while after the last.
//!
//! A server tells at once only what a watch that has caught up is about. A new one that begins in the past, were it by a
//! single write to any key, is served by a loop that wakes ten times a second. So a watch for every wait is late
//! whenever waits are short; one that stands is late at most once.
//!
//! Who listens says as of which revision it knows the line, and hears of everything after that, also of what had arrived
//! before it began to listen. A watch that begins *now* is quickest, but what happened between the look and its beginning
//! is nobody's: that is told as a doubt, and settled by a read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lockkeeper_core::Load;
use lockkeeper_core::kit::locked;
use lockkeeper_core::record::Record;
use tokio::sync::watch;

use crate::wire::Event;
use crate::wire::event::EventType;

/// How much of what was heard is kept for those who begin to listen later.
const KEPT: usize = 64;
/// A watch that nobody listens to is kept for so many rounds, because the next may come soon.
const ROUNDS: u64 = 2;
/// And not more of them than this.
const IDLE_MAX: usize = 256;

/// What one who listens has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Silence,
    /// Something may have been missed: a look is worthwhile.
    Doubt,
    /// What was listened for has happened.
    Told,
}

/// Which events of a line are sent to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Those of keys that go: enough for who waits, and for a holder who knows that it is wanted.
    Ends,
    /// Those of keys that come, too.
    All,
}

/// What one of ours listens for.
#[derive(Clone, Debug)]
pub(crate) enum Interest {
    /// That one of these keys goes.
    End(Vec<Bytes>),
    /// That this key goes, or that its claim weighs another than that.
    Lighter(Bytes, Load),
    /// That this key of ours goes, or another comes that may have to wait for it.
    Company { own: Bytes, load: Load },
}

impl Interest {
    fn is_met_by(&self, seen: &Seen) -> bool {
        match (self, &seen.what) {
            (Interest::End(keys), Happened::Gone) => keys.contains(&seen.key),
            (Interest::Lighter(key, _), Happened::Gone) => *key == seen.key,
            (Interest::Lighter(key, load), Happened::Rewritten(now)) => {
                *key == seen.key && *now != Some(*load)
            }
            (Interest::End(_) | Interest::Lighter(..), Happened::Came(_))
            | (Interest::End(_) | Interest::Company { .. }, Happened::Rewritten(_)) => false,
            (Interest::Company { own, .. }, Happened::Gone) => seen.key == *own,
            // Readers keep no reader out.
            (Interest::Company { own, load }, Happened::Came(other)) => {
                seen.key != *own && !(*load == Load::READER && *other == Some(Load::READER))
            }
        }
    }
}

/// Something that happened in a line.
#[derive(Debug)]
struct Seen {
    revision: i64,
    key: Bytes,
    what: Happened,
}

#[derive(Debug)]
enum Happened {
    Gone,
    /// Its load, if it is a claim.
    Came(Option<Load>),
    /// It had been there before, and weighs this now.
    Rewritten(Option<Load>),
}

impl Seen {
    fn of(event: &Event) -> Option<Self> {
        let kv = event.kv.as_ref()?;
        let load = || Record::read(&kv.value).map(|it| it.load);
        let what = if event.r#type == i32::from(EventType::Delete) {
            Happened::Gone
        } else if kv.create_revision == kv.mod_revision {
            Happened::Came(load())
        } else {
            Happened::Rewritten(load())
        };
        Some(Seen { revision: kv.mod_revision, key: kv.key.clone(), what })
    }
}

/// Where one who listens is registered.
#[derive(Debug)]
pub(crate) struct Subscription {
    watch: i64,
    number: u64,
}

/// The answer to [`LineWatches::listen`].
pub(crate) struct Listening {
    pub(crate) told: watch::Receiver<Sign>,
    pub(crate) subscription: Subscription,
    /// The watch must be set first.
    pub(crate) is_new: Option<Kind>,
    /// This watch is of no use any more.
    pub(crate) outdated: Option<i64>,
}

/// All standing watches of this process, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct LineWatches(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    numbers: HashMap<(Bytes, Kind), i64>,
    watches: HashMap<i64, Watched>,
    next: u64,
    /// How many of them nobody listens to.
    idle: usize,
    round: u64,
}

/// One standing watch.
#[derive(Debug)]
struct Watched {
    line: (Bytes, Kind),
    /// What happened after this revision is known, or will be; `None` until the server has said where it begins.
    since: Option<i64>,
    recent: VecDeque<Seen>,
    listeners: HashMap<u64, Listener>,
    /// The round in which the last one left.
    idle_in: u64,
}

#[derive(Debug)]
struct Listener {
    interest: Interest,
    after: i64,
    tell: watch::Sender<Sign>,
}

impl Listener {
    fn hear(&self, seen: &Seen) {
        if self.after < seen.revision && self.interest.is_met_by(seen) {
            self.tell.send_replace(Sign::Told);
        }
    }

    /// Told already is told.
    fn doubt(&self) {
        self.tell.send_if_modified(|it| {
            let silent = *it == Sign::Silence;
            if silent {
                *it = Sign::Doubt;
            }
            silent
        });
    }
}

impl LineWatches {
    /// Listen to a line that was looked at as of revision `after`. A new watch gets the number `fresh`; `from_now` if it is
    /// to begin now, else it begins where the look ended.
    pub(crate) fn listen(
        self: &Arc<Self>,
        line: &Bytes,
        interest: Interest,
        after: i64,
        from_now: bool,
        fresh: i64,
    ) -> Listening {
        let mut lines = locked(&self.0);
        let kind = lines.kind_for(line, &interest);
        let of = (line.clone(), kind);
        let mut known = lines.numbers.get(&of).copied();
        // What we keep begins after that look. If the store went back it always will.
        let outdated = known.filter(|it| lines.watches[it].since.is_some_and(|since| after < since));
        if let Some(number) = outdated {
            lines.remove(number);
            known = None;
        }
        let number = known.unwrap_or(fresh);
        let since = if from_now { None } else { Some(after) };
        let (recent, listeners) = (VecDeque::new(), HashMap::new());
        let begun = Watched { line: of.clone(), since, recent, listeners, idle_in: 0 };
        let (tell, told) = watch::channel(Sign::Silence);
        let listener = Listener { interest, after, tell };
        let lines = &mut *lines;
        lines.next += 1;
        let watched = lines.watches.entry(number).or_insert(begun);
        if known.is_some() && watched.listeners.is_empty() {
            lines.idle -= 1;
        }
        watched.recent.iter().for_each(|it| listener.hear(it));
        watched.listeners.insert(lines.next, listener);
        lines.numbers.insert(of, number);
        let subscription = Subscription { watch: number, number: lines.next };
        Listening { told, subscription, is_new: known.is_none().then_some(kind), outdated }
    }

    /// One does not listen any more. Answers the number of its watch if it is one too many that nobody listens to.
    pub(crate) fn leave(&self, subscription: &Subscription) -> Option<i64> {
        let mut lines = locked(&self.0);
        let lines = &mut *lines;
        let watched = lines.watches.get_mut(&subscription.watch)?;
        if watched.listeners.remove(&subscription.number).is_none() || !watched.listeners.is_empty() {
            return None;
        }
        watched.idle_in = lines.round;
        lines.idle += 1;
        (IDLE_MAX < lines.idle).then_some(subscription.watch)
    }

    /// A round is over: those that nobody has listened to for long enough, which are to be ended.
    pub(crate) fn sweep(&self) -> Vec<i64> {
        let mut lines = locked(&self.0);
        lines.round += 1;
        let round = lines.round;
        let over = |it: &Watched| it.listeners.is_empty() && it.idle_in + ROUNDS <= round;
        let due: Vec<i64> = lines.watches.iter().filter(|it| over(it.1)).map(|it| *it.0).collect();
        for number in &due {
            lines.remove(*number);
        }
        due
    }

    /// The watch was set and tells of everything after this revision.
    pub(crate) fn begins(&self, number: i64, since: i64) {
        let mut lines = locked(&self.0);
        let Some(watched) = lines.watches.get_mut(&number).filter(|it| it.since.is_none()) else { return };
        watched.since = Some(since);
        watched.listeners.values().filter(|it| it.after < since).for_each(Listener::doubt);
    }

    /// The server has sent these events.
    pub(crate) fn hear(&self, number: i64, events: &[Event]) {
        let mut lines = locked(&self.0);
        let Some(watched) = lines.watches.get_mut(&number) else { return };
        for seen in events.iter().filter_map(Seen::of) {
            watched.listeners.values().for_each(|it| it.hear(&seen));
            watched.recent.push_back(seen);
        }
        while KEPT < watched.recent.len() {
            let forgotten = watched.recent.pop_front().map(|it| it.revision);
            watched.since = watched.since.max(forgotten);
        }
    }

    /// The watch has ended, and may have missed something.
    pub(crate) fn fail(&self, number: i64) {
        locked(&self.0).remove(number);
    }

    /// Forget this watch if nobody listens. Then it is to be ended.
    pub(crate) fn forget_if_idle(&self, number: i64) -> bool {
        let mut lines = locked(&self.0);
        let idle = lines.watches.get(&number).is_some_and(|it| it.listeners.is_empty());
        if idle {
            lines.remove(number);
        }
        idle
    }
}

impl Lines {
    /// Whoever needs little takes what is there.
    fn kind_for(&self, line: &Bytes, interest: &Interest) -> Kind {
        match interest {
            Interest::End(_) if !self.numbers.contains_key(&(line.clone(), Kind::All)) => Kind::Ends,
            _ => Kind::All,
        }
    }

    fn remove(&mut self, number: i64) {
        let Some(watched) = self.watches.remove(&number) else { return };
        if watched.listeners.is_empty() {
            self.idle -= 1;
        }
        watched.listeners.values().for_each(Listener::doubt);
        self.numbers.remove(&watched.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::KeyValue;

    fn event(kind: EventType, key: &str, create_revision: i64, mod_revision: i64) -> Event {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let kv = KeyValue { key, create_revision, mod_revision, ..KeyValue::default() };
        Event { r#type: kind.into(), kv: Some(kv) }
    }

    fn end_of(key: &'static str) -> Interest {
        Interest::End(vec![Bytes::from_static(key.as_bytes())])
    }

    fn company(own: &'static str) -> Interest {
        Interest::Company { own: Bytes::from_static(own.as_bytes()), load: Load::MUTEX }
    }

    const LINE: Bytes = Bytes::from_static(b"line/");

    fn sign(of: &Listening) -> Sign {
        *of.told.borrow()
    }

    #[test]
    fn all_who_listen_to_a_line_share_one_watch_and_hear_what_came_before_them() {
        let standing = Arc::<LineWatches>::default();
        let one = standing.listen(&LINE, end_of("a"), 5, false, 1);
        assert_eq!(one.is_new, Some(Kind::Ends));
        standing.hear(1, &[event(EventType::Delete, "b", 0, 7)]);
        let late = standing.listen(&LINE, end_of("b"), 6, false, 2);
        let later = standing.listen(&LINE, end_of("b"), 7, false, 3);
        assert_eq!((late.is_new, later.is_new), (None, None), "it is there");
        let signs = [&one, &late, &later].map(sign);
        assert_eq!(signs, [Sign::Silence, Sign::Told, Sign::Silence], "each after its own look");
        standing.hear(1, &[event(EventType::Delete, "a", 0, 9)]);
        assert_eq!(sign(&one), Sign::Told);
    }

    #[test]
    fn a_watch_is_kept_for_a_while_after_the_last_who_listened() {
        let standing = Arc::<LineWatches>::default();
        let [one, other] = [1, 2].map(|it| standing.listen(&LINE, end_of("a"), 5, false, it));
        assert_eq!(standing.leave(&one.subscription), None);
        assert!(!standing.forget_if_idle(1), "one listens yet");
        assert_eq!([(); 3].map(|()| standing.sweep()), [const { Vec::new() }; 3]);
        assert_eq!(standing.leave(&other.subscription), None);
        assert_eq!(standing.sweep(), []);
        let again = standing.listen(&LINE, end_of("a"), 5, false, 3);
        assert_eq!(again.is_new, None);
        standing.leave(&again.subscription);
        assert_eq!([(); 2].map(|()| standing.sweep()), [vec![], vec![1]]);
        assert_eq!(standing.listen(&LINE, end_of("a"), 9, false, 4).is_new, Some(Kind::Ends));
    }

    #[test]
    fn not_too_many_are_kept_for_nobody() {
        let standing = Arc::<LineWatches>::default();
        let ends = |number: i64| {
            let line = Bytes::from(format!("line{number}/"));
            standing.leave(&standing.listen(&line, end_of("a"), 5, false, number).subscription)
        };
        let most = i64::try_from(IDLE_MAX).unwrap();
        assert!((1..=most).all(|it| ends(it).is_none()));
        assert_eq!(ends(most + 1), Some(most + 1));
        assert!(standing.forget_if_idle(most + 1));
        assert_eq!(ends(most + 2), Some(most + 2), "the others are still there");
    }

    #[test]
    fn a_watch_from_now_leaves_in_doubt_who_looked_before_it_began() {
        let standing = Arc::<LineWatches>::default();
        let one = standing.listen(&LINE, end_of("a"), 5, true, 1);
        let other = standing.listen(&LINE, end_of("a"), 8, true, 2);
        assert_eq!(other.is_new, None, "it is being set");
        standing.begins(1, 7);
        assert_eq!([&one, &other].map(sign), [Sign::Doubt, Sign::Silence]);
        standing.hear(1, &[event(EventType::Delete, "a", 0, 9)]);
        assert_eq!([&one, &other].map(sign), [Sign::Told, Sign::Told]);
    }

    #[test]
    fn whoever_knows_less_than_what_is_kept_makes_it_begin_anew() {
        let standing = Arc::<LineWatches>::default();
        let one = standing.listen(&LINE, end_of("a"), 100, false, 1);
        let old = standing.listen(&LINE, end_of("a"), 40, false, 2);
        assert_eq!((old.is_new, old.outdated), (Some(Kind::Ends), Some(1)));
        assert_eq!([&one, &old].map(sign), [Sign::Doubt, Sign::Silence]);
        for revision in 41..=i64::try_from(41 + KEPT).unwrap() {
            standing.hear(2, &[event(EventType::Delete, "b", 0, revision)]);
        }
        let old = standing.listen(&LINE, end_of("b"), 40, false, 3);
        assert_eq!(old.outdated, Some(2), "the first of them is forgotten");
    }

    #[test]
    fn a_holder_hears_of_its_own_end_and_of_those_who_come() {
        let standing = Arc::<LineWatches>::default();
        let told = |event: Event| {
            let one = standing.listen(&LINE, company("own"), 5, false, 1);
            standing.hear(1, &[event]);
            let told = sign(&one) == Sign::Told;
            standing.fail(1);
            told
        };
        assert!(told(event(EventType::Delete, "own", 0, 6)));
        assert!(told(event(EventType::Put, "other", 6, 6)));
        assert!(!told(event(EventType::Put, "other", 3, 6)), "it was there before");
        assert!(!told(event(EventType::Put, "own", 6, 6)), "that is we");
        assert!(!told(event(EventType::Delete, "other", 0, 6)));
    }

    #[test]
    fn a_watch_that_tells_all_serves_everybody() {
        let standing = Arc::<LineWatches>::default();
        let one = standing.listen(&LINE, company("own"), 5, false, 1);
        assert_eq!(one.is_new, Some(Kind::All));
        assert_eq!(standing.listen(&LINE, end_of("a"), 5, false, 2).is_new, None);
    }
}
