//! A child process that never outlives its owner: killed on drop, and by the kernel if the test is killed.

mod installed;
mod tree;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use lockkeeper_core::clock::{Clock, pause_thread};
use rustix::process::{Pid, Signal};

pub use installed::find;
pub(crate) use installed::{chosen, ids_of, missing};
pub use tree::is_alive;
use tree::{descendants, signal_if_there, stands_still, until_gone};

/// What went wrong while the kit ran a server, in words that say what to do about it.
///
/// `Debug` prints the same text as `Display`, so that an `expect` in a test shows it readably.
pub struct KitError {
    text: String,
    port_taken: bool,
    hopeless: bool,
}

impl KitError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        KitError { text: text.into(), port_taken: false, hopeless: false }
    }

    /// Whether a server did not start because somebody else took its port. Another try helps.
    pub fn is_port_taken(&self) -> bool {
        self.port_taken
    }

    pub(crate) fn is_hopeless(&self) -> bool {
        self.hopeless
    }

    /// The same, but [`eventually`] need not try again.
    #[must_use]
    pub(crate) fn hopeless(mut self) -> Self {
        self.hopeless = true;
        self
    }
}

impl fmt::Display for KitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for KitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for KitError {}

impl From<io::Error> for KitError {
    fn from(error: io::Error) -> Self {
        KitError::new(error.to_string())
    }
}

/// How to start a program; kept, so that it can be started again in the same way.
#[derive(Clone)]
pub struct Launch {
    program: String,
    package: &'static str,
    args: Vec<OsString>,
    envs: Vec<(&'static str, OsString)>,
    user: Option<&'static str>,
    dir: PathBuf,
    log: PathBuf,
    advice: Option<&'static str>,
    stop_signal: Signal,
    end_signal: Signal,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the environment, which may hold a password.
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// `program` (a name or a path) from the Debian package `package`, run in the folder `dir`.
    ///
    /// What it prints goes to the file `<program>.log` in `dir`.
    pub fn new(program: &str, package: &'static str, dir: &Path) -> Self {
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        Launch {
            program: program.to_owned(),
            package,
            args: Vec::new(),
            envs: Vec::new(),
            user: None,
            dir: dir.to_owned(),
            log: dir.join(format!("{name}.log")),
            advice: None,
            stop_signal: Signal::TERM,
            end_signal: Signal::KILL,
        }
    }

    /// Add one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Add arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Set an environment variable. Nothing but `PATH` is inherited: a stray `PGPORT` must not matter.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    /// Run as this user if we are root. Some servers refuse root; others give it up by themselves, which
    /// would also clear the kernel's order to die with us.
    #[must_use]
    pub fn user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    /// The signal that asks the program to stop; SIGTERM unless told.
    #[must_use]
    pub fn stop_signal(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }

    /// The signal that ends the program at once when it is dropped or our own process is killed; SIGKILL
    /// unless told. For a program that should still tidy up outside its folder.
    #[must_use]
    pub fn end_signal(mut self, signal: Signal) -> Self {
        self.end_signal = signal;
        self
    }

    /// From the line that begins with this, what the program prints is general advice, which buries the cause of a
    /// failure: an error shows what stands before it.
    #[must_use]
    pub fn advice_from(mut self, line: &'static str) -> Self {
        self.advice = Some(line);
        self
    }

    /// The file that receives what the program prints.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Start the program.
    ///
    /// # Errors
    /// If the program (or `setpriv`) is not installed, or the system cannot start it.
    pub fn spawn(&self) -> Result<Process, KitError> {
        let program = find(&self.program, self.package)?;
        let mut command = Command::new(find("setpriv", "util-linux")?);
        if let Some(user) = self.user.filter(|_| rustix::process::geteuid().is_root()) {
            ids_of(user, self.package)?;
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups"]);
        }
        let dying = if self.end_signal == Signal::QUIT { "QUIT" } else { "KILL" };
        command.args(["--pdeathsig", dying, "--"]).arg(program).args(&self.args);
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
        command.env_clear().env("PATH", path).env("LC_ALL", "C").env("HOME", &self.dir);
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        // A group of its own: the terminal's Ctrl-C is for the test, which then ends us in order.
        command.current_dir(&self.dir).process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let child = spawn_from_lasting_thread(command)
            .map_err(|error| KitError::new(format!("could not start `{}`: {error}", self.program)))?;
        Ok(Process { pid: pid_of(&child)?, child, ended: None, launch: self.clone() })
    }

    /// Run a program that ends by itself, such as `initdb`, for at most `within`.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    ///
    /// # Errors
    /// If it cannot be started, fails, or takes longer; the text shows the end of its log.
    pub async fn run(&self, within: Duration) -> Result<(), KitError> {
        let mut process = self.spawn()?;
        match process.ended_within(within).await? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(process.complaint(&format!("failed with {status}"))),
            None => Err(process.complaint(&format!("did not finish within {within:?}"))),
        }
    }

