//! The queue of a process against a plain model of it: random programs of asking, going away and giving back, and the
//! shortest one that differs.

#![allow(clippy::expect_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::clock::pause_thread;
use lockkeeper_core::{Clock, Guard, Locker, Memory, Result, SharedGuard};

/// What somebody wants. Those of one name are all about one room of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Permits(u32),
    Read,
    Write,
}

impl Kind {
    /// How much of which room: a writer fills it.
    fn load(self) -> (u32, u32) {
        match self {
            Kind::Permits(count) => (count, ROOM),
            Kind::Read => (1, u32::MAX),
            Kind::Write => (u32::MAX, u32::MAX),
        }
    }
}

const ROOM: u32 = 3;
/// Milliseconds until somebody who does not come in never will: only a program that differs meets it.
const PATIENCE: usize = 2000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Ask(Kind),
    /// Whoever waits at this place of all who wait goes away.
    Withdraw(usize),
    /// Whoever holds at this place of all who hold gives back; by dropping, if told.
    Release(usize, bool),
}

/// First come, first served; whoever fits beside those inside enters, and nobody passes one who waits.
#[derive(Default)]
struct Model {
    inside: Vec<(usize, Kind)>,
    line: VecDeque<(usize, Kind)>,
}

impl Model {
    fn settle(&mut self) {
        while let Some(&(id, kind)) = self.line.front() {
            let all = self.inside.iter().map(|it| it.1).chain([kind]).map(Kind::load);
            let (weight, capacity) = all.fold((0_u64, u32::MAX), |(sum, least), (weight, capacity)| {
                (sum + u64::from(weight), least.min(capacity))
            });
            if u64::from(capacity) < weight {
                return;
            }
            self.inside.push((id, kind));
            self.line.pop_front();
        }
    }
}

enum Held {
    Alone(Guard),
    Beside(SharedGuard),
}

type Asked = Pin<Box<dyn Future<Output = Result<Held>>>>;

/// The real thing, one poll at a time.
struct Queue {
    locker: Locker,
    inside: Vec<(usize, Held)>,
    line: Vec<(usize, Asked)>,
}

impl Queue {
    fn ask(&mut self, id: usize, kind: Kind) {
        let locker = self.locker.clone();
        let mut asked: Asked = Box::pin(async move {
            Ok(match kind {
                Kind::Write => Held::Alone(locker.write("room").await?),
                Kind::Read => Held::Beside(locker.read("room").await?),
                Kind::Permits(count) => Held::Beside(locker.permits("room", count, ROOM).await?),
            })
        });
        match poll(&mut asked) {
            Poll::Ready(held) => self.inside.push((id, held.expect("the store is in memory"))),
            Poll::Pending => self.line.push((id, asked)),
        }
    }

