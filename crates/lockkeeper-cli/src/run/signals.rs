//! Signals that reach lockkeeper: those it passes on, and those it needs to know of its child.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Failure, Result};

/// A signal that came in.
pub(crate) enum Incoming {
    /// Something happened to a child.
    Child,
    /// We were stopped and go on.
    Continued,
    /// Somebody asks the command for something, most often to end.
    Ask(Signal),
}

/// All signals we listen to.
pub(crate) struct Signals {
    listened: Vec<(Signal, unix::Signal)>,
    /// Somebody wants us to end, and the command may never have heard it.
    end: Option<Signal>,
}

/// What is passed on to the command.
const PASSED_ON: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        let ignored = ignored();
        // A signal that our caller ignores (`nohup`) stays ignored, for the command too.
        let wanted = PASSED_ON.into_iter().filter(|it| !ignored.contains(it));
        let listened = wanted.chain([Signal::CHILD, Signal::CONT]).map(|signal| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((signal, stream))
        });
        let listened = listened.collect::<std::io::Result<_>>();
        let listened = listened.map_err(|it| Failure::system("signals cannot be heard", &it))?;
        Ok(Signals { listened, end: None })
    }

    /// Remember that somebody wants us to end.
    pub(crate) fn keep_end(&mut self, signal: Signal) {
        self.end = Some(signal);
    }

    /// The signal by which somebody wanted us to end, if one was kept.
    pub(crate) fn end(&self) -> Option<Signal> {
        self.end
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub(crate) async fn next(&mut self) -> Incoming {
        poll_fn(|cx| {
            let mut came =
                self.listened.iter_mut().filter_map(|(signal, stream)| match stream.poll_recv(cx) {
                    Poll::Ready(Some(())) => Some(*signal),
                    _ => None,
                });
            match came.next() {
                Some(Signal::CHILD) => Poll::Ready(Incoming::Child),
                Some(Signal::CONT) => Poll::Ready(Incoming::Continued),
                Some(signal) => Poll::Ready(Incoming::Ask(signal)),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// Which of the signals that we pass on are ignored by inheritance. Only Linux tells.
fn ignored() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0);
    let is_set = |signal: &Signal| mask >> (signal.as_raw() - 1) & 1 == 1;
    PASSED_ON.into_iter().filter(is_set).collect()
}
