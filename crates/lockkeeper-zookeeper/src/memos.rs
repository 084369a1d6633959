//! Memos: small values in nodes below `<path>/.memos` that outlive their writer's session. A version is the number of the
//! transaction that wrote it.
//!
//! The ensemble has no clock to ask, but it tells when a node was written. So whoever reads writes a node first, and
//! compares: all times here are the servers'. And a node counts its own changes from zero, also if it was removed and
//! made anew, so that one who is slow could take a new node for the old one. Hence a memo that is removed leaves its
//! node behind, empty; and whoever cleans such nodes away changes the folder's own version, which every write of a memo
//! checks.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::{Fault, Result};
use lockkeeper_core::memos::{Memo, Memos, Swap};
use lockkeeper_core::record::segment_of;
use zookeeper_client::{Acls, CreateMode, Error, MultiWriteResult, OneshotWatcher, Stat};

use crate::ZooKeeper;
use crate::fault::{self, NAME};
use crate::session::{Session, reason};
use crate::store::Store;

const READING: &str = "reading a memo";
const WRITING: &str = "writing a memo";
/// No name of a lock begins with a dot.
const FOLDER: &str = ".memos";
/// Whose last write tells the time. No name of a memo begins with a dot.
const TIME: &str = ".time";
/// How often others may come in between.
const TRIES_MAX: u32 = 100;
/// From so many nodes on, each new memo looks at a few and removes those whose time is over.
const CLEAN_FROM: i32 = 64;
const CLEAN_AT_ONCE: usize = 8;
/// As long as anybody can count.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What was found under a name.
struct Found {
    /// The memo, if its time is not over, and for how long it is kept.
    there: Option<(Memo, Duration)>,
    /// The version of its node, if there is one, whatever is in it.
    node: Option<i32>,
    /// That of the folder before we looked.
    folder: Stat,
    /// The number of a transaction shortly before we looked.
    zxid: i64,
}

/// What is in a node: how long it is kept in ms, a blank, the value. Nothing at all if the memo was removed.
fn data_of(value: &[u8], keep: Duration) -> Vec<u8> {
    if keep.is_zero() {
        return Vec::new();
    }
    let keep = keep.min(KEEP_MAX).as_nanos().div_ceil(1_000_000);
    [format!("{keep} ").as_bytes(), value].concat()
}

/// The memo in a node at `now`, and for how long it is kept from then.
fn memo_in(data: &[u8], stat: &Stat, now: i64) -> Option<(Memo, Duration)> {
    let blank = data.iter().position(|it| *it == b' ')?;
    let keep: i64 = std::str::from_utf8(&data[..blank]).ok()?.parse().ok()?;
    let left = stat.mtime.saturating_add(keep).saturating_sub(now);
    let left = u64::try_from(left).ok().filter(|it| *it != 0).map(Duration::from_millis)?;
    Some((Memo::new(stat.mzxid.unsigned_abs(), data[blank + 1..].to_vec()), left))
}

/// What the ensemble decided, or a fault, with the end of the session noted.
pub(crate) fn decided<T>(
    session: &Session,
    doing: &'static str,
    answer: std::result::Result<T, Error>,
) -> Result<std::result::Result<T, Error>> {
    match answer {
        Err(error @ (Error::NoNode | Error::NodeExists | Error::BadVersion)) => Ok(Err(error)),
        Err(error) => {
            if fault::is_session_over(&error) {
                session.proof.lose();
            }
            Err(fault::from_error(doing, error))
        }
        Ok(answer) => Ok(Ok(answer)),
    }
}

fn folder_of(store: &Store) -> String {
    format!("{}/{FOLDER}", store.options.path)
}

/// Make the folder, and the node that tells the time.
async fn make_folder(store: &Store, session: &Session) -> Result<()> {
    let folder = folder_of(store);
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in [folder.clone(), format!("{folder}/{TIME}")] {
        let made = store.in_time(WRITING, session.client.create(&path, b"", &mode)).await?;
        // Others may have been quicker.
        let _ = decided(session, WRITING, made)?;
    }
    Ok(())
}