    /// Everybody who was called comes in, however long that takes.
    fn settle(&mut self) {
        loop {
            let before = self.line.len();
            for (id, mut asked) in std::mem::take(&mut self.line) {
                match poll(&mut asked) {
                    Poll::Ready(held) => self.inside.push((id, held.expect("the store is in memory"))),
                    Poll::Pending => self.line.push((id, asked)),
                }
            }
            if self.line.len() == before {
                return;
            }
        }
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Run a program on both; where they first differ.
fn difference(program: &[Op]) -> Option<String> {
    let clock = Clock::virtual_from(Duration::from_secs(1));
    let locker = Locker::builder(Memory::new(clock.clone())).clock(clock).build();
    let mut queue = Queue { locker, inside: Vec::new(), line: Vec::new() };
    let mut model = Model::default();
    for (id, op) in program.iter().enumerate() {
        match *op {
            Op::Ask(kind) => {
                queue.ask(id, kind);
                model.line.push_back((id, kind));
            }
            Op::Withdraw(at) if !model.line.is_empty() => {
                let (who, _) = model.line.remove(at % model.line.len())?;
                queue.line.retain(|it| it.0 != who);
            }
            Op::Release(at, dropped) if !model.inside.is_empty() => {
                let (who, _) = model.inside.remove(at % model.inside.len());
                let at = queue.inside.iter().position(|it| it.0 == who)?;
                let (_, held) = queue.inside.remove(at);
                give_back(held, dropped);
            }
            _ => {}
        }
        model.settle();
        let sorted = |mut all: Vec<usize>| {
            all.sort_unstable();
            all
        };
        let wanted = sorted(model.inside.iter().map(|it| it.0).collect());
        let mut real = Vec::new();
        // Our own thread may still be at it.
        for _ in 0..PATIENCE {
            queue.settle();
            real = sorted(queue.inside.iter().map(|it| it.0).collect());
            if wanted.len() <= real.len() {
                break;
            }
            pause_thread(Duration::from_millis(1));
        }
        if real != wanted {
            return Some(format!("after step {id}: {real:?} are inside and {wanted:?} should be"));
        }
        let valid = |it: &(usize, Held)| match &it.1 {
            Held::Alone(it) => it.is_valid(),
            Held::Beside(it) => it.is_valid(),
        };
        if !queue.inside.iter().all(valid) {
            return Some(format!("after step {id}: one inside is not valid"));
        }
    }
    None
}

fn give_back(held: Held, dropped: bool) {
    if dropped {
        return drop(held);
    }
    let mut released: Pin<Box<dyn Future<Output = Result<()>>>> = match held {
        Held::Alone(it) => Box::pin(it.release()),
        Held::Beside(it) => Box::pin(it.release()),
    };
    // A store in memory answers at once.
    assert!(matches!(poll(&mut released), Poll::Ready(Ok(()))), "a release that waits");
}

/// Leave out whatever is not needed to see the difference.
fn shortest(mut program: Vec<Op>) -> Vec<Op> {
    let mut at = 0;
    while at < program.len() {
        let mut shorter = program.clone();
        shorter.remove(at);
        if difference(&shorter).is_some() {
            program = shorter;
            at = 0;
        } else {
            at += 1;
        }
    }
    program
}

/// Numbers that a seed decides.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
}

fn program(seed: u64) -> Vec<Op> {
    let state = &mut (seed << 20);
    let op = |state: &mut u64| {
        let place = usize::try_from(draw(state) % 5).unwrap_or(0);
        match draw(state) % 10 {
            0 | 1 => Op::Ask(Kind::Write),
            // Readers and permits under one name are not for each other: readers of a process weigh as much as one.
            2..5 if seed.is_multiple_of(2) => Op::Ask(Kind::Read),
            2..5 => Op::Ask(Kind::Permits(u32::try_from(draw(state) % 3).unwrap_or(0) + 1)),
            5 => Op::Withdraw(place),
            _ => Op::Release(place, draw(state).is_multiple_of(2)),
        }
    };
    (0..40).map(|_| op(state)).collect()
}

/// Found by the model: the one behind was called only by the next release, however long that took.
#[tokio::test]
async fn whoever_fits_beside_the_next_enters_with_it() {
    for dropped in [false, true] {
        let program = [
            Op::Ask(Kind::Permits(2)),
            Op::Ask(Kind::Permits(2)),
            Op::Ask(Kind::Permits(1)),
            Op::Release(0, dropped),
        ];
        assert_eq!(difference(&program), None);
    }
}

#[tokio::test]
async fn the_queue_does_what_its_model_does() {
    for seed in 0..3000 {
        let program = program(seed);
        if difference(&program).is_some() {
            let program = shortest(program);
            let mut steps = String::new();
            for (at, op) in program.iter().enumerate() {
                let _ = writeln!(steps, "{at:>3} {op:?}");
            }
            panic!("seed {seed}: {}\n{steps}", difference(&program).unwrap_or_default());
        }
    }
}

/// All rows of numbers of which the one at each place is below what is given for it.
fn rows(below: &[usize]) -> Vec<Vec<usize>> {
    below.iter().fold(vec![Vec::new()], |all, below| {
        let longer = |row: Vec<usize>| (0..*below).map(move |it| row.iter().copied().chain([it]).collect());
        all.into_iter().flat_map(longer).collect()
    })
}

#[tokio::test]
async fn every_order_of_up_to_four_does_what_its_model_does() {
    let (mut programs, mut waited) = (0, 0);
    let permits = [Kind::Write, Kind::Permits(1), Kind::Permits(2), Kind::Permits(3)];
    for kinds in [&[Kind::Write, Kind::Read][..], &permits] {
        for length in 1..=4 {
            let places: Vec<usize> = (1..=length).rev().collect();
            for asked in rows(&vec![kinds.len(); length]) {
                for released in rows(&places) {
                    let asks = asked.iter().map(|it| Op::Ask(kinds[*it]));
                    let program: Vec<Op> =
                        asks.chain(released.iter().map(|it| Op::Release(*it, false))).collect();
                    assert_eq!(difference(&program), None, "{program:?}");
                    programs += 1;
                    waited += usize::from(asked.contains(&0) && 1 < length);
                }
            }
        }
    }
    // Both kinds were there, and in most programs somebody who fits beside nobody.
    assert_eq!(programs, 7_006);
    assert!(programs / 2 < waited, "{waited} of {programs}");
}
