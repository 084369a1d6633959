//! The terminal, if there is one: whose keyboard it is while the command runs.
//!
//! The command has a process group of its own, so it needs the terminal handed over before it may read from
//! it, and Ctrl-C and Ctrl-Z go to it alone while it has it.

use std::io::{self, IsTerminal as _, Stdin};

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::process::{self, Pid, Signal};
use rustix::termios;

use crate::run::child::Job;

pub(crate) struct Terminal {
    stdin: Stdin,
    given: bool,
}

impl Terminal {
    /// The terminal, if we read from one.
    pub(crate) fn find() -> Option<Self> {
        let stdin = io::stdin();
        let known = stdin.is_terminal() && termios::tcgetpgrp(&stdin).is_ok();
        known.then_some(Terminal { stdin, given: false })
    }

    /// Hand it over at once if input and output both are the terminal. In a pipeline the other programs may
    /// need it (`lockkeeper run … | less`): there the command gets it when it asks.
    pub(crate) fn give_at_start(&mut self, group: Pid) {
        if io::stdout().is_terminal() {
            self.give(group);
        }
    }

    fn is_ours(&self) -> bool {
        termios::tcgetpgrp(&self.stdin).is_ok_and(|it| it == process::getpgrp())
    }

    fn give(&mut self, group: Pid) {
        self.given = self.is_ours() && termios::tcsetpgrp(&self.stdin, group).is_ok();
    }

    /// Have it again, if we gave it away.
    pub(crate) fn take_back(&mut self) {
        if !self.given {
            return;
        }
        self.given = false;
        // Who sets the owner of a terminal from the background gets TTOU, unless it is blocked.
        let mut mask = SigSet::empty();
        mask.add(Masked::SIGTTOU);
        if mask.thread_block().is_ok() {
            let _ = termios::tcsetpgrp(&self.stdin, process::getpgrp());
            let _ = mask.thread_unblock();
        }
    }

    /// The command stands still. Answers whether it shall go on now.
    pub(crate) fn command_stopped(&mut self, job: &Job, by: i32) -> bool {
        if by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw() {
            // It wants the keyboard. If we are in the background too, it waits until the shell brings us
            // forward.
            self.give(job.group());
            return self.given;
        }
        if !self.given {
            return false;
        }
        // Ctrl-Z. Nobody of the group may run on while we do not renew, also not who ignores Ctrl-Z.
        job.send(Signal::STOP);
        self.take_back();
        // We stand still here until the shell continues us.
        let _ = process::kill_current_process_group(Signal::TSTP);
        self.give(job.group());
        true
    }

    /// The shell has continued us, perhaps brought us forward.
    pub(crate) fn continued(&mut self, group: Pid) {
        if !self.given {
            self.give_at_start(group);
        }
    }
}
