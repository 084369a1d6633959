//! The world of a simulation: store, network, processes, and the spirit that troubles them.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::inspect::Inspect;
use lockkeeper_core::kit::locked;
use lockkeeper_core::{Clock, Key, Locker, LockerBuilder, Moment, Spawn};

use super::executor::{Ended, Executor, Process, ProcessId};
use super::meetings::Minutes;
use super::users::{User, key};
use super::way::Way;
use super::witness::Witness;
use super::{Broken, Report, Scenario};
use crate::chance::Chance;

/// The network and the spirit are processes, too; these never pause and never die.
const NETWORK: ProcessId = 0;
const SPIRIT: ProcessId = 1;
const FIRST: ProcessId = 2;

type Settings = Arc<dyn Fn(LockerBuilder) -> LockerBuilder + Send + Sync>;
type Connect<S> = Arc<dyn Fn(&S, &Way) -> LockerBuilder + Send + Sync>;

/// A simulation has one thread: Relaxed is enough.
#[derive(Clone)]
pub(super) struct World<S> {
    scenario: Scenario,
    clock: Clock,
    executor: Executor,
    witness: Witness,
    minutes: Minutes,
    store: S,
    connect: Connect<S>,
    settings: Settings,
    population: Arc<Mutex<Vec<Member>>>,
    born: Arc<AtomicU32>,
    healed: Arc<AtomicBool>,
    chance: Arc<Mutex<Chance>>,
}

/// A living process. Relaxed, as in the world that it lives in.
struct Member {
    id: ProcessId,
    locker: Locker,
    users: Arc<AtomicU32>,
    pauses: Arc<AtomicU64>,
}

impl<S> fmt::Debug for World<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("scenario", &self.scenario).finish_non_exhaustive()
    }
}

impl<S: Inspect + Clone> World<S> {
    pub(super) fn new(
        scenario: Scenario,
        store: impl FnOnce(Clock) -> S,
        connect: impl Fn(&S, &Way) -> LockerBuilder + Send + Sync + 'static,
        settings: impl Fn(LockerBuilder) -> LockerBuilder + Send + Sync + 'static,
    ) -> Self {
        let mut chance = Chance::seeded(scenario.seed ^ 0x5eed);
        let clock = Clock::virtual_from(Duration::from_secs(1));
        World {
            scenario,
            executor: Executor::new(clock.clone(), chance.fork()),
            witness: Witness::default(),
            minutes: Minutes::default(),
            store: store(clock.clone()),
            clock,
            connect: Arc::new(connect),
            settings: Arc::new(settings),
            population: Arc::default(),
            born: Arc::new(AtomicU32::new(FIRST)),
            healed: Arc::default(),
            chance: Arc::new(Mutex::new(chance)),
        }
    }

    pub(super) fn run(self) -> Result<Report, Broken> {
        let start = self.clock.now();
        for _ in 0..self.scenario.processes {
            self.give_birth();
        }
        let spirit = self.clone();
        self.executor.process(SPIRIT).spawn(Box::pin(async move { spirit.haunt().await }));
        self.all_users_finish();
        self.nothing_is_left();
        let (counts, lasted) = (self.witness.counts(), self.clock.now() - start);
        match self.witness.verdict() {
            None => Ok(Report { counts, steps: self.executor.steps(), lasted }),
            Some(what) => {
                Err(Broken { seed: self.scenario.seed, what, counts: Box::new(counts), at: lasted })
            }
        }
    }

    /// A new process with its own locker, its own network and its own users.
    fn give_birth(&self) {
        let id = self.born.fetch_add(1, Ordering::Relaxed);
        let process = self.executor.process(id);
        let builder = (self.connect)(&self.store, &self.way(process.clone()))
            .clock(self.clock.clone())
            .spawner(process.clone())
            .outage_max(self.scenario.ttl * 3)
            .hand_on_span_max(self.scenario.ttl / 3)
            .hand_on_count_max(3);
        let locker = (self.settings)(builder).build();
        let users = Arc::new(AtomicU32::new(self.scenario.users));
        let pauses = Arc::new(AtomicU64::new(0));
        for nth in 0..self.scenario.users {
            let user = User {
                locker: locker.clone(),
                process: process.clone(),
                witness: self.witness.clone(),
                clock: self.clock.clone(),
                chance: self.fork(),
                ttl: self.scenario.ttl,
                rounds: self.scenario.rounds,
                keys: self.scenario.keys,
                shares: self.scenario.shares,
                together: self.scenario.together,
                meets: self.scenario.meets,
                name: format!("user {nth} of {id}"),
                minutes: self.minutes.clone(),
                pauses: pauses.clone(),
            };
            let users = users.clone();
            process.spawn(Box::pin(async move {
                user.live().await;
                users.fetch_sub(1, Ordering::Relaxed);
            }));
        }
        self.members().push(Member { id, locker, users, pauses });
    }

