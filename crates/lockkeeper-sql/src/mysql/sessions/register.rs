//! Who holds and who waits, written down for operators a moment later: never on the way to a lock, and only for those
//! that have been there for a while. Locks that pass from hand to hand are not written at all.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use lockkeeper_core::kit::locked;
use lockkeeper_core::{ClaimId, Moment};

use super::super::text::{bytes, optional, text};
use super::line::{LOOK, Line};
use crate::sessions;

/// The most rows that one statement writes.
const ROWS_MOST: usize = 500;

type Claimed = sessions::Claimed<Line>;

/// A row to be.
#[derive(Clone)]
struct Entry {
    claimed: Arc<Claimed>,
    conn: u32,
    /// 0 while it waits.
    counter: u64,
    since: i64,
    /// When this was said, by our clock.
    at: Moment,
    /// The row says what is known.
    written: bool,
    /// There is a row, perhaps an older one.
    has_row: bool,
}

/// What this process has to say.
#[derive(Default)]
pub(super) struct Register {
    entries: Mutex<HashMap<ClaimId, Entry>>,
    /// Rows that are to be removed.
    gone: Mutex<Vec<ClaimId>>,
    /// Held while writing: no row is written after it was removed.
    writing: tokio::sync::Mutex<()>,
}

impl Register {
    /// It waits (counter 0) or holds, by this session.
    pub(super) fn stands(&self, claimed: &Arc<Claimed>, conn: u32, counter: u64, since: i64, at: Moment) {
        let (id, mut entries) = (claimed.claim.id, locked(&self.entries));
        let has_row = entries.get(&id).is_some_and(|it| it.has_row);
        let claimed = claimed.clone();
        entries.insert(id, Entry { claimed, conn, counter, since, at, written: false, has_row });
    }

    /// It neither holds nor waits any more.
    pub(super) fn left(&self, id: ClaimId) {
        let entry = locked(&self.entries).remove(&id);
        if entry.is_some_and(|it| it.has_row) {
            locked(&self.gone).push(id);
        }
    }

    /// Write what has changed, by this session. What began a moment before `now` is not worth it yet: most of it will be over.
    pub(super) async fn write(&self, line: &Line, now: Moment) {
        let Ok(_writing) = self.writing.try_lock() else { return };
        loop {
            let rows = self.take_rows(now);
            if rows.is_empty() {
                break;
            }
            let values: Vec<String> = rows.iter().map(Entry::values).collect();
            let sql = format!(
                "REPLACE INTO lockkeeper_session_claim (id, `lock`, conn, counter, since, name, owner, note) VALUES {}",
                values.join(", ")
            );
            if line.ask_in_time(sql).await.is_err() {
                // Again by the next who comes; meanwhile operators see less.
                let mut entries = locked(&self.entries);
                for row in rows {
                    entries.entry(row.claimed.claim.id).and_modify(|it| it.written = false);
                }
                return;
            }
        }
        let gone = std::mem::take(&mut *locked(&self.gone));
        for ids in gone.chunks(ROWS_MOST) {
            let list: Vec<String> = ids.iter().map(|it| bytes(it.as_bytes())).collect();
            let sql = format!("DELETE FROM lockkeeper_session_claim WHERE id IN ({})", list.join(", "));
            if line.ask_in_time(sql).await.is_err() {
                locked(&self.gone).extend_from_slice(ids);
            }
        }
    }

    fn take_rows(&self, now: Moment) -> Vec<Entry> {
        let mut entries = locked(&self.entries);
        // A row that says something else by now is mended at once.
        let due = |it: &&mut Entry| !it.written && (it.has_row || it.at.after(LOOK) <= now);
        let unwritten = entries.values_mut().filter(due).take(ROWS_MOST);
        unwritten
            .map(|it| {
                (it.written, it.has_row) = (true, true);
                it.clone()
            })
            .collect()
    }
}

impl Entry {
    fn values(&self) -> String {
        let Claimed { claim, lock, .. } = &*self.claimed;
        format!(
            "({}, {}, {}, {}, {}, {}, {}, {})",
            bytes(claim.id.as_bytes()),
            bytes(lock),
            self.conn,
            self.counter,
            self.since,
            text(claim.key.as_str()),
            optional(claim.label.owner.as_deref()),
            optional(claim.label.note.as_deref())
        )
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Register").finish_non_exhaustive()
    }
}
