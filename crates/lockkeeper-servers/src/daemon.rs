//! One server process that can be stopped, killed, paused and started again on the same ports and data.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::kit::locked;

use tempfile::TempDir;

use crate::Port;
use crate::process::{KitError, Launch, Process, eventually};

const READY_MAX: Duration = Duration::from_secs(30);
const STOP_MAX: Duration = Duration::from_secs(5);

type Answer = Pin<Box<dyn Future<Output = Result<(), KitError>> + Send>>;
type Check = Arc<dyn Fn() -> Answer + Send + Sync>;

/// One server process that can be stopped, killed, paused and started again on the same ports and data.
///
/// Every method takes `&self`, so that one task may break a server that others use.
pub struct Daemon {
    // Dropped first: the process must be gone before its folder and its ports are.
    process: Mutex<Option<Process>>,
    launch: Launch,
    ready: Check,
    folder: TempDir,
    ports: Vec<Port>,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<u16> = self.ports.iter().map(Port::number).collect();
        f.debug_struct("Daemon").field("ports", &ports).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl Daemon {
    /// A server that is not running yet. `ready` asks it once whether it serves.
    pub(crate) fn new<F, A>(launch: Launch, folder: TempDir, ports: Vec<Port>, ready: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), KitError>> + Send + 'static,
    {
        Daemon {
            process: Mutex::new(None),
            launch,
            ready: Arc::new(move || Box::pin(ready())),
            folder,
            ports,
        }
    }

    /// The port that clients use.
    pub fn port(&self) -> u16 {
        self.ports.first().map_or(0, Port::number)
    }

    /// Address and port that clients use.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The process id, or `None` while it does not run.
    pub fn pid(&self) -> Option<u32> {
        locked(&self.process).as_ref().map(Process::pid)
    }

    /// The folder of this server, with its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The last `lines` lines that the server printed.
    pub fn log_tail(&self, lines: usize) -> String {
        locked(&self.process).as_ref().map_or_else(String::new, |it| it.log_tail(lines))
    }

    /// Stop the server in its tracks: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&self) -> Result<(), KitError> {
        self.running(Process::pause)
    }

    /// Let the server run on after [`Daemon::pause`].
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self) -> Result<(), KitError> {
        self.running(Process::resume)
    }

    /// Kill the server, as a power cut would.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&self) -> Result<(), KitError> {
        self.running(Process::kill)?;
        *locked(&self.process) = None;
        Ok(())
    }

    /// Stop the server in good order. Does nothing if it does not run.
    ///
    /// # Cancel safety
    /// Dropping the future kills the server.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn stop(&self) -> Result<(), KitError> {
        let process = locked(&self.process).take();
        match process {
            Some(mut process) => process.stop(STOP_MAX).await,
            None => Ok(()),
        }
    }

    /// Start a stopped or killed server on its old ports and whatever it had saved, and wait until it serves.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the server running, perhaps not ready.
    ///
    /// # Errors
    /// If it runs already, or does not become ready; the text holds the end of its log.
    pub async fn start(&self) -> Result<(), KitError> {
        self.launch()?;
        self.wait_ready().await
    }

    /// Stop and start.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the server stopped, or running and perhaps not ready.
    ///
    /// # Errors
    /// As for [`Daemon::start`].
    pub async fn restart(&self) -> Result<(), KitError> {
        self.stop().await?;
        self.start().await
    }

    /// Whether it runs no more although nobody stopped or killed it.
    pub fn has_ended(&self) -> bool {
        locked(&self.process).as_mut().is_some_and(|it| it.expect_running().is_err())
    }

    /// Start it again with further arguments, after it has ended by itself or was stopped, and wait until it serves.
    pub(crate) async fn start_with(&self, args: &[String]) -> Result<(), KitError> {
        self.end();
        let process = self.launch.clone().args(args).spawn()?;
        *locked(&self.process) = Some(process);
        self.wait_ready().await
    }

    /// Start the process without waiting, so that several can come up side by side.
    pub(crate) fn launch(&self) -> Result<(), KitError> {
        let mut process = locked(&self.process);
        if process.is_some() {
            return Err(KitError::new(format!("the server on port {} runs already", self.port())));
        }
        *process = Some(self.launch.spawn()?);
        Ok(())
    }

    /// Wait until the server answers as one that serves.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    ///
    /// # Errors
    /// If it does not run, ends, or is not ready in time; the text holds the end of its log.
    pub async fn wait_ready(&self) -> Result<(), KitError> {
        let ready = eventually(READY_MAX, || async {
            // The process first: a stranger may answer on the port that ours could not have.
            self.running(Process::expect_running)?;
            (self.ready)().await
        });
        let Err(error) = ready.await else { return Ok(()) };
        Err(match locked(&self.process).as_ref() {
            Some(process) if !error.is_hopeless() => process.complaint(&format!("is not ready: {error}")),
            _ => error,
        })
    }

    /// End the server at once, as dropping does.
    pub(crate) fn end(&self) {
        drop(locked(&self.process).take());
    }

    fn running(&self, act: impl FnOnce(&mut Process) -> Result<(), KitError>) -> Result<(), KitError> {
        match locked(&self.process).as_mut() {
            Some(process) => act(process),
            None => Err(KitError::new(format!("the server on port {} does not run", self.port())).hopeless()),
        }
    }
}

/// Start again on other ports if a stranger took one of ours between the claim and the start.
pub(crate) async fn retry_ports<T, F>(start: impl Fn() -> F) -> Result<T, KitError>
where
    F: Future<Output = Result<T, KitError>>,
{
    for _ in 0..3 {
        match start().await {
            Err(error) if error.is_port_taken() => {}
            done => return done,
        }
    }
    start().await
}

/// Start all, then wait for all: they come up side by side.
pub(crate) async fn start_all<'a>(daemons: impl IntoIterator<Item = &'a Daemon>) -> Result<(), KitError> {
    let daemons: Vec<&Daemon> = daemons.into_iter().collect();
    for daemon in &daemons {
        daemon.launch()?;
    }
    for daemon in &daemons {
        daemon.wait_ready().await?;
    }
    Ok(())
}
