//! How `changed` resolves: whoever lets us in rings our bell. In case that nobody does, the connection's thread looks at
//! the lines that somebody of this process watches.
//!
//! As long as rings come, a look is only for those that are lost: when twice the time is over in which all before us
//! should have gone, and exactly when the one whom we wait for expires. Where none come (no socket can be made, another
//! user's process, an older program) it looks more often: soon if we are next, later the more claims stand before us,
//! when about half of them should have gone by the pace at which the line moved so far. A look takes no lock. What this
//! process itself changes is seen at once.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::kit::Pace;
use lockkeeper_core::{Claim, ClaimId, Key, Moment};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::fault::Result;
use crate::line::{Line, Spot, Tx};

/// The pause between looks of the next in line: an eighth of the time since the line last moved, so that
/// looking costs little and delays little whatever the holders do, within these bounds.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Those further back pause as long as half of those before them should take, but not longer than this, or than
/// that for each of them, or than a second.
const PAUSE_BEHIND_MAX: Duration = Duration::from_millis(250);
const PAUSE_EACH_MAX: Duration = Duration::from_millis(5);
const PAUSE_FAR_MAX: Duration = Duration::from_secs(1);
/// A holder for whom nobody can ring looks by itself; one that is rung for only in case that a ring is lost, or that the file
/// is changed by somebody who does not ring.
const PAUSE_HOLDING: Duration = Duration::from_millis(50);
const PAUSE_HOLDING_RUNG: Duration = Duration::from_secs(1);

/// What a watcher wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// That it is our turn; we stand there, and so many waited before us when we were told.
    Waiting { spot: Spot, waiting_before: u64 },
    /// That somebody waits behind us, unless we know, or that we lost the lock.
    Holding { knows_wanted: bool },
}

/// Somebody of this process who waits in `changed`.
#[derive(Debug)]
pub(crate) struct Watch {
    claim: Arc<Claim>,
    mood: Mood,
    wake: Option<oneshot::Sender<()>>,
    /// When it was last heard of.
    since: Moment,
    due: Moment,
    /// Look then even if nobody wrote: a claim before us expires by itself.
    expiry: Moment,
    /// What the file's version was when we last looked; `None` if the next look must be a real one.
    version: Option<i64>,
    /// The next look is due because nobody rang.
    is_paced: bool,
    pace: Pace,
}

/// How long until the next look, whether or not somebody is expected to ring.
fn pause(pace: &Pace, now: Moment, rings: bool) -> Duration {
    let (since_moved, waiting_before) = (pace.still(now), pace.before());
    let Ok(count @ 1..) = u32::try_from(waiting_before) else {
        return if rings { PAUSE_MAX } else { Pace::of_next(since_moved).clamp(PAUSE_MIN, PAUSE_MAX) };
    };
    let longest = PAUSE_EACH_MAX.saturating_mul(count).clamp(PAUSE_BEHIND_MAX, PAUSE_FAR_MAX);
    let step = pace.each().map(|it| it.max(since_moved / 4));
    match (rings, step) {
        (true, Some(step)) => step.saturating_mul(count).saturating_mul(2).clamp(PAUSE_MAX, longest),
        (true, None) => longest,
        (false, step) => {
            let step = step.unwrap_or_else(|| PAUSE_MIN.max(since_moved / 4));
            (step / 2).saturating_mul(count).clamp(PAUSE_MIN, longest)
        }
    }
}

impl Watch {
    pub(crate) fn new(claim: Arc<Claim>, mood: Mood, wake: oneshot::Sender<()>, now: Moment) -> Self {
        Watch {
            claim,
            mood,
            wake: Some(wake),
            since: now,
            due: now,
            expiry: Moment::NEVER,
            version: None,
            is_paced: false,
            pace: Pace::new(),
        }
    }

    /// Whose it is.
    pub(crate) fn id(&self) -> ClaimId {
        self.claim.id
    }

