//! The operator's view: who holds what, who waits, what else stands there, and breaking a lock by hand.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_core::admission;
use lockkeeper_core::backend::Result;
use lockkeeper_core::inspect::{Broken, Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::record::{Record, key_of, segment_of};
use lockkeeper_core::{Fence, Key, Load};
use zookeeper_client::{Error, Stat};

use crate::fences::Ledger;
use crate::line::{Entry, in_order, mark_of, marked_by};
use crate::memos::time_of;
use crate::place::lingering::kept_in;
use crate::session::Session;
use crate::{ZooKeeper, doctor, fault};

const LOOKING: &str = "looking at the locks";
const BREAKING: &str = "breaking the lock";

/// So many lines are looked at together.
const LOOKED_AT: usize = 64;

/// One claim as it lies in the store.
struct Found {
    path: String,
    occupant: Occupant,
}

/// What stands in one line.
#[derive(Default)]
struct Line {
    holders: Vec<Found>,
    waiters: Vec<Found>,
    foreign: Vec<String>,
}

/// With what to look.
struct Glass {
    session: Arc<Session>,
    ledger: Option<Ledger>,
}

impl ZooKeeper {
    /// A look at the store by way of the usual session, after it has caught up with the leader.
    async fn glass(&self, doing: &'static str) -> Result<Glass> {
        let session = self.store.sessions.usual().await?;
        let synced = self.store.in_time(doing, session.client.sync(&self.options().path)).await?;
        synced.map_err(|it| fault::from_error(doing, it))?;
        let ledger = self.store.peek_ledger(&session).await?;
        Ok(Glass { session, ledger })
    }

    /// The names in a folder; none if there is no such folder.
    async fn names(
        &self,
        glass: &Glass,
        path: &str,
        doing: &'static str,
    ) -> Result<std::result::Result<Vec<String>, Error>> {
        match self.store.in_time(doing, glass.session.client.list_children(path)).await? {
            Err(Error::NoNode) => Ok(Ok(Vec::new())),
            names @ (Ok(_) | Err(Error::NoAuth)) => Ok(names),
            Err(error) => Err(fault::from_error(doing, error)),
        }
    }

    /// Those who hold and those who wait for one key, and what else is there.
    async fn line(&self, glass: &Glass, key: &Key, doing: &'static str) -> Result<Line> {
        let folder = format!("{}/{}", self.options().path, segment_of(key.as_str()));
        let names = match self.names(glass, &folder, doing).await? {
            Ok(names) => names,
            Err(_) if doing == LOOKING => {
                let foreign = vec![format!("{folder} belongs to another user; look as that user")];
                return Ok(Line { foreign, ..Line::default() });
            }
            Err(error) => return Err(fault::from_error(doing, error)),
        };
        let strangers =
            names.iter().filter(|it| marked_by(it).is_none() && Entry::read((*it).clone()).is_none());
        let foreign = strangers
            .map(|it| format!("{folder}/{it} is not ours and holds up nobody; remove it if nobody needs it"));
        let mut found = Line { foreign: foreign.collect(), ..Line::default() };
        let line = self.without_what_is_over(glass, &folder, in_order(names), doing).await?;
        let loads: Vec<_> = line.iter().map(|it| it.load).collect();
        let inside = admission::inside(&loads);
        let paths: Vec<_> = line.iter().map(|it| format!("{folder}/{}", it.name)).collect();
        // All are sent at once.
        let asked: Vec<_> = paths.iter().map(|it| glass.session.client.get_data(it)).collect();
        for (at, (data, path)) in asked.into_iter().zip(&paths).enumerate() {
            let (data, stat) = match self.store.in_time(doing, data).await? {
                Ok(found) => found,
                Err(Error::NoNode) => continue,
                Err(Error::NoAuth) => {
                    found.foreign.push(format!("{path} belongs to another user; look as that user"));
                    continue;
                }
                Err(error) => return Err(fault::from_error(doing, error)),
            };
            let occupant = if line[at].kept {
                // Its time may be over since the look at the line.
                let Some(kept) = self.kept(glass, &data, &stat, doing).await? else { continue };
                Some(kept)
            } else {
                self.occupant(glass, &data, &stat, at < inside)
            };
            let Some(occupant) = occupant else {
                let text = "is not ours, stands in line and holds up those behind it; remove it by hand";
                found.foreign.push(format!("{path} {text}"));
                continue;
            };
            let occupant = occupant.load(loads[at]);
            let side = if at < inside { &mut found.holders } else { &mut found.waiters };
            side.push(Found { path: path.clone(), occupant });
        }
        Ok(found)
    }

    /// The line without nodes whose time is over: they keep nobody out, and whoever comes next removes them.
    async fn without_what_is_over(
        &self,
        glass: &Glass,
        folder: &str,
        line: Vec<Entry>,
        doing: &'static str,
    ) -> Result<Vec<Entry>> {
        let (mut stands, mut now) = (Vec::new(), None);
        for it in line {
            if it.kept {
                let now = match now {
                    Some(now) => now,
                    None => *now.insert(time_of(&self.store, &glass.session, doing).await?),
                };
                let read = glass.session.client.get_data(&format!("{folder}/{}", it.name));
                match self.store.in_time(doing, read).await? {
                    Ok((data, stat)) if kept_in(&data, &stat, now).is_none() => continue,
                    Err(Error::NoNode) => continue,
                    // Whoever is not let in to see it is told so where it is shown.
                    Ok(_) | Err(_) => {}
                }
            }
            stands.push(it);
        }
        Ok(stands)
    }

    /// Who gave its lock back later, with the fence that it had.
    async fn kept(
        &self,
        glass: &Glass,
        data: &[u8],
        stat: &Stat,
        doing: &'static str,
    ) -> Result<Option<Occupant>> {
        let now = time_of(&self.store, &glass.session, doing).await?;
        let (Some(record), Some(kept)) = (Record::read(data), kept_in(data, stat, now)) else {
            return Ok(None);
        };
        let fence = Some(Fence::of_grant(kept.counter));
        Ok(Some(Occupant::new(record.label, kept.left).fence(fence).load(record.load)))
    }

    /// Who stands behind a node; `None` if we did not make it.
    fn occupant(&self, glass: &Glass, data: &[u8], stat: &Stat, is_inside: bool) -> Option<Occupant> {
        // What we make goes with its session.
        let record = Record::read(data).filter(|_| stat.ephemeral_owner != 0)?;
        // The write that let it in was the last to its node.
        let counter = glass.ledger.as_ref().and_then(|it| it.counter(stat.mzxid));
        let fence = counter.filter(|_| is_inside).map(Fence::of_grant);
        let session = session_in(data).unwrap_or(self.first);
        Some(Occupant::new(record.label, session).fence(fence).load(record.load))
    }

    /// Remove a holder's node, if it is still there.
    async fn take_away(&self, glass: &Glass, holder: &Found) -> Result<bool> {
        let deleted = glass.session.client.delete(&holder.path, None);
        let deleted = self.store.in_time(BREAKING, deleted).await?;
        if holder.occupant.load == Load::READER {
            // If it wrote before. It says nothing without its node.
            let mark = glass.session.client.delete(&mark_of(&holder.path), None);
            let _ = self.store.in_time(BREAKING, mark).await?;
        }
        match deleted {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(fault::from_error(BREAKING, error)),
        }
    }

    async fn info(&self, glass: &Glass, key: Key) -> Result<Option<LockInfo>> {
        let line = self.line(glass, &key, LOOKING).await?;
        let people = |it: Vec<Found>| it.into_iter().map(|it| it.occupant).collect::<Vec<_>>();
        let mut info = LockInfo::new(key, people(line.holders), people(line.waiters));
        info.foreign = line.foreign;
        Ok((!info.is_free()).then_some(info))
    }
}

/// What a claim's node says beside its record: how long its session lasts.
pub(crate) fn session_line(session: &Session) -> String {
    format!("session={}\n", session.timeout.as_millis())
}

fn session_in(data: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(data).ok()?;
    text.lines().find_map(|it| it.strip_prefix("session=")?.parse().ok()).map(Duration::from_millis)
}

/// All of these at the same time, in their order.
async fn together<T>(looks: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut looks: Vec<_> = looks.into_iter().map(|it| (Box::pin(it), None)).collect();
    poll_fn(|cx| {
        let mut all = Poll::Ready(());
        for (look, seen) in looks.iter_mut().filter(|it| it.1.is_none()) {
            match look.as_mut().poll(cx) {
                Poll::Ready(info) => *seen = Some(info),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    })
    .await;
    looks.into_iter().filter_map(|it| it.1).collect()
}

impl Inspect for ZooKeeper {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let glass = self.glass(LOOKING).await?;
        let names = self.names(&glass, &self.options().path, LOOKING).await?;
        let names = names.map_err(|it| fault::from_error(LOOKING, it))?;
        let mut keys: Vec<Key> = names.iter().filter_map(|it| key_of(it)).collect();
        keys.retain(|it| it.as_str().starts_with(prefix));
        keys.sort();
        let mut infos = Vec::new();
        // One after the other each would take two trips.
        for some in keys.chunks(LOOKED_AT) {
            let looks = some.iter().map(|key| self.info(&glass, key.clone()));
            for info in together(looks.collect()).await {
                infos.extend(info?);
            }
        }
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let glass = self.glass(LOOKING).await?;
        self.info(&glass, key.clone()).await
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let glass = self.glass(BREAKING).await?;
        let line = self.line(&glass, key, BREAKING).await?;
        let mut broken = Vec::new();
        for holder in line.holders {
            if self.take_away(&glass, &holder).await? {
                broken.push(holder.occupant.valid_for(Duration::ZERO));
            }
        }
        Ok(broken)
    }

    async fn break_holder(&self, key: &Key, fence: Fence) -> Result<Broken> {
        let glass = self.glass(BREAKING).await?;
        let line = self.line(&glass, key, BREAKING).await?;
        // Its node is its own: nobody else stands there, whoever holds the lock by now.
        let Some(holder) = line.holders.into_iter().find(|it| it.occupant.fence == Some(fence)) else {
            return Ok(Broken::Changed);
        };
        let lost = self.take_away(&glass, &holder).await?;
        Ok(if lost { Broken::Lost(holder.occupant.valid_for(Duration::ZERO)) } else { Broken::Changed })
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(doctor::examine(self).await)
    }
}
