//! When to stop the command: pure arithmetic on the guard's deadline.

use std::time::Duration;

use lockkeeper::spi::Moment;

/// How far before the guard's deadline each step is taken.
///
/// ```text
///                         TERM        KILL   warden's KILL    deadline
///  ─────────────────────────┼───────────┼─────────┼──────────────┼──▶
///                           │           │◀── margin (grace/3) ──▶│
///                           │◀──────── grace (span/3) ──────────▶│
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    grace: Duration,
    margin: Duration,
    pace: Duration,
}

/// More time than this to end in order is not given; the lock serves others better.
const GRACE_MAX: Duration = Duration::from_secs(5);

/// More time than this to die is not needed, even on a loaded machine.
const MARGIN_MAX: Duration = Duration::from_secs(1);

impl Plan {
    /// For a lock that lasts `span` without a renewal. A healthy renewal comes at a third of the ttl, so two
    /// thirds are left when it is due: a third is low enough never to fire in good times.
    pub(crate) fn new(span: Duration) -> Self {
        let grace = (span / 3).min(GRACE_MAX);
        Plan { grace, margin: (grace / 3).min(MARGIN_MAX), pace: span / 6 }
    }

    /// When the group is asked to end.
    pub(crate) fn ask_at(&self, deadline: Moment) -> Moment {
        deadline.before(self.grace)
    }

    /// When it is killed.
    pub(crate) fn kill_at(&self, deadline: Moment) -> Moment {
        deadline.before(self.margin)
    }

    /// When the warden kills it because we did not.
    pub(crate) fn warden_at(&self, deadline: Moment) -> Moment {
        deadline.before(self.margin / 2)
    }

    /// When to look at the guard again. Often enough that the warden always knows of a recent renewal.
    pub(crate) fn look_at(&self, now: Moment, deadline: Moment) -> Moment {
        now.after(self.pace).min(self.ask_at(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_come_in_order_and_before_the_deadline() {
        for millis in [1, 10, 100, 1_000, 10_000, 3_600_000] {
            let span = Duration::from_millis(millis);
            let (plan, start) = (Plan::new(span), Moment::from_nanos(1_000_000_000));
            let deadline = start.after(span);
            let steps =
                [start, plan.ask_at(deadline), plan.kill_at(deadline), plan.warden_at(deadline), deadline];
            assert!(steps.is_sorted_by(|one, next| one < next), "{span:?}: {steps:?}");
        }
    }

    #[test]
    fn a_healthy_renewal_comes_before_the_command_is_asked_to_end() {
        let (plan, start) = (Plan::new(Duration::from_secs(10)), Moment::from_nanos(0));
        let deadline = start.after(Duration::from_secs(10));
        assert!(plan.ask_at(deadline) > start.after(Duration::from_secs(10) / 3));
        assert!(plan.look_at(start, deadline) < plan.ask_at(deadline));
    }

    #[test]
    fn a_guard_without_end_needs_no_look() {
        let plan = Plan::new(Duration::MAX);
        assert!(plan.look_at(Moment::from_nanos(0), Moment::NEVER) > Moment::from_nanos(1 << 60));
    }
}