    /// It is for one who waits, not for one who holds.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.mood, Mood::Waiting { .. })
    }

    /// The same, of one who relied on a ring until now: if a look finds that it came in, nobody rang.
    pub(crate) fn relied_on_a_ring(self) -> Self {
        Watch { is_paced: true, ..self }
    }

    /// Nobody listens any more.
    pub(crate) fn is_over(&self) -> bool {
        self.wake.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Look at the line now.
    fn touch(&mut self, now: Moment) {
        (self.due, self.version, self.is_paced) = (now, None, false);
    }

    pub(crate) fn wake(&mut self) {
        if let Some(wake) = self.wake.take() {
            // Whoever went away does not need to hear it.
            let _ = wake.send(());
        }
    }

    /// Look at the line: wake whoever watches, or say when to look again.
    fn look(&mut self, connection: &Connection, now: Moment, rings: bool) -> Result<()> {
        match self.mood {
            Mood::Waiting { spot, waiting_before } => {
                self.look_waiting(connection, spot, waiting_before, now, rings)
            }
            Mood::Holding { knows_wanted } => self.look_holding(connection, knows_wanted, now, rings),
        }
    }

    fn look_waiting(
        &mut self,
        connection: &Connection,
        spot: Spot,
        waiting_before: u64,
        now: Moment,
        rings: bool,
    ) -> Result<()> {
        let key = &self.claim.key;
        let Some(me) = spot.find(connection, key)?.filter(|it| !it.held && now < it.expires) else {
            self.wake();
            return Ok(());
        };
        if rings && 0 < waiting_before && !self.pace.is_known() {
            // We came a moment ago and somebody will ring: no need to count those before us again.
            self.pace.saw(now, waiting_before);
            self.expiry = me.expires;
            self.pause_again(now, rings);
            return Ok(());
        }
        let before = spot.before(connection, key, now)?;
        self.expiry = before.last_expiry.min(me.expires);
        let line = Line::read(connection, key, now)?;
        if before.waiting == 0 {
            self.expiry = line.next_expiry().min(me.expires);
        }
        if line.has_room_for(spot.id) {
            self.wake();
        }
        self.pace.saw(now, before.waiting);
        self.pause_again(now, rings);
        Ok(())
    }

    fn look_holding(
        &mut self,
        connection: &Connection,
        knows_wanted: bool,
        now: Moment,
        rings: bool,
    ) -> Result<()> {
        let line = Line::read(connection, &self.claim.key, now)?;
        let me = line.position(self.claim.id).map(|at| line.entries[at]).filter(|it| it.held);
        match me {
            Some(me) if knows_wanted || !line.is_wanted() => {
                self.expiry = me.expires;
                self.pause_again(now, rings);
            }
            _ => self.wake(),
        }
        Ok(())
    }

    fn pause_again(&mut self, now: Moment, rings: bool) {
        self.is_paced = true;
        self.due = match self.mood {
            Mood::Waiting { .. } => now.after(pause(&self.pace, now, rings)),
            Mood::Holding { .. } if rings => now.after(PAUSE_HOLDING_RUNG),
            Mood::Holding { .. } => now.after(PAUSE_HOLDING),
        };
    }
}

/// More lines than this are not told apart.
const WATCHED_FEW: usize = 8;

/// Which lines somebody watches. A change of another one need not be told.
#[derive(Debug)]
pub(crate) enum Watched {
    Few(Vec<Key>),
    /// Any may be among them.
    Many,
}

impl Default for Watched {
    fn default() -> Self {
        Watched::Few(Vec::new())
    }
}

impl Watched {
    pub(crate) fn has(&self, key: &Key) -> bool {
        match self {
            Watched::Few(keys) => keys.contains(key),
            Watched::Many => true,
        }
    }
}

/// All who watch.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    all: Vec<Watch>,
    /// Somebody rings for us when it is our turn.
    rings: bool,
    /// Somebody came in for whom nobody rang, and nobody has rung since.
    has_missed: bool,
    /// They were rung for, and are told as soon as nobody is at the desk.
    woken: Vec<oneshot::Sender<()>>,
}

impl Watches {
    pub(crate) fn add(&mut self, watch: Watch) {
        self.all.push(watch);
    }

    /// Somebody rang for this claim. It may ask: that costs no more than a look. `false` if nobody watches for it. See
    /// [`Watches::take_woken`].
    pub(crate) fn ring(&mut self, id: ClaimId) -> bool {
        self.has_missed = false;
        let mut is_known = false;
        for watch in self.all.iter_mut().filter(|it| it.claim.id == id) {
            self.woken.extend(watch.wake.take());
            is_known = true;
        }
        is_known
    }

    /// Those who were rung for, to be woken now.
    pub(crate) fn take_woken(&mut self) -> Vec<oneshot::Sender<()>> {
        std::mem::take(&mut self.woken)
    }

    /// Others can ring for us, or cannot.
    pub(crate) fn expect_rings(&mut self, can_ring: bool) {
        self.rings = can_ring && !self.has_missed;
    }

    /// Whether somebody is expected to ring.
    pub(crate) fn expects_rings(&self) -> bool {
        self.rings
    }

    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// Somebody wants to be rung for.
    pub(crate) fn anybody_listens(&self) -> bool {
        self.all.iter().any(|it| !it.is_over())
    }

    /// The lines that are watched.
    pub(crate) fn watched(&self) -> Watched {
        if WATCHED_FEW < self.all.len() {
            return Watched::Many;
        }
        Watched::Few(self.all.iter().map(|it| it.claim.key.clone()).collect())
    }

