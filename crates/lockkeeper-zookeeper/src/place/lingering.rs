//! Giving a lock back later: a node that hangs on no session takes the place of ours in the line.
//!
//! An ephemeral node goes with its session, so it cannot be kept for a process that is gone. In one transaction ours goes and a
//! persistent one with our number comes. Whoever looks at the line takes it for ours until its time is over. The ensemble has no
//! clock to ask, but it tells when a node was written: when this one was made, and, by another write, what the time is now. So all
//! times here are the servers'. Whoever comes when the time is over removes it; so does its own process, if that still lives.
//!
//! Who waits behind a mutex gets inside when the node before it is gone, without a look. So the transaction writes the folder, too,
//! and that entry is refused if anybody did since the last look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::Moment;
use lockkeeper_core::backend::Result;
use zookeeper_client::{CreateMode, Error, MultiWriteResult, Stat};

use super::{Next, TAKING, ZooKeeperPlace, over};
use crate::fences::Written;
use crate::line::{Look, kept_name};
use crate::memos::{decided, time_of};
use crate::session::{Session, reason};
use crate::store::Store;

const LINGERING: &str = "giving the lock back later";
/// As long as anybody can count.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The last line of such a node: the number of its holder's grant, and for how many milliseconds it stands.
const WORD: &str = "kept=";

/// What a kept node says beside its record.
pub(crate) struct Kept {
    pub(crate) counter: u64,
    /// For how long it still stands.
    pub(crate) left: Duration,
}

fn line_of(counter: u64, span: Duration) -> String {
    // The servers count whole milliseconds: one more, so that nothing is lost by that.
    let span = span.min(SPAN_MAX).as_nanos().div_ceil(1_000_000) + 1;
    format!("{WORD}{counter} {span}\n")
}

/// What such a node says at `now`, by the servers' time. `None` if its time is over.
///
/// A server whose clock is behind that of the one before it as leader keeps it longer, but never for more than the whole time from
/// then on.
pub(crate) fn kept_in(data: &[u8], stat: &Stat, now: i64) -> Option<Kept> {
    let text = String::from_utf8_lossy(data);
    let said = text.lines().rev().find_map(|it| it.strip_prefix(WORD))?;
    let (counter, span) = said.split_once(' ')?;
    let (counter, span) = (counter.parse().ok()?, span.parse::<i64>().ok()?);
    let left = stat.mtime.saturating_add(span).saturating_sub(now).min(span);
    let left = u64::try_from(left).ok().filter(|it| *it != 0).map(Duration::from_millis)?;
    Some(Kept { counter, left })
}

impl ZooKeeperPlace {
    /// Our node becomes one that stands for so long.
    pub(super) async fn keep_for(&mut self, span: Duration) -> Result<()> {
        self.watches.clear();
        let (Some(session), Some(node), Some(counter)) =
            (self.session.clone(), self.node.clone(), self.counter)
        else {
            // There is nothing to keep, or it was done before.
            return self.part().await;
        };
        let until = self.store.clock.now().after(span);
        let kept = kept_name(&self.claim, &node);
        let (own, path, folder) = (self.path(&node), self.path(&kept), self.folder.clone());
        let text = self.text(&session) + &line_of(counter, span);
        let mode = CreateMode::Persistent.with_acls(self.acls());
        let exchanged = async {
            let mut writer = session.client.new_multi_writer();
            writer.add_delete(&own, None)?;
            writer.add_create(&path, text.as_bytes(), &mode)?;
            writer.add_set_data(&folder, b"", None)?;
            writer.commit().await.map(drop).map_err(reason)
        };
        let done = self.store.call(&session, LINGERING, exchanged).await;
        // Our node is gone: it was done before, or there is nothing to keep.
        if over(&session, done)?.is_some() {
            self.remove_mark(&session).await?;
            self.store.spawn(remove_at(until, path, Arc::downgrade(&self.store)));
        }
        self.part().await
    }

