//! The server as a process of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use lockkeeper::Meters;
use lockkeeper_serve::{HotNames, Listen, Serve};

use super::client::Client;
use crate::Answer;

/// The word that makes this program a server.
pub(crate) const SERVER: &str = "server";
pub(super) const TOKEN: &str = "a-token-of-the-benchmark";

/// `URL LISTEN`: serves this store there until its input ends.
pub(crate) fn work(words: &[String]) -> Answer<()> {
    let [url, listen] = words else { return Err("usage: URL LISTEN".into()) };
    // All as the command does.
    let threads = lockkeeper_serve::worker_threads();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let (store, meters, hot) = (lockkeeper::open(url).await?, Meters::new(), HotNames::default());
        let locker = store.locker.observer(meters.clone()).observer(hot.clone()).build();
        let serve = Serve::with(locker, store.inspect, TOKEN)?.allow_locks().hot_names(hot);
        let serve = serve.metrics(move || meters.openmetrics());
        let listener = Listen::parse(listen)?.bind().await?;
        writeln!(std::io::stdout(), "{}", listener.shown())?;
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
        Ok(serve.run(listener, async { _ = ended.await }).await?)
    })
}

/// A server, ended with the last of its clients.
#[derive(Clone)]
pub(super) struct Serving(Arc<Running>);

struct Running {
    child: Child,
    /// Where its socket is.
    _folder: tempfile::TempDir,
    shown: String,
}

impl Serving {
    /// On a socket.
    pub(super) fn start(url: &str) -> Answer<Self> {
        let folder = tempfile::tempdir()?;
        let listen = format!("unix:{}", folder.path().join("socket").display());
        Serving::at(url, &listen, folder)
    }

    /// On a port of this machine.
    pub(super) fn on_tcp(url: &str) -> Answer<Self> {
        Serving::at(url, "127.0.0.1:0", tempfile::tempdir()?)
    }

    fn at(url: &str, listen: &str, folder: tempfile::TempDir) -> Answer<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SERVER).arg(url).arg(listen);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut said)?;
        let (shown, is_there) = (said.trim().to_owned(), !said.is_empty());
        let serving = Serving(Arc::new(Running { child, _folder: folder, shown }));
        if is_there { Ok(serving) } else { Err("the server did not begin".into()) }
    }

    /// Where it listens: a URL, or `unix:` and a path.
    pub(super) fn shown(&self) -> &str {
        &self.0.shown
    }

    /// Its resident memory in KiB.
    pub(super) fn resident(&self) -> Answer<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.child.id()))?;
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.split_whitespace().next().ok_or("no number")?.parse()?)
    }

    /// Connect, hold a lock, let go of it: the connection is closed, and nobody waits for what the server does then.
    pub(super) async fn hold_once(&self, name: &str) -> Answer<()> {
        Client::hold(self, name).await.map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