    /// This process changed these lines.
    pub(crate) fn touch(&mut self, keys: &[Key], now: Moment) {
        self.all.iter_mut().filter(|it| keys.contains(&it.claim.key)).for_each(|it| it.touch(now));
    }

    /// Any line may have moved.
    pub(crate) fn touch_all(&mut self, now: Moment) {
        self.all.iter_mut().for_each(|it| it.touch(now));
    }

    /// The file is another one now: what was seen before means nothing.
    pub(crate) fn look_anew(&mut self) {
        self.all.iter_mut().for_each(|it| it.version = None);
    }

    /// When the next look is due.
    pub(crate) fn due(&self) -> Moment {
        let due = self.all.iter().map(|it| it.due.min(it.expiry)).min();
        due.unwrap_or(Moment::NEVER)
    }

    /// Look for all who are due.
    ///
    /// A fault is left for the next `turn` to meet: it can be told there, not here.
    pub(crate) fn look(&mut self, connection: &Connection, now: Moment) {
        self.all.retain(|it| !it.is_over());
        let (mut version, rings) = (None, self.rings);
        for watch in self.all.iter_mut().filter(|it| it.due.min(it.expiry) <= now) {
            let version = *version.get_or_insert_with(|| version_of(connection).ok());
            let (same, is_early) = (version.is_some() && watch.version == version, now < watch.expiry);
            watch.version = version;
            if same && is_early {
                watch.pause_again(now, rings);
                continue;
            }
            // A holder may hear of what nobody rings for, and nobody rings when a claim expires.
            let is_paced = watch.is_paced && is_early && matches!(watch.mood, Mood::Waiting { .. });
            if watch.look(connection, now, rings).is_err() {
                (watch.version, watch.expiry) = (None, Moment::NEVER);
                watch.pause_again(now, rings);
            }
            self.has_missed |= is_paced && watch.wake.is_none();
        }
        self.all.retain(|it| !it.is_over());
    }

    /// Keep the places of all who wait and were heard of within their ttl: one write for all of the process.
    pub(crate) fn keep_places(&self, tx: &mut Tx<'_>) -> Result<()> {
        let now = tx.now;
        for watch in self.all.iter().filter(|it| !it.is_over() && now - it.since < it.claim.ttl) {
            if let Mood::Waiting { spot, .. } = watch.mood {
                tx.keep(&watch.claim.key, spot, watch.claim.ttl)?;
            }
        }
        Ok(())
    }
}

/// A number that changes when another connection commits, cheaper to read than a line.
fn version_of(connection: &Connection) -> Result<i64> {
    let mut read = connection.prepare_cached("PRAGMA data_version")?;
    Ok(read.query_row([], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause of one that saw the line move by one in a `step`, if ever, and so long ago.
    fn pause_at(waiting_before: u64, since_moved: Duration, step: Option<Duration>) -> Duration {
        let (mut pace, mut moved) = (Pace::new(), Moment::from_nanos(0));
        if let Some(step) = step {
            pace.saw(moved, waiting_before + 1);
            moved = moved.after(step);
        }
        pace.saw(moved, waiting_before);
        pause(&pace, moved.after(since_moved), false)
    }

    #[test]
    fn the_next_in_line_looks_often_and_those_behind_by_the_pace_of_the_line() {
        let ms = Duration::from_millis;
        assert_eq!(pause_at(0, ms(0), Some(ms(9))), ms(1) / 2);
        assert_eq!(pause_at(0, ms(80), None), ms(10));
        assert_eq!(pause_at(0, ms(60_000), None), ms(20));
        assert_eq!(pause_at(10, ms(0), Some(ms(4))), ms(20), "when half of them should be gone");
        assert_eq!(pause_at(10, ms(80), Some(ms(4))), ms(100), "it stands still, so the pace is slower");
        assert_eq!(pause_at(40, ms(60_000), None), ms(250));
        assert_eq!(pause_at(100, ms(60_000), None), ms(500));
        assert_eq!(pause_at(u64::from(u32::MAX), ms(60_000), None), ms(1000));
    }

    #[test]
    fn however_long_the_line_a_hand_off_costs_a_few_looks() {
        let step = Duration::from_millis(2);
        for length in [10, 200, 2000] {
            // One who walks from the end of the line to its head, which moves once in a step.
            let mut pace = Pace::new();
            let (mut now, mut looks) = (Moment::from_nanos(0), 0);
            loop {
                let gone = u64::try_from((now - Moment::from_nanos(0)).as_nanos() / step.as_nanos()).unwrap();
                let waiting_before: u64 = length - gone.min(length);
                pace.saw(now, waiting_before);
                if waiting_before == 0 {
                    break;
                }
                now = now.after(pause(&pace, now, false));
                looks += 1;
            }
            assert!(looks <= 8 + 3 * length.ilog2(), "{looks} looks of one in a line of {length}");
        }
    }
}