/// A write that tells the time, if there is a folder. It brings this session up to date as well: what it reads afterwards is not
/// older.
async fn touch(store: &Store, session: &Session, doing: &'static str) -> Result<Option<Stat>> {
    let time = format!("{}/{TIME}", folder_of(store));
    let touched = store.in_time(doing, session.client.set_data(&time, b"", None)).await?;
    Ok(decided(session, doing, touched)?.ok())
}

/// The servers' time, in milliseconds.
pub(crate) async fn time_of(store: &Store, session: &Session, doing: &'static str) -> Result<i64> {
    for _ in 0..2 {
        if let Some(now) = touch(store, session, doing).await? {
            return Ok(now.mtime);
        }
        make_folder(store, session).await?;
    }
    Err(Fault::transient(NAME, doing, "the node that tells the time goes as soon as it is made"))
}

impl ZooKeeper {
    fn memo_folder(&self) -> String {
        folder_of(&self.store)
    }

    fn memo_path(&self, key: &Key) -> String {
        format!("{}/{}", self.memo_folder(), segment_of(key.as_str()))
    }

    /// What is there, by a session of ours. `None` if there is no folder yet.
    async fn look_for_memo(
        &self,
        session: &Session,
        doing: &'static str,
        path: &str,
    ) -> Result<Option<Found>> {
        let (store, folder) = (&self.store, self.memo_folder());
        let Some(now) = touch(store, session, doing).await? else { return Ok(None) };
        let folder = store.in_time(doing, session.client.check_stat(&folder)).await?;
        let Ok(Some(folder)) = decided(session, doing, folder)? else { return Ok(None) };
        let found = store.in_time(doing, session.client.get_data(path)).await?;
        let (there, node) = match decided(session, doing, found)? {
            Ok((data, stat)) => (memo_in(&data, &stat, now.mtime), Some(stat.version)),
            Err(_) => (None, None),
        };
        Ok(Some(Found { there, node, folder, zxid: now.mzxid }))
    }

    /// Write a node that is as it was found. `None` if it is not.
    async fn write_memo(
        &self,
        session: &Session,
        path: &str,
        found: &Found,
        data: &[u8],
    ) -> Result<Option<i64>> {
        let Some(version) = found.node else {
            let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
            let made = self.store.in_time(WRITING, session.client.create(path, data, &mode)).await?;
            return Ok(decided(session, WRITING, made)?.ok().map(|it| it.0.mzxid));
        };
        let mut writer = session.client.new_multi_writer();
        let told = |it| fault::from_error(WRITING, it);
        writer.add_check_version(&self.memo_folder(), found.folder.version).map_err(told)?;
        writer.add_set_data(path, data, Some(version)).map_err(told)?;
        let answer = self.store.in_time(WRITING, writer.commit()).await?.map_err(reason);
        let written = decided(session, WRITING, answer)?.ok().and_then(|it| it.into_iter().nth(1));
        match written {
            Some(MultiWriteResult::SetData { stat }) => Ok(Some(stat.mzxid)),
            _ => Ok(None),
        }
    }

    /// Remove a few nodes whose memos are gone. It is only tidying: whatever fails is left to the next.
    async fn clean_memos(&self, session: &Session, from: &str) {
        let folder = self.memo_folder();
        let listed = self.store.in_time(WRITING, session.client.list_children(&folder)).await;
        let Ok(Ok(mut names)) = listed else { return };
        names.sort();
        // Behind the name that was just written, so that all have their turn.
        let begin = names.partition_point(|it| it.as_str() <= from);
        let some = names.iter().cycle().skip(begin).take(names.len().min(CLEAN_AT_ONCE));
        for name in some.filter(|it| !it.starts_with('.')) {
            let path = format!("{folder}/{name}");
            let Ok(Some(found)) = self.look_for_memo(session, WRITING, &path).await else { return };
            let (None, Some(version)) = (&found.there, found.node) else { continue };
            let mut writer = session.client.new_multi_writer();
            let begun = writer
                .add_set_data(&folder, b"", Some(found.folder.version))
                .and_then(|()| writer.add_delete(&path, Some(version)));
            if begun.is_ok() {
                let _ = self.store.in_time(WRITING, writer.commit()).await;
            }
        }
    }

