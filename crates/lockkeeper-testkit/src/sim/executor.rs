//! The executor: one thread, virtual time, and a seed that decides who runs next.
//!
//! Every task belongs to a process. A process can be paused, as by a signal, or die between two steps;
//! whatever it was doing is then never finished and never cleaned up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};

use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Moment, Spawn, Task};

use crate::chance::Chance;

/// The number of a process.
pub type ProcessId = u32;

/// One thread on which all processes of a simulation run. Clones share it.
#[derive(Clone)]
pub struct Executor {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

struct State {
    chance: Chance,
    tasks: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    paused: BTreeSet<ProcessId>,
    dead: BTreeSet<ProcessId>,
    made: u64,
    steps: u64,
}

struct Slot {
    process: ProcessId,
    /// `None` while it runs.
    task: Option<Task>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The caller's condition came true.
    Done,
    /// The time was over first.
    OutOfTime,
    /// Nobody can go on, and no timer is left.
    Stuck,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor for `clock` whose order is drawn from `chance`.
    pub fn new(clock: Clock, chance: Chance) -> Self {
        let (tasks, ready) = (BTreeMap::new(), Vec::new());
        let (paused, dead) = (BTreeSet::new(), BTreeSet::new());
        let state = State { chance, tasks, ready, paused, dead, made: 0, steps: 0 };
        Executor { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// Where a process runs its tasks.
    pub fn process(&self, id: ProcessId) -> Arc<Process> {
        Arc::new(Process { id, state: Arc::downgrade(&self.state) })
    }

    /// Stop a process until it is resumed. Its clock goes on.
    pub fn pause(&self, id: ProcessId) {
        locked(&self.state).paused.insert(id);
    }

    /// Let a paused process go on.
    pub fn resume(&self, id: ProcessId) {
        locked(&self.state).paused.remove(&id);
    }

    /// End a process between two steps. Nothing of it is dropped: a dead process runs no destructors.
    pub fn crash(&self, id: ProcessId) {
        let mut state = locked(&self.state);
        state.dead.insert(id);
        let of_it: Vec<u64> =
            state.tasks.iter().filter(|(_, it)| it.process == id).map(|(&id, _)| id).collect();
        for task in of_it {
            std::mem::forget(state.tasks.remove(&task));
        }
    }

    /// How many steps have been taken; with the seed, a fingerprint of the run.
    pub fn steps(&self) -> u64 {
        locked(&self.state).steps
    }

    /// Run until `done`, at most until `until`, and look at the world after every step.
    pub fn run(&self, until: Moment, mut done: impl FnMut() -> bool, mut look: impl FnMut()) -> Ended {
        loop {
            if done() {
                return Ended::Done;
            }
            if until <= self.clock.now() {
                return Ended::OutOfTime;
            }
            if self.step() {
                look();
            } else if !self.clock.advance() {
                return Ended::Stuck;
            }
        }
    }

    /// Poll one task that can go on, if there is one.
    fn step(&self) -> bool {
        let Some((id, mut task)) = locked(&self.state).pick() else {
            return false;
        };
        let waker = Waker::from(Arc::new(Alarm { id, state: Arc::downgrade(&self.state) }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let mut state = locked(&self.state);
            match state.tasks.get_mut(&id) {
                Some(slot) => slot.task = Some(task),
                // It ended its own process.
                None => std::mem::forget(task),
            }
        } else {
            // Dropped before it is forgotten, and outside the lock: a drop may wake or spawn.
            drop(task);
            locked(&self.state).tasks.remove(&id);
        }
        true
    }
}

impl State {
    fn pick(&mut self) -> Option<(u64, Task)> {
        let State { tasks, ready, paused, .. } = self;
        ready.retain(|id| tasks.contains_key(id));
        let able: Vec<usize> =
            (0..ready.len()).filter(|&it| !paused.contains(&tasks[&ready[it]].process)).collect();
        let at = usize::try_from(self.chance.below(able.len() as u64)).unwrap_or(0);
        let id = self.ready.remove(*able.get(at)?);
        self.steps += 1;
        let task = self.tasks.get_mut(&id)?.task.take()?;
        Some((id, task))
    }

    fn wake(&mut self, id: u64) {
        if !self.ready.contains(&id) {
            self.ready.push(id);
        }
    }
}

/// Where one process runs its tasks. What a dead process spawns is ignored.
pub struct Process {
    id: ProcessId,
    state: Weak<Mutex<State>>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.id)
    }
}

impl Process {
    /// Its number.
    pub fn id(&self) -> ProcessId {
        self.id
    }
}

impl Spawn for Process {
    fn spawn(&self, task: Task) {
        let Some(state) = self.state.upgrade() else { return };
        let mut state = locked(&state);
        if state.dead.contains(&self.id) {
            std::mem::forget(task);
            return;
        }
        state.made += 1;
        let id = state.made;
        state.tasks.insert(id, Slot { process: self.id, task: Some(task) });
        state.wake(id);
    }
}

struct Alarm {
    id: u64,
    state: Weak<Mutex<State>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(state) = self.state.upgrade() {
            locked(&state).wake(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    fn sleeper(clock: &Clock, count: &Arc<AtomicU32>) -> Task {
        let (clock, count) = (clock.clone(), count.clone());
        Box::pin(async move {
            clock.sleep(Duration::from_secs(1)).await;
            count.fetch_add(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn tasks_run_to_their_end_and_the_dead_and_the_paused_do_not() {
        let clock = Clock::virtual_from(Duration::ZERO);
        let executor = Executor::new(clock.clone(), Chance::seeded(1));
        let count = Arc::new(AtomicU32::new(0));
        for id in 0..4 {
            executor.process(id).spawn(sleeper(&clock, &count));
        }
        executor.crash(1);
        executor.pause(2);
        executor.process(1).spawn(sleeper(&clock, &count));
        let until = clock.now().after(Duration::from_secs(60));
        assert_eq!(executor.run(until, || false, || {}), Ended::Stuck);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        executor.resume(2);
        assert_eq!(executor.run(until, || count.load(Ordering::Relaxed) == 3, || {}), Ended::Done);
    }
}
