//! A store of your own: locks as files in a folder, for all processes of one host. `docs/guides/writing-a-backend.md`
//! builds it piece by piece.

mod line;
mod options;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Fault, Grant, Place, Profile, Reach, Renewal, Result, Turn};
use lockkeeper_core::clock::time_of_day;
use lockkeeper_core::inspect::{Finding, Inspect, LockInfo, Occupant};
use lockkeeper_core::kit::Pace;
use lockkeeper_core::record::{key_of, segment_of};
use lockkeeper_core::{Claim, Clock, Fence, Key};
use rustix::fs::{FlockOperation, flock};

use crate::line::{Entry, Line};

pub use crate::options::FolderOptions;

const NAME: &str = "files";

/// Locks as files in a folder.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkeeper_core::Error> {
/// let folder = std::env::temp_dir().join(format!("file-store-{}", std::process::id()));
/// let locker = lockkeeper_core::Locker::new(file_store::Folder::connect(&format!("files:{}", folder.display())).await?);
/// let guard = locker.lock("orders/42").await?;
/// assert!(locker.try_lock("orders/42").await?.is_none());
/// guard.release().await?;
/// # drop(std::fs::remove_dir_all(folder));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Folder {
    options: Arc<FolderOptions>,
    clock: Clock,
}

impl Folder {
    /// Use the folder that the URL names; it is made if it is not there.
    ///
    /// # Cancel safety
    /// Safe to drop: the folder may have been made.
    ///
    /// # Errors
    /// If the URL cannot be used, or the folder not be made.
    pub async fn connect(url: &str) -> lockkeeper_core::Result<Self> {
        Folder::with(FolderOptions::parse(url)?).await
    }

    /// Use a folder with options.
    ///
    /// # Cancel safety
    /// As for [`Folder::connect`].
    ///
    /// # Errors
    /// If the folder cannot be made.
    #[expect(clippy::unused_async, reason = "every store has this door, and most wait behind it")]
    pub async fn with(options: FolderOptions) -> lockkeeper_core::Result<Self> {
        std::fs::create_dir_all(&options.path).map_err(|it| {
            lockkeeper_core::Error::unavailable(format!("the folder {}", options.path.display()), it)
        })?;
        Ok(Folder { options: Arc::new(options), clock: Clock::boot() })
    }
}

impl Backend for Folder {
    type Place = FilePlace;

    fn profile(&self) -> Profile {
        Profile::new(NAME, Reach::Host).fifo()
    }

    fn enter(&self, claim: Claim) -> FilePlace {
        FilePlace { folder: self.clone(), claim, pace: Pace::new() }
    }
}

/// The longest part of a file's name; file systems allow 255 bytes.
const PART_MAX: usize = 200;

impl Folder {
    /// The file of a lock. A long name goes through folders whose names end with a dot, which no file's does.
    fn file_of(&self, key: &Key) -> PathBuf {
        let (mut path, segment) = (self.options.path.clone(), segment_of(key.as_str()));
        let mut rest = segment.as_str();
        while PART_MAX < rest.len() {
            let (part, after) = rest.split_at(PART_MAX);
            path.push(format!("{part}."));
            rest = after;
        }
        path.join(rest)
    }

    /// The locks whose files lie in a folder, `begun` being what its own name says of theirs.
    fn keys_in(folder: &Path, begun: &str, found: &mut Vec<Key>) -> std::io::Result<()> {
        for file in std::fs::read_dir(folder)? {
            let name = file?.file_name().to_string_lossy().into_owned();
            match name.strip_suffix('.') {
                Some(part) => Folder::keys_in(&folder.join(&name), &format!("{begun}{part}"), found)?,
                None => found.extend(key_of(&format!("{begun}{name}"))),
            }
        }
        Ok(())
    }
}

/// The file of one lock, ours alone until it is dropped.
struct Opened {
    file: File,
    line: Line,
}

impl Folder {
    /// Open the file of a lock and keep all other processes out.
    async fn opened(&self, key: &Key, doing: &'static str) -> Result<Opened> {
        let fault = |what: String| Fault::transient(NAME, doing, what);
        let path = self.file_of(key);
        let parent = path.parent().unwrap_or(&self.options.path);
        std::fs::create_dir_all(parent).map_err(|it| fault(format!("{}: {it}", parent.display())))?;
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(&path).map_err(|it| fault(format!("{}: {it}", path.display())))?;
        let give_up_at = self.clock.now().after(self.options.timeout);
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if give_up_at <= self.clock.now() {
                return Err(fault(format!("another process keeps {}", path.display())));
            }
            self.clock.sleep(Duration::from_millis(1)).await;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|it| fault(it.to_string()))?;
        let foreign = || Fault::permanent(NAME, doing, format!("{} was not written by us", path.display()));
        let mut line = Line::read(&text).ok_or_else(foreign)?;
        line.forget_expired(self.clock.now());
        Ok(Opened { file, line })
    }
}

