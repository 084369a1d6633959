//! The watch: one loop over the command, the guard and the signals, until the command has ended.

use std::time::Duration;

use lockkeeper::LostReason;
use lockkeeper::spi::{Clock, Moment};
use rustix::process::Signal;

use crate::args::Run;
use crate::exit::Result;
use crate::output::{self, span};
use crate::run::LastFault;
use crate::run::child::{Job, State};
use crate::run::held::Held;
use crate::run::plan::Plan;
use crate::run::signals::{Incoming, Signals};
use crate::run::terminal::Terminal;
use crate::run::warden::Warden;

/// How far the end of the command has come.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// It was asked to end, and is killed at this moment.
    Asked(LostReason, Moment),
    /// It was killed at this moment.
    Killed(LostReason, Moment),
}

impl Phase {
    fn reason(self) -> Option<LostReason> {
        match self {
            Phase::Running => None,
            Phase::Asked(reason, _) | Phase::Killed(reason, _) => Some(reason),
        }
    }
}

pub(crate) struct Watch<'a> {
    held: &'a Held,
    /// What is held, for a sentence.
    lock: String,
    fault: &'a LastFault,
    job: &'a Job,
    warden: &'a mut Warden,
    terminal: Option<&'a mut Terminal>,
    clock: Clock,
    plan: Plan,
    max_hold: Duration,
    held_since: Moment,
    phase: Phase,
    /// When the next look was to be.
    wake_at: Moment,
    /// We stood still ourselves: until then a renewal is tried, before the command is asked to end.
    hope_until: Option<Moment>,
}

/// How long a killed command may take to go. One that hangs in the kernel can take for ever.
const DYING_MAX: Duration = Duration::from_secs(10);

/// Later than this we are not woken unless we stood still.
const LATE: Duration = Duration::from_millis(100);

/// How often we look whether a renewal has come.
const HOPE_PACE: Duration = Duration::from_millis(5);

/// More than it takes from the grant in the store to the guard in our hands, in good times.
const ANSWER_MAX: Duration = Duration::from_millis(250);

impl<'a> Watch<'a> {
    pub(crate) fn new(
        held: &'a Held,
        args: &Run,
        fault: &'a LastFault,
        job: &'a Job,
        warden: &'a mut Warden,
        terminal: Option<&'a mut Terminal>,
    ) -> Self {
        let clock = Clock::boot();
        let max_hold = args.max_hold.unwrap_or(Duration::MAX);
        Watch {
            held,
            lock: String::new(),
            fault,
            job,
            warden,
            terminal,
            plan: Plan::new(args.ttl().min(max_hold)),
            max_hold,
            held_since: clock.now(),
            phase: Phase::Running,
            wake_at: Moment::NEVER,
            hope_until: None,
            clock,
        }
    }

    /// What it is called in a sentence.
    pub(crate) fn of(mut self, lock: String) -> Self {
        self.lock = lock;
        self
    }

    /// When the lock was had.
    pub(crate) fn held_since(mut self, moment: Moment) -> Self {
        self.held_since = moment;
        self
    }

    /// Let the command run, and see it to its end: by itself (`None`), or because the lock ended.
    pub(crate) async fn until_the_end(mut self, signals: &mut Signals) -> Result<Option<LostReason>> {
        let mut lost = self.held.lost();
        self.wake_at = self.step()?;
        if matches!(self.phase, Phase::Running) {
            self.job.go();
        }
        loop {
            match self.job.state()? {
                State::Ended => return Ok(self.phase.reason()),
                State::Stopped(signal) => self.command_stopped(signal),
                State::Running => {}
            }
            if let Phase::Killed(reason, at) = self.phase
                && at.after(DYING_MAX) <= self.clock.now()
            {
                return Ok(Some(reason));
            }
            tokio::select! {
                biased;
                reason = &mut lost, if !matches!(self.phase, Phase::Killed(..)) => self.kill(reason),
                incoming = signals.next() => {
                    if let Some(end) = self.end_of_all(&incoming) {
                        signals.keep_end(end);
                    }
                    self.heard(&incoming);
                }
                () = self.clock.sleep_until(self.wake_at) => {}
            }
            self.wake_at = self.step()?;
        }
    }

