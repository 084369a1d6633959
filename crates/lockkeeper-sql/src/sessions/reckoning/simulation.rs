//! The lease rule against a server that is not there: virtual time, seeds, answers that come late, processes that stand still.

use super::*;

/// How many seeds every run of the tests tries, and how much happens in each.
const SEEDS: u64 = 3000;
const STEPS: u32 = 60;

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // Splitmix: every state leads to another, and near ones to far ones.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Mostly a moment; now and then longer than any ttl here.
    fn delay(&mut self, ttl: Duration) -> Duration {
        let most = match self.below(12) {
            0 => ttl * 2,
            1..4 => ttl / 3,
            _ => Duration::from_millis(2),
        };
        most / 1000 * u32::try_from(self.below(1000)).unwrap_or(0)
    }
}

/// One session, as the server has it.
struct Server {
    ttl: Duration,
    /// What its clock is ahead of ours, in microseconds.
    ahead: i64,
    /// When it ends the session if it hears nothing more.
    ends_at: Moment,
}

impl Server {
    fn clock(&self, at: Moment) -> i64 {
        i64::try_from(at.as_nanos() / 1000).unwrap() + self.ahead
    }

    /// A statement arrives and is done after a while. When that is; `None` if the session was over.
    fn done(&mut self, arrives: Moment, takes: Duration) -> Option<Moment> {
        if self.ends_at <= arrives {
            return None;
        }
        let done = arrives.after(takes);
        self.ends_at = done.after(self.ttl);
        Some(done)
    }
}

#[derive(Debug, Default)]
struct Counts {
    beats: u64,
    waits: u64,
    unsure: u64,
    lost: u64,
}

/// Whoever believes in its session is right: the server has not ended it, in whatever order answers arrive.
fn live(seed: u64, counts: &mut Counts) {
    let mut dice = Dice(seed);
    let ttl = [Duration::from_millis(50), Duration::from_secs(1), Duration::from_secs(30)]
        [usize::try_from(dice.below(3)).unwrap()];
    let mut now = Moment::from_nanos(1_000_000_000 + dice.below(1_000_000_000));
    // Also clocks that are years off.
    let ahead = i64::try_from(dice.below(1 << 50)).unwrap() - (1 << 40);
    let mut server = Server { ttl, ahead, ends_at: now.after(ttl) };
    let (sent_at, arrives) = (now, now.after(dice.delay(ttl / 4)));
    server.ends_at = arrives.after(ttl);
    let ours = Reckoning::new(ttl, sent_at, server.clock(arrives));
    now = arrives.after(dice.delay(ttl / 4));
    for _ in 0..STEPS {
        now = now.after(dice.delay(ttl));
        let waits = dice.below(3) == 0;
        if !waits && ours.proven_until() <= now {
            counts.lost += 1;
            return;
        }
        let (sent_at, arrives) = (now, now.after(dice.delay(ttl)));
        let takes = if waits { dice.delay(ttl) * 3 } else { dice.delay(ttl / 100) };
        let Some(done) = server.done(arrives, takes) else {
            counts.lost += 1;
            return;
        };
        // The answer stands in a buffer for as long as the network or a stopped process likes.
        let heard = done.after(dice.delay(ttl));
        now = heard;
        if waits {
            counts.waits += 1;
            let told = ours.let_in(heard, sent_at, server.clock(done));
            counts.unsure += u64::from(told.is_none());
            let late = told.is_some_and(|it| done < it);
            assert!(!late, "seed {seed}: let in at {done:?}, believed {told:?}");
        } else {
            counts.beats += 1;
            ours.beaten(sent_at, server.clock(done));
        }
        assert!(
            ours.proven_until() <= server.ends_at,
            "seed {seed}: believed until {:?}, ended by the server at {:?}",
            ours.proven_until(),
            server.ends_at
        );
    }
}

#[test]
fn nobody_believes_in_a_session_for_longer_than_the_server_keeps_it() {
    let mut counts = Counts::default();
    for seed in 0..SEEDS {
        live(seed, &mut counts);
    }
    // A simulation in which nothing happens proves nothing.
    let Counts { beats, waits, unsure, lost } = counts;
    assert!(SEEDS < beats && SEEDS < waits, "{counts:?}");
    assert!(SEEDS / 10 < lost && SEEDS / 10 < unsure && unsure < waits, "{counts:?}");
}