impl Opened {
    /// Write the line back. The file is freed for others when we are dropped.
    fn save(mut self, doing: &'static str) -> Result<()> {
        let text = self.line.text();
        let written = self.file.rewind().and_then(|()| self.file.set_len(0));
        let written = written.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|it| Fault::transient(NAME, doing, it.to_string()))
    }
}

/// A place in a line.
#[derive(Debug)]
pub struct FilePlace {
    folder: Folder,
    claim: Claim,
    pace: Pace,
}

const TAKING: &str = "taking the lock";
const RENEWING: &str = "renewing the lock";
const LEAVING: &str = "giving the lock back";

impl Place for FilePlace {
    async fn turn(&mut self) -> Result<Turn> {
        self.claim.check_load(NAME)?;
        let mut opened = self.folder.opened(&self.claim.key, TAKING).await?;
        let (line, claim) = (&mut opened.line, &self.claim);
        let now = self.folder.clock.now();
        let at = match line.position(claim.id) {
            Some(at) => at,
            // A try does not join a line that it does not head.
            None if !claim.patient && !line.entries.is_empty() => {
                return Ok(Turn::wait(claim.ttl, u64::try_from(line.entries.len()).ok()));
            }
            None => {
                let label = &claim.label;
                let (host, pid) = (label.host.clone(), label.pid);
                line.entries.push(Entry { id: claim.id, counter: 0, expires: now, host, pid });
                line.entries.len() - 1
            }
        };
        line.entries[at].expires = now.after(claim.ttl);
        let turn = if at == 0 {
            if line.entries[0].counter == 0 {
                // A file that was deleted by hand must not make fences go back.
                let floor = u64::try_from(time_of_day().as_millis()).unwrap_or(0);
                line.counter = if line.counter == 0 { floor } else { line.counter + 1 };
                line.entries[0].counter = line.counter;
            }
            Turn::Held(Grant::new(line.entries[0].counter, claim.ttl).wanted(line.is_wanted()))
        } else {
            // One of those before us holds; the others wait.
            self.pace.saw(now, u64::try_from(at - 1).unwrap_or(u64::MAX));
            let next_change = line.entries[at - 1].expires - now;
            Turn::wait(next_change.min(claim.ttl / 3), u64::try_from(at).ok())
        };
        opened.save(TAKING)?;
        Ok(turn)
    }

    async fn changed(&mut self) {
        // Nobody can call us: look again, as often as the line moves. Being early is allowed.
        let still = self.pace.still(self.folder.clock.now());
        self.folder.clock.sleep(self.pace.pause(still, self.claim.ttl / 3)).await;
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let mut opened = self.folder.opened(&self.claim.key, RENEWING).await?;
        let line = &mut opened.line;
        let Some(entry) = line.entries.iter_mut().find(|it| it.id == self.claim.id && it.counter != 0) else {
            return Ok(Renewal::Lost);
        };
        entry.expires = self.folder.clock.now().after(self.claim.ttl);
        let wanted = line.is_wanted();
        opened.save(RENEWING)?;
        Ok(Renewal::held(self.claim.ttl, wanted))
    }

    async fn leave(&mut self) -> Result<()> {
        let mut opened = self.folder.opened(&self.claim.key, LEAVING).await?;
        opened.line.entries.retain(|it| it.id != self.claim.id);
        opened.save(LEAVING)
    }
}

impl Inspect for Folder {
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut keys = Vec::new();
        Folder::keys_in(&self.options.path, "", &mut keys)
            .map_err(|it| Fault::transient(NAME, "listing the locks", it.to_string()))?;
        keys.sort();
        let mut infos = Vec::new();
        for key in keys.iter().filter(|it| it.as_str().starts_with(prefix)) {
            infos.extend(self.show(key).await?);
        }
        Ok(infos)
    }

    async fn show(&self, key: &Key) -> Result<Option<LockInfo>> {
        let opened = self.opened(key, "looking at the lock").await?;
        let now = self.clock.now();
        let people = opened.line.entries.iter().map(|it| occupant(it, it.expires - now));
        let (holders, waiters) = people.partition(|it: &Occupant| it.fence.is_some());
        let info = LockInfo::new(key.clone(), holders, waiters);
        Ok((!info.is_free()).then_some(info))
    }

    async fn break_lock(&self, key: &Key) -> Result<Vec<Occupant>> {
        let doing = "breaking the lock";
        let mut opened = self.opened(key, doing).await?;
        let held = opened.line.entries.iter().filter(|it| it.counter != 0);
        let broken = held.map(|it| occupant(it, Duration::ZERO)).collect();
        opened.line.entries.retain(|it| it.counter == 0);
        opened.save(doing)?;
        Ok(broken)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let what = format!("locks are files in {}", self.options.path.display());
        Ok(vec![Finding::fine(what, "all processes of this host that use the folder exclude each other")])
    }
}

fn occupant(entry: &Entry, valid_for: Duration) -> Occupant {
    let fence = (entry.counter != 0).then(|| Fence::of_grant(entry.counter));
    Occupant::new(entry.label(), valid_for).fence(fence)
}