    /// Nothing of ours stands in the line any more.
    async fn part(&mut self) -> Result<()> {
        if let Some(session) = self.session.clone().filter(|it| !it.proof.is_lost()) {
            self.remove_mark(&session).await?;
        }
        self.reset();
        self.store.forget(self.claim.id);
        self.session = None;
        Ok(())
    }

    /// Somebody is in our way: wait for those who hold, and remove whose time is over.
    pub(super) async fn stand_behind(&mut self, session: &Session, look: Look) -> Result<Next> {
        self.kept_for = None;
        if !look.kept.is_empty() {
            let now = time_of(&self.store, session, TAKING).await?;
            for name in &look.kept {
                let path = self.path(name);
                let Some(left) = left_of(&self.store, session, &path, now).await? else {
                    return Ok(Next::Again);
                };
                self.kept_for = Some(self.kept_for.map_or(left, |it| it.min(left)));
            }
        }
        self.watch(session, &look).await
    }

    /// Get inside by a write to our node, as long as nobody began to linger since we looked.
    pub(super) async fn write_unless_kept(&mut self, session: &Session) -> Result<Next> {
        let Some(node) = &self.node else { return Ok(Next::Again) };
        let (path, data, floor) = (self.path(node), self.text(session), self.store.seen());
        let (folder, version) = (&self.folder, self.folder_version);
        let written = async {
            let mut writer = session.client.new_multi_writer();
            writer.add_check_version(folder, version)?;
            writer.add_set_data(&path, data.as_bytes(), None)?;
            writer.commit().await.map_err(reason)
        };
        let written = decided(session, TAKING, self.store.in_time(TAKING, written).await?)?;
        let stat = match written.map(|it| it.into_iter().nth(1)) {
            Ok(Some(MultiWriteResult::SetData { stat })) => stat,
            Err(Error::BadVersion) => {
                self.watches.clear();
                return Ok(Next::Again);
            }
            _ => {
                self.reset();
                return Ok(Next::Again);
            }
        };
        self.enter(session, Written::last(&stat), floor).await
    }
}

/// For how long a node still stands. If its time is over it goes; `None` if it has gone.
pub(super) async fn left_of(
    store: &Store,
    session: &Session,
    path: &str,
    now: i64,
) -> Result<Option<Duration>> {
    let Ok((data, stat)) = store.call(session, TAKING, session.client.get_data(path)).await? else {
        return Ok(None);
    };
    if let Some(kept) = kept_in(&data, &stat, now) {
        return Ok(Some(kept.left));
    }
    let _ = store.call(session, TAKING, session.client.delete(path, None)).await?;
    Ok(None)
}

/// A process that still lives when the time is over removes the node itself, so that whoever waits hears of it.
async fn remove_at(until: Moment, path: String, store: Weak<Store>) {
    let Some(clock) = store.upgrade().map(|it| it.clock.clone()) else { return };
    clock.sleep_until(until).await;
    let Some(store) = store.upgrade() else { return };
    // Whoever waits looks by itself when the time is over.
    let Ok(session) = store.sessions.usual().await else { return };
    let _ = store.in_time(LINGERING, session.client.delete(&path, None)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::tests::folder;

    #[test]
    fn a_node_stands_as_long_as_was_said_and_not_longer() {
        let stat = Stat { mtime: 1000, ..folder(0, 0) };
        let said = |span| format!("note=kept=1 2\n{}", line_of(7, span)).into_bytes();
        let data = said(Duration::from_micros(2500));
        let at = |now| kept_in(&data, &stat, now).map(|it| (it.counter, it.left));
        assert_eq!(at(1000), Some((7, Duration::from_millis(4))), "rounded up, and one more");
        assert_eq!(at(1003), Some((7, Duration::from_millis(1))));
        assert_eq!((at(1004), at(9999)), (None, None));
        assert_eq!(at(0), Some((7, Duration::from_millis(4))), "a clock that went back");
        assert!(kept_in(&said(Duration::MAX), &stat, i64::MAX / 2).is_none());
        assert!(kept_in(&said(Duration::MAX), &stat, 1001).is_some());
        assert!(kept_in(b"not ours", &stat, 0).is_none());
    }
}
