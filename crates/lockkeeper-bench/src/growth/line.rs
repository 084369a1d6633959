//! A hand-off against the number of claims that stand in line.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_core::backend::{Backend, Lease, Place, Turn};
use lockkeeper_core::{Claim, Clock, Key};

use super::sheet::Figures;
use super::tell;
use crate::Answer;
use crate::measure::median;
use crate::report::say;

const SIZES: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const HAND_OFFS: usize = 40;
/// Nobody in line needs to ask again while it is measured: a claim lives by itself for so long.
const LONG: Duration = Duration::from_mins(15);
/// Or by a session, which its store keeps alive; a longer one is not allowed by every server.
const SESSION: Duration = Duration::from_secs(30);
/// A line that grows more slowly than this is not grown further.
const GROW_MAX: Duration = Duration::from_secs(20);
/// Nor are more hand-offs of one length timed.
const TIMED_MAX: Duration = Duration::from_secs(5);

/// How many stand in line, and what a hand-off takes then, in microseconds. Nothing where the line was not grown so far.
pub(crate) type Curve = Vec<(usize, Option<f64>)>;

pub(super) async fn grow<B: Backend>(backend: &B, most: usize) -> Answer<()> {
    let (clock, mut line) = (Clock::boot(), Line::begin(backend).await?);
    let began = clock.now();
    for size in SIZES.into_iter().filter(|it| *it <= most) {
        while line.waiting.len() < size && clock.now() - began < GROW_MAX {
            line.join().await?;
        }
        if line.waiting.len() < size {
            tell(&Figures::Line(size, None))?;
            continue;
        }
        let (mut times, timed_from) = (Vec::new(), clock.now());
        while times.len() < HAND_OFFS && clock.now() - timed_from < TIMED_MAX {
            times.push(line.hand_off().await?.as_secs_f64() * 1e6);
        }
        let usual = median(&mut times);
        say(&format!("{size} in line: {usual:.0} µs from one to the next, {} times", times.len()));
        tell(&Figures::Line(size, Some(usual)))?;
    }
    // With the server goes the line: to give up ten thousand places one by one would take longer than to build it.
    drop(line);
    Ok(())
}

/// One who holds, and those who wait, in order.
struct Line<'a, B: Backend> {
    backend: &'a B,
    holder: B::Place,
    waiting: VecDeque<B::Place>,
    clock: Clock,
}

impl<'a, B: Backend> Line<'a, B> {
    async fn begin(backend: &'a B) -> Answer<Self> {
        let mut holder = backend.enter(claim(backend)?);
        let Turn::Held(_) = holder.turn().await? else { return Err("the lock was not free".into()) };
        Ok(Line { backend, holder, waiting: VecDeque::new(), clock: Clock::boot() })
    }

    /// One more at the end.
    async fn join(&mut self) -> Answer<()> {
        let mut place = self.backend.enter(claim(self.backend)?);
        let Turn::Wait { .. } = place.turn().await? else {
            return Err("it holds although another does".into());
        };
        self.waiting.push_back(place);
        Ok(())
    }

    /// From the holder's leaving until the next one knows that it holds. The one who left stands in line again.
    async fn hand_off(&mut self) -> Answer<Duration> {
        let mut next = self.waiting.pop_front().ok_or("nobody waits")?;
        let began = self.clock.now();
        self.holder.leave().await?;
        while let Turn::Wait { recheck, .. } = next.turn().await? {
            tokio::select! {
                () = next.changed() => {}
                () = self.clock.sleep(recheck) => {}
            }
        }
        let took = self.clock.now() - began;
        self.holder = next;
        self.join().await?;
        Ok(took)
    }
}

fn claim(backend: &impl Backend) -> Answer<Claim> {
    let ttl = if backend.profile().lease == Lease::Claim { LONG } else { SESSION };
    Ok(Claim::new(Key::new("growth")?, ttl)?)
}
