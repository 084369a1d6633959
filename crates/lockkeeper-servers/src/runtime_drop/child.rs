//! A process that ends at any panic, and when it stands still.

use std::io::Write as _;
use std::panic;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// No single step takes that long, however busy the machine.
const STEP_MAX: Duration = Duration::from_secs(2 * 60);

/// Do as `panic = "abort"` does: tell what happened, and end.
pub(super) fn end_at_any_panic() {
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        say(&format!("panic on the thread {:?}: {info}", thread.name().unwrap_or("without a name")));
        say(&std::backtrace::Backtrace::force_capture().to_string());
        std::process::abort();
    }));
}

pub(super) fn say(what: &str) {
    let mut out = std::io::stdout();
    // Whoever listened has gone: then nobody misses it.
    drop(writeln!(out, "{what}").and_then(|()| out.flush()));
}

/// What the process does, watched by a thread that ends it if it does one thing for too long.
pub(super) struct Steps(mpsc::Sender<String>);

impl Steps {
    pub(super) fn watched() -> Self {
        let (sender, steps) = mpsc::channel::<String>();
        std::thread::spawn(move || {
            let mut step = String::new();
            loop {
                match steps.recv_timeout(STEP_MAX) {
                    Ok(next) => step = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        say(&format!("no end within {STEP_MAX:?}: {step}"));
                        std::process::abort();
                    }
                }
            }
        });
        Steps(sender)
    }

    pub(super) fn now(&self, step: &str) {
        say(step);
        // The watching thread ends with us.
        drop(self.0.send(step.to_owned()));
    }
}
