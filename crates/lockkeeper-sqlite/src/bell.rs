//! The bell on which the connection's thread sleeps: its own process rings it, and so does whoever leaves a lock that one
//! of this process waits for.
//!
//! A bell that others can ring is a Unix datagram socket in the folder `FILE-bells` beside the file. Its name is a random
//! number, which is also part of the ids of all claims made here. So whoever lets somebody in knows from the claim
//! alone where to ring. It is a hint and no more: the file says who holds, and those who wait look at it also without.

use std::fs;
use std::io::{Error, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use lockkeeper_core::{ClaimId, Moment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A bell that nobody needed for this long is taken down.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// After a bell could not be hung, or was not heard, the next try comes not before this.
const RETRY: Duration = Duration::from_secs(1);
/// How many rings the kernel keeps for us at least, if nobody told it otherwise (`net.unix.max_dgram_qlen`).
pub(crate) const RINGS_KEPT: usize = 10;
/// How many of those in the folder are looked at when a bell is hung: dead processes leave theirs behind.
const CLEAN_MAX: usize = 32;

/// Which bell a claim's process has: the last four bytes of its claims' ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number([u8; 4]);

impl Number {
    pub(crate) fn random() -> Option<Self> {
        ClaimId::random().ok().map(Number::of)
    }

    pub(crate) fn of(id: ClaimId) -> Self {
        let [.., a, b, c, d] = *id.as_bytes();
        Number([a, b, c, d])
    }

    /// The id under which the file knows a claim of ours.
    pub(crate) fn mark(self, id: ClaimId) -> ClaimId {
        let mut bytes = *id.as_bytes();
        bytes[12..].copy_from_slice(&self.0);
        ClaimId::from_bytes(bytes)
    }

    fn name(self) -> String {
        format!("{:08x}", u32::from_be_bytes(self.0))
    }

    fn is_name(name: &str) -> bool {
        name.len() == 8 && name.bytes().all(|it| it.is_ascii_hexdigit())
    }
}

/// How this process wakes its thread.
#[derive(Debug)]
pub(crate) struct Caller {
    /// In one order (`SeqCst`, and a fence) with what is sent: whoever sends looks after that whether the thread sleeps, and the
    /// thread says that it sleeps before it looks for the last time. So one of the two sees the other.
    sleeps: Arc<AtomicBool>,
    pipe: PipeWriter,
}

impl Caller {
    /// Wake the thread if it sleeps. What it shall see was sent before.
    pub(crate) fn call(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // One byte for each sleep: the pipe is never full.
            let _ = (&self.pipe).write(&[1]);
        }
    }
}

impl Drop for Caller {
    /// Its thread shall notice that nobody is left who could ask.
    fn drop(&mut self) {
        self.call();
    }
}

/// The thread's side.
#[derive(Debug)]
pub(crate) struct Bell {
    number: Number,
    /// The file whose claims are rung for.
    file: PathBuf,
    /// `SeqCst`, as is told of the caller.
    sleeps: Arc<AtomicBool>,
    pipe: PipeReader,
    /// Where others ring.
    hung: Option<Hung>,
    needed: Moment,
    not_before: Moment,
}

/// A socket with a name.
#[derive(Debug)]
struct Hung {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent() {
            // It stays as long as there is one of somebody else in it.
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Bell {
    /// A bell that only this process can ring, for claims in `file`.
    pub(crate) fn new(number: Number, file: &Path) -> std::io::Result<(Self, Caller)> {
        let (pipe, writer) = std::io::pipe()?;
        let sleeps = Arc::<AtomicBool>::default();
        let caller = Caller { sleeps: sleeps.clone(), pipe: writer };
        let start = Moment::from_nanos(0);
        let bell = Bell {
            number,
            file: file.to_owned(),
            sleeps,
            pipe,
            hung: None,
            needed: start,
            not_before: start,
        };
        Ok((bell, caller))
    }

    /// Sleep until somebody rings, or `span` is over, or `ready` has something.
    pub(crate) fn sleep<T>(&mut self, span: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        self.sleeps.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut found = ready();
        if found.is_none() {
            let woken = self.wait(span);
            found = ready();
            self.sleeps.store(false, Ordering::SeqCst);
            if woken {
                // It was readable, so this does not block; what is in it means nothing.
                let _ = self.pipe.read(&mut [0; 64]);
            }
        } else {
            self.sleeps.store(false, Ordering::SeqCst);
        }
        found
    }

    /// Whether our own process rang.
    fn wait(&self, span: Duration) -> bool {
        let span = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        };
        let mut ends = vec![PollFd::from_borrowed_fd(self.pipe.as_fd(), PollFlags::IN)];
        ends.extend(self.hung.iter().map(|it| PollFd::from_borrowed_fd(it.socket.as_fd(), PollFlags::IN)));
        poll(&mut ends, Some(&span)).is_ok() && !ends[0].revents().is_empty()
    }

    /// The claims for which somebody rang.
    pub(crate) fn rung(&self) -> impl Iterator<Item = ClaimId> {
        let mut id = [0; 16];
        std::iter::from_fn(move || {
            let socket = &self.hung.as_ref()?.socket;
            loop {
                match socket.recv(&mut id) {
                    Ok(16) => return Some(ClaimId::from_bytes(id)),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return None,
                }
            }
        })
    }

    /// Somebody waits: hang it where others can ring it, if that is possible.
    pub(crate) fn need(&mut self, now: Moment) {
        self.needed = now;
        if self.hung.is_none() && self.not_before <= now {
            self.not_before = now.after(RETRY);
            self.hung = hang(&self.file, self.number).ok();
        }
    }

    /// Nobody waits: take it down after a while.
    pub(crate) fn rest(&mut self, now: Moment) {
        if self.due() <= now {
            self.hung = None;
        }
    }

    /// When it should be taken down if nobody waits.
    pub(crate) fn due(&self) -> Moment {
        if self.hung.is_some() { self.needed.after(IDLE_MAX) } else { Moment::NEVER }
    }

    /// Others can ring it.
    pub(crate) fn is_hung(&self) -> bool {
        self.hung.is_some()
    }

    /// Nobody rang though somebody should have: perhaps its name is gone.
    pub(crate) fn hang_anew(&mut self, now: Moment) {
        if self.not_before <= now {
            self.hung = None;
        }
    }

    /// Its folder may be another one now.
    pub(crate) fn take_down(&mut self) {
        self.hung = None;
        self.not_before = Moment::from_nanos(0);
    }
}

/// What rings the bells of others.
#[derive(Debug)]
pub(crate) struct Hand {
    number: Number,
    folder: PathBuf,
    /// Made when it is first needed.
    socket: Option<UnixDatagram>,
}

impl Hand {
    /// For claims in `file`. Those of `number` are our own.
    pub(crate) fn new(number: Number, file: &Path) -> Self {
        Hand { number, folder: folder(file), socket: None }
    }

    /// Whether it is a claim of this process.
    pub(crate) fn is_own(&self, id: ClaimId) -> bool {
        Number::of(id) == self.number
    }

    /// Ring for a claim of another process.
    pub(crate) fn ring(&mut self, id: ClaimId) {
        let number = Number::of(id);
        let path = self.folder.join(number.name());
        let sent = self.socket().and_then(|it| it.send_to(id.as_bytes(), &path));
        if sent.is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused) {
            // Its process is dead.
            let _ = fs::remove_file(&path);
        }
    }

    fn socket(&mut self) -> std::io::Result<&UnixDatagram> {
        if self.socket.is_none() {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            self.socket = Some(socket);
        }
        self.socket.as_ref().ok_or_else(|| Error::from(ErrorKind::NotFound))
    }
}

fn folder(file: &Path) -> PathBuf {
    let mut name = file.to_owned().into_os_string();
    name.push("-bells");
    name.into()
}

/// Make the socket. Whoever may write the file may ring.
fn hang(file: &Path, number: Number) -> std::io::Result<Hung> {
    let folder = folder(file);
    let of_file = fs::metadata(file)?;
    let may_write = of_file.mode() & 0o222;
    match fs::create_dir(&folder) {
        // Read, write and search for all who may write.
        Ok(()) => share(&folder, &of_file, may_write | may_write << 1 | may_write >> 1),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => clean(&folder),
        Err(error) => return Err(error),
    }
    let path = folder.join(number.name());
    let socket = UnixDatagram::bind(&path)?;
    let hung = Hung { socket, path };
    hung.socket.set_nonblocking(true)?;
    share(&hung.path, &of_file, may_write);
    Ok(hung)
}

/// Give it to the file's owner and group, if we may.
fn share(path: &Path, of_file: &fs::Metadata, mode: u32) {
    let (user, group) = (Some(of_file.uid()), Some(of_file.gid()));
    let _ = chown(path, user, group).or_else(|_| chown(path, None, group));
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
}

/// Remove some of those that dead processes left.
fn clean(folder: &Path) {
    let Ok(hand) = UnixDatagram::unbound() else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(CLEAN_MAX) {
        let is_bell = entry.file_name().to_str().is_some_and(Number::is_name)
            && entry.file_type().is_ok_and(|it| it.is_socket());
        if is_bell && hand.connect(entry.path()).is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bell(file: &Path) -> (Bell, Caller) {
        Bell::new(Number::random().unwrap(), file).unwrap()
    }

    fn names(file: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder(file)).into_iter().flatten().flatten();
        entries.map(|it| it.file_name().into_string().unwrap()).collect()
    }

    fn now() -> Moment {
        Moment::from_nanos(0).after(RETRY)
    }

    #[test]
    fn whoever_is_rung_for_hears_which_claim_and_nobody_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        fs::write(&file, "").unwrap();
        let ((mut two, _), (mut three, _)) = (bell(&file), bell(&file));
        let mut one = Hand::new(Number::random().unwrap(), &file);
        two.need(now());
        three.need(now());
        let id = two.number.mark(ClaimId::random().unwrap());
        one.ring(id);
        assert!(
            two.sleep(Duration::from_secs(60), || None::<()>).is_none(),
            "it is woken, with nothing to do"
        );
        assert_eq!(two.rung().collect::<Vec<_>>(), [id]);
        assert_eq!(three.rung().count(), 0);
        // To ring for somebody who has no bell is in vain, and no error.
        one.ring(ClaimId::random().unwrap());
    }

    #[test]
    fn what_was_asked_before_or_during_its_sleep_wakes_the_thread() {
        let (mut bell, caller) = bell(Path::new("nowhere"));
        let (sender, requests) = std::sync::mpsc::channel();
        for number in 0..1000 {
            let (sender, caller) = (&sender, &caller);
            let got = std::thread::scope(|scope| {
                scope.spawn(move || {
                    sender.send(number).unwrap();
                    caller.call();
                });
                let mut got = None;
                while got.is_none() {
                    got = bell.sleep(Duration::from_secs(600), || requests.try_recv().ok());
                }
                got
            });
            assert_eq!(got, Some(number));
        }
    }

    #[test]
    fn nothing_is_left_of_it_when_nobody_waits_nor_when_its_process_died() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        fs::write(&file, "").unwrap();
        let (mut one, _caller) = bell(&file);
        one.need(now());
        assert_eq!(names(&file), [one.number.name()]);
        // A socket that nobody has open any more, as a killed process leaves it, and something of somebody else.
        let dead = Number::random().unwrap();
        drop(UnixDatagram::bind(super::folder(&file).join(dead.name())).unwrap());
        fs::write(super::folder(&file).join("README"), "").unwrap();
        let (mut two, _caller) = bell(&file);
        two.need(now());
        assert_eq!(names(&file).len(), 3, "the dead one is gone: {:?}", names(&file));
        drop(UnixDatagram::bind(super::folder(&file).join(dead.name())).unwrap());
        Hand::new(one.number, &file).ring(dead.mark(ClaimId::random().unwrap()));
        assert_eq!(names(&file).len(), 3, "whoever rings removes it as well");
        fs::remove_file(super::folder(&file).join("README")).unwrap();
        one.rest(now());
        assert!(one.is_hung(), "somebody may wait again soon");
        for bell in [&mut one, &mut two] {
            bell.rest(now().after(IDLE_MAX));
        }
        assert!(!super::folder(&file).exists());
    }

    #[test]
    fn whoever_may_write_the_file_may_ring() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        for (mode, of_folder, of_bell) in
            [(0o644, 0o700, 0o200), (0o660, 0o770, 0o220), (0o666, 0o777, 0o222)]
        {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let hung = hang(&file, Number::random().unwrap()).unwrap();
            let mode_of = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!((mode_of(&super::folder(&file)), mode_of(&hung.path)), (of_folder, of_bell));
        }
    }
}