    /// Watch a node that still is as `seen` says. `None` if it is not.
    async fn watch_memo(
        &self,
        session: &Session,
        path: &str,
        node: Option<i32>,
    ) -> Result<Option<OneshotWatcher>> {
        let watched = self.store.in_time(READING, session.client.check_and_watch_stat(path)).await?;
        let Ok((stat, watcher)) = decided(session, READING, watched)? else { return Ok(None) };
        Ok((stat.map(|it| it.version) == node).then_some(watcher))
    }

    async fn memo_changed(&self, key: &Key, seen: Option<u64>) -> Result<()> {
        let (path, session) = (self.memo_path(key), self.store.sessions.usual().await?);
        let Some(found) = self.look_for_memo(&session, READING, &path).await? else {
            // Whoever waits for the first of all memos makes the folder: else there is nothing to be watched.
            return make_folder(&self.store, &session).await;
        };
        if found.there.as_ref().map(|it| it.0.version) != seen {
            return Ok(());
        }
        let Some(watcher) = self.watch_memo(&session, &path, found.node).await? else { return Ok(()) };
        let over = found.there.map_or(KEEP_MAX, |it| it.1);
        tokio::select! {
            _ = watcher.changed() => {}
            () = self.store.clock.sleep(over) => {}
        }
        Ok(())
    }
}

impl Memos for ZooKeeper {
    async fn read(&self, key: &Key) -> Result<Option<Memo>> {
        let session = self.store.sessions.usual().await?;
        let found = self.look_for_memo(&session, READING, &self.memo_path(key)).await?;
        Ok(found.and_then(|it| it.there).map(|it| it.0))
    }

    async fn swap(&self, key: &Key, seen: Option<u64>, value: &[u8], keep: Duration) -> Result<Swap> {
        let (path, data) = (self.memo_path(key), data_of(value, keep));
        let session: Arc<Session> = self.store.sessions.usual().await?;
        for _ in 0..TRIES_MAX {
            let Some(found) = self.look_for_memo(&session, WRITING, &path).await? else {
                make_folder(&self.store, &session).await?;
                continue;
            };
            let there = found.there.as_ref().map(|it| &it.0);
            if there.map(|it| it.version) != seen {
                return Ok(Swap::Conflict(there.cloned()));
            }
            if keep.is_zero() && there.is_none() {
                return Ok(Swap::Done(found.zxid.unsigned_abs()));
            }
            let Some(zxid) = self.write_memo(&session, &path, &found, &data).await? else { continue };
            if found.node.is_none() && CLEAN_FROM <= found.folder.num_children {
                self.clean_memos(&session, &segment_of(key.as_str())).await;
            }
            return Ok(Swap::Done(zxid.unsigned_abs()));
        }
        Err(Fault::transient(NAME, WRITING, "others write faster than we can look"))
    }

    /// By a watch, and when its time is over.
    async fn changed(&self, key: &Key, seen: Option<u64>) {
        // An error is a reason to read, which can tell it.
        let _ = self.memo_changed(key, seen).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_holds_its_memo_as_long_as_was_said_and_nothing_once_it_is_removed() {
        let stat = Stat { mzxid: 7, mtime: 1000, ..crate::line::tests::folder(0, 0) };
        let data = data_of(b"a b", Duration::from_micros(2500));
        let (memo, left) = memo_in(&data, &stat, 1000).unwrap();
        assert_eq!((memo, left), (Memo::new(7, b"a b".to_vec()), Duration::from_millis(3)));
        assert!(memo_in(&data, &stat, 1002).is_some() && memo_in(&data, &stat, 1003).is_none());
        assert_eq!(memo_in(&data_of(b"a", Duration::ZERO), &stat, 0), None);
        assert_eq!(memo_in(b"not ours", &stat, 0), None);
        assert!(memo_in(&data_of(b"", Duration::MAX), &stat, i64::MAX / 2).is_none());
        assert!(memo_in(&data_of(b"", Duration::MAX), &stat, 1001).is_some());
    }
}