    /// Look at the clock, do what is due, and say when to look again.
    fn step(&mut self) -> Result<Moment> {
        let now = self.clock.now();
        if let Phase::Running = self.phase {
            let deadline = now.after(self.held.remaining());
            self.warden.tell(self.plan.warden_at(deadline))?;
            if now < self.plan.ask_at(deadline) {
                self.hope_until = None;
                return Ok(self.plan.look_at(now, deadline));
            }
            if let Some(look_at) = self.hope(now, deadline) {
                return Ok(look_at);
            }
            self.ask_to_end(deadline);
        }
        if let Phase::Asked(reason, kill_at) = self.phase {
            if now < kill_at {
                return Ok(kill_at);
            }
            self.kill(reason);
        }
        Ok(now.after(DYING_MAX))
    }

    /// If we come too late because we stood still (Ctrl-Z and `fg`, SIGSTOP and SIGCONT, a suspended machine), nobody
    /// has tried to renew: the locker does so now, and we give it half of the time that is left. Answers when to look.
    fn hope(&mut self, now: Moment, deadline: Moment) -> Option<Moment> {
        let kill_at = self.plan.kill_at(deadline);
        if self.hope_until.is_none() && self.wake_at.after(LATE) < now {
            self.hope_until = Some(now.after((kill_at - now) / 2));
        }
        self.hope_until.filter(|until| now < *until).map(|until| now.after(HOPE_PACE).min(until))
    }

    /// There is a little time left: let the command end in order.
    fn ask_to_end(&mut self, deadline: Moment) {
        // The guard's deadline is the smaller of what renewals gave and what `max_hold` allows. When the
        // hold began is known to us but for the time the answer took.
        let hold_until = self.held_since.after(self.max_hold).before(ANSWER_MAX);
        let reason = if hold_until <= deadline { LostReason::MaxHold } else { LostReason::Expired };
        self.phase = Phase::Asked(reason, self.plan.kill_at(deadline));
        let lock = &self.lock;
        let left = span(deadline - self.clock.now());
        let why = self.fault.explain(reason);
        output::say(&format!("{lock} ends in {left}: {why}; the command is asked to stop"));
        self.job.send_to_all(Signal::TERM, self.warden.pid());
        // One that stands still cannot hear it.
        self.job.send(Signal::CONT);
    }

    /// There is no time left.
    fn kill(&mut self, reason: LostReason) {
        // What was said first is the cause; that the lock is gone afterwards is the effect.
        let reason = self.phase.reason().unwrap_or(reason);
        self.phase = Phase::Killed(reason, self.clock.now());
        self.job.send_to_all(Signal::KILL, self.warden.pid());
    }

    /// Whether a signal is meant for us too, should the command be stopped before it ends by itself: TERM always is,
    /// others if the command is being stopped already.
    fn end_of_all(&self, incoming: &Incoming) -> Option<Signal> {
        let Incoming::Ask(signal) = incoming else { return None };
        let is_end = *signal == Signal::TERM || !matches!(self.phase, Phase::Running);
        is_end.then_some(*signal)
    }

    fn heard(&mut self, incoming: &Incoming) {
        match incoming {
            Incoming::Child => self.job.reap_adopted(self.warden.pid()),
            Incoming::Ask(signal) => self.job.send(*signal),
            Incoming::Continued => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.continued(self.job.group());
                }
                self.go_on();
            }
        }
    }

    fn command_stopped(&mut self, signal: i32) {
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        if terminal.command_stopped(self.job, signal) {
            self.go_on();
        }
    }

    /// Let the command go on, if the lock was not lost while we all stood still.
    fn go_on(&mut self) {
        if self.held.is_valid() {
            self.job.go();
        }
    }
}
