//! How `changed` resolves: the connection's thread looks at the lines that somebody of this process watches.
//!
//! SQLite has no way to call another process. So the thread looks: soon if we are next, later the more
//! claims stand before us, and exactly when one of those before us expires. A look takes no lock. What this
//! process itself changes is seen at once.

use std::time::Duration;

use lockkeeper_core::{ClaimId, Key, Moment};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::fault::Result;
use crate::line::Line;

/// The pause between looks of the next in line: an eighth of the time since the line last moved, so that
/// looking costs little and delays little whatever the holders do, within these bounds.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Those further back pause that much times their number, but not longer than this.
const PAUSE_BEHIND_MAX: Duration = Duration::from_millis(250);
/// A holder is in no hurry to hear that somebody wants the lock.
const PAUSE_HOLDING: Duration = Duration::from_millis(50);

/// What a watcher wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// That it is our turn.
    Waiting,
    /// That somebody waits behind us, unless we know, or that we lost the lock.
    Holding { knows_wanted: bool },
}

/// Somebody of this process who waits in `changed`.
#[derive(Debug)]
pub(crate) struct Watch {
    key: Key,
    id: ClaimId,
    mood: Mood,
    wake: Option<oneshot::Sender<()>>,
    due: Moment,
    /// Look then even if nobody wrote: a claim before us expires by itself.
    expiry: Moment,
    /// What the file's version was when we last looked; `None` if the next look must be a real one.
    version: Option<i64>,
    /// Where we stood when we last looked, and since when.
    stood: Option<(i64, usize)>,
    moved: Moment,
}

impl Watch {
    pub(crate) fn new(key: Key, id: ClaimId, mood: Mood, wake: oneshot::Sender<()>, now: Moment) -> Self {
        Watch {
            key,
            id,
            mood,
            wake: Some(wake),
            due: now,
            expiry: Moment::NEVER,
            version: None,
            stood: None,
            moved: now,
        }
    }

    /// Nobody listens any more.
    fn is_over(&self) -> bool {
        self.wake.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn wake(&mut self) {
        if let Some(wake) = self.wake.take() {
            // Whoever went away does not need to hear it.
            let _ = wake.send(());
        }
    }

    /// Look at the line: wake whoever watches, or say when to look again.
    fn look(&mut self, line: &Line, now: Moment) {
        let Some(at) = line.position(self.id) else {
            return self.wake();
        };
        let mut line = line.clone();
        let is_wanted = line.is_wanted();
        line.admit(Some(at));
        let (me, before) = (line.standings[at], &line.standings[..at]);
        match self.mood {
            Mood::Waiting if me.held => self.wake(),
            Mood::Holding { knows_wanted } if !me.held || (is_wanted && !knows_wanted) => self.wake(),
            Mood::Waiting => {
                let waiting_before = before.iter().filter(|it| !it.held).count();
                let stands = before.first().map(|it| (it.seq, at));
                if self.stood != stands {
                    self.moved = if self.stood.is_some() { now } else { self.moved };
                    self.stood = stands;
                }
                self.expiry = line.next_expiry(at).min(me.expires);
                self.due = now.after(pause(now - self.moved, waiting_before));
            }
            Mood::Holding { .. } => {
                self.expiry = me.expires;
                self.due = now.after(PAUSE_HOLDING);
            }
        }
    }

    fn pause_again(&mut self, now: Moment) {
        let waiting_before = self.stood.map_or(0, |(_, at)| at.saturating_sub(1));
        self.due = match self.mood {
            Mood::Waiting => now.after(pause(now - self.moved, waiting_before)),
            Mood::Holding { .. } => now.after(PAUSE_HOLDING),
        };
    }
}

fn pause(since_moved: Duration, waiting_before: usize) -> Duration {
    let next = (since_moved / 8).clamp(PAUSE_MIN, PAUSE_MAX);
    let factor = u32::try_from(waiting_before).unwrap_or(u32::MAX).saturating_add(1);
    next.saturating_mul(factor).min(PAUSE_BEHIND_MAX.max(next))
}

/// All who watch.
#[derive(Debug, Default)]
pub(crate) struct Watches(Vec<Watch>);

impl Watches {
    pub(crate) fn add(&mut self, watch: Watch) {
        self.0.push(watch);
    }

    /// This process changed these lines.
    pub(crate) fn touch(&mut self, keys: &[Key], now: Moment) {
        for watch in self.0.iter_mut().filter(|it| keys.contains(&it.key)) {
            watch.due = now;
            watch.version = None;
        }
    }

    /// The file is another one now: what was seen before means nothing.
    pub(crate) fn look_anew(&mut self) {
        self.0.iter_mut().for_each(|it| it.version = None);
    }

    /// When the next look is due.
    pub(crate) fn due(&self) -> Moment {
        let due = self.0.iter().map(|it| it.due.min(it.expiry)).min();
        due.unwrap_or(Moment::NEVER)
    }

    /// Look for all who are due.
    ///
    /// A fault is left for the next `turn` to meet: it can be told there, not here.
    pub(crate) fn look(&mut self, connection: &Connection, now: Moment) {
        self.0.retain(|it| !it.is_over());
        let mut version = None;
        // Often all watch the same line.
        let mut last: Option<(Key, Line)> = None;
        for watch in self.0.iter_mut().filter(|it| it.due.min(it.expiry) <= now) {
            let version = *version.get_or_insert_with(|| version_of(connection).ok());
            let same = version.is_some() && watch.version == version && now < watch.expiry;
            watch.version = version;
            if same {
                watch.pause_again(now);
                continue;
            }
            if last.as_ref().is_none_or(|(key, _)| *key != watch.key) {
                let read = Line::read(connection, &watch.key, now);
                last = read.ok().map(|line| (watch.key.clone(), line));
            }
            if let Some((_, line)) = &last {
                watch.look(line, now);
            } else {
                watch.version = None;
                watch.expiry = Moment::NEVER;
                watch.pause_again(now);
            }
        }
        self.0.retain(|it| !it.is_over());
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

    #[test]
    fn the_next_in_line_looks_often_and_those_behind_in_proportion() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(0), 0), ms(1) / 2);
        assert_eq!(pause(ms(0), 9), ms(5));
        assert_eq!(pause(ms(80), 0), ms(10));
        assert_eq!(pause(ms(60_000), 0), ms(20));
        assert_eq!(pause(ms(80), 4), ms(50));
        assert_eq!(pause(ms(60_000), usize::MAX), ms(250));
    }
}