    fn way(&self, process: Arc<Process>) -> Way {
        Way {
            scenario: self.scenario,
            clock: self.clock.clone(),
            process,
            network: self.executor.process(NETWORK),
            healed: self.healed.clone(),
            chance: self.chance.clone(),
        }
    }

    /// Pause and kill, at random, as often as the scenario says.
    async fn haunt(self) {
        let mut deeds: Vec<bool> = Vec::new();
        deeds.extend((0..self.scenario.pauses).map(|_| false));
        deeds.extend((0..self.scenario.crashes).map(|_| true));
        let mut chance = self.fork();
        while !deeds.is_empty() {
            self.clock.sleep(chance.span(self.scenario.ttl * 2)).await;
            let kills = deeds.swap_remove(usize::try_from(chance.below(deeds.len() as u64)).unwrap_or(0));
            if kills {
                self.kill(&mut chance);
                self.clock.sleep(chance.span(self.scenario.ttl)).await;
                self.give_birth();
            } else if let Some(id) = self.choose_to_pause(&mut chance) {
                self.executor.pause(id);
                self.clock.sleep(chance.span(self.scenario.ttl * 2)).await;
                self.executor.resume(id);
            }
        }
    }

    fn kill(&self, chance: &mut Chance) {
        let mut members = self.members();
        if members.is_empty() {
            return;
        }
        let at = usize::try_from(chance.below(members.len() as u64)).unwrap_or(0);
        let victim = members.swap_remove(at);
        drop(members);
        self.executor.crash(victim.id);
        self.witness.crashed(victim.id);
        std::mem::forget(victim);
    }

    fn choose_to_pause(&self, chance: &mut Chance) -> Option<ProcessId> {
        let members = self.members();
        let member = members.get(usize::try_from(chance.below(members.len() as u64)).unwrap_or(0))?;
        member.pauses.fetch_add(1, Ordering::Relaxed);
        self.witness.count(|it| it.paused += 1);
        Some(member.id)
    }

    /// Everybody comes to an end, because every wait has one, if only the spirit and the storm leave off.
    fn all_users_finish(&self) {
        let storm_until = self.clock.now().after(self.scenario.ttl * 60);
        let calm_until = storm_until.after(self.scenario.ttl * 600);
        if self.go_on(storm_until) == Ended::Done {
            return;
        }
        self.healed.store(true, Ordering::Relaxed);
        let ended = self.go_on(calm_until);
        if ended != Ended::Done {
            let open: u32 = self.members().iter().map(|it| it.users.load(Ordering::Relaxed)).sum();
            self.witness.accuse(format!("{open} users never finished ({ended:?}), long after the storm"));
        }
    }

    fn go_on(&self, until: Moment) -> Ended {
        let born = self.scenario.processes + self.scenario.crashes;
        let finished = || {
            let all_born = self.born.load(Ordering::Relaxed) == FIRST + born;
            let nobody_busy = self.members().iter().all(|it| it.users.load(Ordering::Relaxed) == 0);
            self.witness.verdict().is_some() || (all_born && nobody_busy)
        };
        self.executor.run(until, finished, || self.witness.look())
    }

    /// When the users are gone and the ttl has passed, the store is empty and no line is left.
    fn nothing_is_left(&self) {
        self.healed.store(true, Ordering::Relaxed);
        if self.witness.verdict().is_some() {
            return;
        }
        let keys: Vec<Key> = (0..self.scenario.keys).filter_map(|it| Key::new(&key(it)).ok()).collect();
        let (store, witness, clock) = (self.store.clone(), self.witness.clone(), self.clock.clone());
        let (looked, settles) = (Arc::new(AtomicBool::new(false)), self.scenario.ttl * 10);
        let done = looked.clone();
        self.executor.process(SPIRIT).spawn(Box::pin(async move {
            clock.sleep(settles).await;
            for key in keys {
                match store.show(&key).await {
                    Ok(None) => {}
                    Ok(Some(found)) => witness.accuse(format!("this is left in the store: {found:?}")),
                    Err(fault) => witness.accuse(format!("the store cannot be looked at: {fault}")),
                }
            }
            done.store(true, Ordering::Relaxed);
        }));
        self.executor.run(Moment::NEVER, || looked.load(Ordering::Relaxed), || self.witness.look());
        let lines: usize = self.members().iter().map(|it| it.locker.lines()).sum();
        if lines != 0 {
            self.witness.accuse(format!("{lines} lines are left in lockers that nobody uses"));
        }
    }

    fn fork(&self) -> Chance {
        locked(&self.chance).fork()
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<Member>> {
        locked(&self.population)
    }
}
