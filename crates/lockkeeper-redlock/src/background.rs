//! A thread of our own, on which verbs are finished that outlasted their time-out.

use std::fmt;
use std::sync::OnceLock;

use lockkeeper_core::{Spawn, Task};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

/// Started when first needed; ends when its owner and its last task are gone.
#[derive(Default)]
pub(crate) struct OwnThread(OnceLock<Option<UnboundedSender<Task>>>);

impl fmt::Debug for OwnThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnThread")
    }
}

impl Spawn for OwnThread {
    fn spawn(&self, task: Task) {
        match self.0.get_or_init(start) {
            Some(tasks) => drop(tasks.send(task)),
            // No thread is to be had. The caller's runtime is the next best place.
            None => drop(tokio::runtime::Handle::try_current().map(|it| it.spawn(task))),
        }
    }
}

fn start() -> Option<UnboundedSender<Task>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let (send, receive) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("lockkeeper-redlock".into());
    thread.spawn(move || runtime.block_on(work(receive))).ok().map(|_| send)
}

async fn work(mut tasks: UnboundedReceiver<Task>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            task = tasks.recv() => match task {
                Some(task) => drop(running.spawn(task)),
                None => break,
            },
            Some(_) = running.join_next() => {}
        }
    }
    while running.join_next().await.is_some() {}
}