    /// Run a program that ends by itself, as [`Launch::run`] does, and return what it printed.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    ///
    /// # Errors
    /// As for [`Launch::run`].
    pub async fn output(mut self, within: Duration) -> Result<String, KitError> {
        let file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.path().clone_into(&mut self.log);
        self.run(within).await?;
        let text = fs::read(file.path())?;
        Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
    }
}

/// A running child process. Dropping it kills it and everything it started.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    child: Child,
    ended: Option<ExitStatus>,
    launch: Launch,
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it still runs (a paused process does).
    ///
    /// # Errors
    /// If the system cannot tell.
    pub fn is_running(&mut self) -> Result<bool, KitError> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.is_none())
    }

    /// Wait until it has ended by itself. Blocks the thread: only for programs that end at once.
    pub(crate) fn wait(&mut self) -> Result<(), KitError> {
        if self.ended.is_none() {
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// Send it a signal. Does nothing if it has ended.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<(), KitError> {
        // Until `try_wait` has collected the child its pid cannot be given to a stranger.
        if self.is_running()? {
            rustix::process::kill_process(self.pid, signal).map_err(io::Error::from)?;
        }
        Ok(())
    }

    /// Stop it in its tracks (SIGSTOP), with everything it started. When this returns they all stand still: the
    /// signal alone is only on its way to threads that are running on another core.
    ///
    /// # Errors
    /// If the system refuses, or if something still runs after ten seconds.
    pub fn pause(&mut self) -> Result<(), KitError> {
        let mut all = self.freeze()?;
        all.push(self.pid);
        for _ in 0..10_000 {
            if self.ended.is_some() || all.iter().all(|it| stands_still(*it)) {
                return Ok(());
            }
            pause_thread(Duration::from_millis(1));
        }
        Err(self.complaint("was told to stand still and runs on"))
    }

    /// Let it run on after [`Process::pause`].
    ///
    /// # Errors
    /// If the system refuses.
    pub fn resume(&mut self) -> Result<(), KitError> {
        if self.is_running()? {
            for pid in descendants(self.pid)? {
                signal_if_there(pid, Signal::CONT)?;
            }
        }
        self.signal(Signal::CONT)
    }

    /// Kill it (SIGKILL), with everything it started, and wait until it is gone.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(&mut self) -> Result<(), KitError> {
        let descendants = self.freeze()?;
        for pid in &descendants {
            signal_if_there(*pid, Signal::KILL)?;
        }
        self.signal(Signal::KILL)?;
        self.wait()?;
        // What they share, memory for example, is free for the next server only when the last of them is gone.
        descendants.into_iter().for_each(until_gone);
        Ok(())
    }

    /// Ask it to stop, and kill it if it still runs after `within`.
    ///
    /// # Cancel safety
    /// If dropped half-way the process has been asked to stop and may still run; its owner still has it.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn stop(&mut self, within: Duration) -> Result<(), KitError> {
        self.signal(self.launch.stop_signal)?;
        // A paused process would not see the request.
        self.resume()?;
        if self.ended_within(within).await?.is_none() {
            self.kill()?;
        }
        Ok(())
    }

    /// The last `lines` lines that it printed.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.launch.log, lines, self.launch.advice).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    async fn ended_within(&mut self, within: Duration) -> Result<Option<ExitStatus>, KitError> {
        let clock = Clock::boot();
        let due = clock.now().after(within);
        while self.is_running()? && clock.now() < due {
            clock.sleep(POLL).await;
        }
        Ok(self.ended)
    }

    /// Stop it and its descendants; the latter are returned. Stopped, none of them can end or fork, so that
    /// no pid of the last look can pass to a stranger before we use it.
    fn freeze(&mut self) -> Result<Vec<Pid>, KitError> {
        self.signal(Signal::STOP)?;
        if self.ended.is_some() {
            return Ok(Vec::new());
        }
        let mut frozen = Vec::new();
        loop {
            let all = descendants(self.pid)?;
            if all.iter().all(|it| frozen.contains(it)) {
                return Ok(all);
            }
            for pid in &all {
                signal_if_there(*pid, Signal::STOP)?;
            }
            frozen = all;
        }
    }

    /// An error if the process has ended, with the end of its log.
    pub(crate) fn expect_running(&mut self) -> Result<(), KitError> {
        if self.is_running()? {
            return Ok(());
        }
        let status = self.ended.map_or_else(String::new, |it| it.to_string());
        Err(self.complaint(&format!("ended by itself ({status})")).hopeless())
    }

    /// An error about this process, with the end of its log.
    pub(crate) fn complaint(&self, what: &str) -> KitError {
        let (program, log) = (&self.launch.program, self.log_tail(20));
        let mut error = KitError::new(format!("`{program}` {what}; the end of its log:\n{log}"));
        // Every server used here prints the system's words for EADDRINUSE.
        error.port_taken = log.to_lowercase().contains("address already in use");
        error
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure, and the kernel still ends the child with our own process.
        if self.launch.end_signal != Signal::KILL && self.ended.is_none() {
            drop((self.signal(self.launch.end_signal), self.resume()));
            for _ in 0..END_POLLS_MAX {
                if !matches!(self.is_running(), Ok(true)) {
                    return;
                }
                std::thread::sleep(POLL);
            }
        }
        drop(self.kill());
    }
}

