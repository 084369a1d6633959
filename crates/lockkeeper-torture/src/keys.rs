//! The names that are fought for, all under the prefix of one run, and what of them is left in the store.

use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect};

use crate::Trouble;
use crate::dice::Dice;

pub(crate) const PERMITS: &str = "permits";
/// For readers and writers.
pub(crate) const SHARED: &str = "room";
/// How many permits there are.
pub(crate) const PERMITS_OF: u32 = 3;
/// What a reader weighs beside a writer in the histories.
pub(crate) const ROOM: u32 = 1000;
/// Locks that are taken alone and by twos.
const COOL: u64 = 3;
/// Locks that one process takes again and again, and others now and then: for each process so many.
const OWN: u64 = 3;
/// One round in so many goes to a lock of another process. Rare enough that a lock mostly is taken again before it is
/// recalled; otherwise its process would stop keeping it for half a minute.
const VISITS: u64 = 150;
/// Locks that are asked for and given up.
const STORM: u64 = 3;

/// What a round asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hot,
    Cool,
    Two,
    Read,
    Write,
    Permits,
    Lead,
    /// Stays with its process where the store and the locker keep locks warm.
    Own,
}

impl Kind {
    /// What the task with this number asks for. Each keeps to its own, so that a lock which is held for long keeps only
    /// those from their work who want it.
    pub(crate) fn draw(task: u64, dice: &mut Dice) -> Self {
        match (task % 11, dice.below(3)) {
            (0 | 1, _) => Kind::Hot,
            (2, 0) => Kind::Two,
            (2, _) => Kind::Cool,
            // Several of a process share, so that it must count its own.
            (3 | 4, _) => Kind::Read,
            (5, 0 | 1) => Kind::Write,
            (6 | 7, _) => Kind::Permits,
            // Two, so that an idle lock is also taken by another task than the one that left it.
            (9 | 10, _) => Kind::Own,
            (_, 0) => Kind::Lead,
            (_, 1) => Kind::Read,
            _ => Kind::Cool,
        }
    }

    /// Its name in the store, for the process at this place of so many.
    pub(crate) fn key(self, prefix: &str, (place, of): (usize, usize), dice: &mut Dice) -> String {
        match self {
            Kind::Hot => format!("{prefix}hot"),
            Kind::Cool | Kind::Two => format!("{prefix}cool-{}", dice.below(COOL)),
            Kind::Read | Kind::Write => format!("{prefix}{SHARED}"),
            Kind::Permits => format!("{prefix}{PERMITS}"),
            Kind::Lead => format!("{prefix}lead"),
            Kind::Own => {
                let whose = if dice.below(VISITS) == 0 { dice.index(of) } else { place };
                format!("{prefix}own-{whose}-{}", dice.below(OWN))
            }
        }
    }

    /// The other of two.
    pub(crate) fn other(prefix: &str, dice: &mut Dice) -> String {
        Kind::Cool.key(prefix, (0, 1), dice)
    }
}

/// What the locks of a storm of cancellations begin with.
pub(crate) fn storm_prefix(prefix: &str) -> String {
    format!("{prefix}storm-")
}

pub(crate) fn storm_key(prefix: &str, dice: &mut Dice) -> String {
    format!("{}{}", storm_prefix(prefix), dice.below(STORM))
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Wait until nobody holds or waits for a lock that begins so; what is still there after `within`.
///
/// # Cancel safety
/// Safe to drop at any time.
///
/// # Errors
/// If the store cannot be asked for that long.
pub async fn leftovers(
    store: &dyn DynInspect,
    prefix: &str,
    within: Duration,
) -> Result<Vec<String>, Trouble> {
    let clock = Clock::boot();
    let due = clock.now().after(within);
    loop {
        let seen = store.list(prefix).await;
        let over = due <= clock.now();
        match seen {
            Ok(seen) => {
                let left: Vec<String> =
                    seen.iter().filter(|it| !it.is_free()).map(|it| it.key.to_string()).collect();
                if left.is_empty() || over {
                    return Ok(left);
                }
            }
            Err(error) if over => return Err(error.into()),
            // A store that has just come back.
            Err(_) => {}
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_mostly_takes_its_own_locks_and_visits_those_of_all_others() {
        let mut dice = Dice::seeded(1);
        let all: Vec<String> = (0..10_000).map(|_| Kind::Own.key("p/", (1, 3), &mut dice)).collect();
        let of = |place: usize| all.iter().filter(|it| it.starts_with(&format!("p/own-{place}-"))).count();
        assert!((1..100).contains(&of(0)) && (1..100).contains(&of(2)), "{} {}", of(0), of(2));
        assert_eq!(of(0) + of(1) + of(2), all.len());
    }
}