/// How often to look, while dropping, whether the program has tidied up: one second.
const END_POLLS_MAX: u32 = 100;

const POLL: Duration = Duration::from_millis(10);
const ONE_CHECK_MAX: Duration = Duration::from_secs(2);

/// Ask `check` every few milliseconds until it says `Ok`, for at most `within`.
///
/// # Cancel safety
/// Safe to drop at any time.
///
/// # Errors
/// What `check` last said, if the time is over.
pub async fn eventually<T, F>(within: Duration, mut check: impl FnMut() -> F) -> Result<T, KitError>
where
    F: Future<Output = Result<T, KitError>>,
{
    let clock = Clock::boot();
    let due = clock.now().after(within);
    loop {
        // A paused or overloaded server may not answer at all.
        let answer = tokio::select! {
            answer = check() => answer,
            () = clock.sleep(ONE_CHECK_MAX) => Err(KitError::new("no answer")),
        };
        match answer {
            Ok(value) => return Ok(value),
            Err(error) if error.hopeless => return Err(error),
            Err(mut error) if clock.now() >= due => {
                error.text = format!("not within {within:?}: {}", error.text);
                return Err(error);
            }
            Err(_) => clock.sleep(POLL).await,
        }
    }
}

/// The kernel's "die with your parent" means the parent *thread*, and a test's thread ends long before the
/// servers that several tests share. So one thread that never ends starts every child.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts processes is gone");
    let orders = ORDERS.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                // If the caller has gone away the child is killed by the parent's end at the latest.
                drop(reply.send(command.spawn()));
            }
        });
        orders
    });
    let (reply, answer) = mpsc::channel();
    orders.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn pid_of(child: &Child) -> Result<Pid, KitError> {
    let raw = i32::try_from(child.id()).ok();
    raw.and_then(Pid::from_raw).ok_or_else(|| KitError::new("the system gave a child no usable pid"))
}

/// The last `lines` lines before the one that begins with `end`.
fn tail(log: &Path, lines: usize, end: Option<&str>) -> io::Result<String> {
    const KEPT: u64 = 64 * 1024;
    let mut file = File::open(log)?;
    let from = file.metadata()?.len().saturating_sub(KEPT);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all = text.lines().take_while(|line| !end.is_some_and(|it| line.starts_with(it)));
    let all: Vec<&str> = all.collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}
