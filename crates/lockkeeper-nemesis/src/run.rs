//! One run: servers, workers, one fault after the other, and the verdict.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect, Order, Rooms};
use lockkeeper_torture::{Crew, Dice, Ended, Episode, Plan, Trouble, Verdict, leftovers};

use crate::fault::Fault;
use crate::site::{Site, StoreName};

/// A hang guard: nobody waits so long for a lock that works, on however slow a machine.
const HANG: Duration = Duration::from_secs(120);
/// Shorter than the ttl of a storm's locks: what is left behind is still there.
const STORM_QUIET_MAX: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(2);

/// What to do.
#[derive(Clone, Debug)]
pub struct Torture {
    /// Where.
    pub store: StoreName,
    /// The program that is started for each worker.
    pub program: PathBuf,
    /// After this no further fault is begun.
    pub span: Duration,
    /// Unless it was not struck yet: every fault that applies is, however long it takes.
    pub whole: bool,
    /// Names everything that is left to chance.
    pub seed: u64,
    /// Only these, each once and in this order; otherwise all that apply, in an order that the seed decides, again and
    /// again.
    pub faults: Option<Vec<Fault>>,
}

/// Run it. `say` hears how far it is.
///
/// # Cancel safety
/// Dropped half-way, workers and servers are killed.
///
/// # Errors
/// If a server or a worker cannot be started. A broken promise is no error but a verdict.
pub async fn run(torture: &Torture, say: &(dyn Fn(&str) + Sync)) -> Result<Verdict, Trouble> {
    let mut site = Site::start(torture.store).await?;
    let opened = lockkeeper::open(&site.direct).await?;
    let locker = opened.locker.build();
    let profile = locker.profile();
    let ttl = profile.ttl_min.max(TTL);
    // A place in a line of sessions ends with its connection.
    let in_order = profile.order == Order::Fifo && !torture.store.by_session();
    let prefix = format!("torture-{:x}/", torture.seed);
    let mut plan = Plan::new(torture.program.clone(), &site.url, &prefix, torture.seed);
    (plan.ttl, plan.aside) = (ttl, site.url_aside.clone());
    if torture.store == StoreName::ZooKeeper {
        // Its servers allow no session of two minutes. What a session leaves behind lives as long as its process anyway.
        plan.storm_ttl = Duration::from_secs(30);
    }
    if torture.store.by_session() {
        // A server that was killed lets nobody in for as long as any member's ttl, which we would take for standing still.
        plan.storm_ttl = Duration::from_secs(30);
    }
    let mut crew = Crew::start(plan).await?;
    let mut struggle = Struggle {
        torture,
        ttl,
        dice: Dice::seeded(torture.seed ^ 1),
        inspect: opened.inspect,
        episodes: Vec::new(),
    };
    struggle.begin(&crew).await?;
    let until = Clock::boot().now().after(torture.span);
    let mut waiting = Vec::new();
    let mut listed = torture.faults.clone();
    let mut times = 0;
    loop {
        if waiting.is_empty() {
            times += 1;
            waiting = match &mut listed {
                Some(all) => std::mem::take(all).into_iter().rev().collect(),
                None => struggle.all(),
            };
        }
        let bound = torture.faults.is_none() && !(torture.whole && times == 1);
        let over = bound && until <= Clock::boot().now();
        let Some(fault) = waiting.pop().filter(|_| !over) else { break };
        say(&format!("{}: {}", torture.store.name(), fault.name()));
        struggle.episode(fault, &mut site, &mut crew).await?;
        if !struggle.episodes.last().is_none_or(|it| it.stuck.is_empty()) {
            break;
        }
    }
    say(&format!("{}: the end", torture.store.name()));
    let mut verdict = struggle.end(crew, &prefix, profile.rooms != Rooms::MutexOnly).await?;
    verdict.in_order = in_order;
    Ok(verdict)
}

struct Struggle<'a> {
    torture: &'a Torture,
    ttl: Duration,
    dice: Dice,
    inspect: Arc<dyn DynInspect>,
    episodes: Vec<Episode>,
}

impl Struggle<'_> {
    /// Everybody is at work before anything is broken.
    async fn begin(&self, crew: &Crew) -> Result<(), Trouble> {
        let missing = crew.served(HANG).await;
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} never began").into()) }
    }

    fn all(&mut self) -> Vec<Fault> {
        let store = self.torture.store;
        self.dice.shuffled(Fault::ALL.into_iter().filter(|it| it.applies(store)).collect())
    }

    async fn episode(&mut self, fault: Fault, site: &mut Site, crew: &mut Crew) -> Result<(), Trouble> {
        let (store, before) = (self.torture.store, crew.witness().counts());
        let mut episode = Episode::begin(fault.name(), fault.unpromised(store), now());
        fault.strike(site, crew, &mut self.dice, self.ttl).await?;
        episode.stuck = crew.served(HANG).await;
        if matches!(fault, Fault::CancelStorm | Fault::RuntimeDrop) {
            episode.orphans = leftovers(&*self.inspect, &crew.storm_prefix(), STORM_QUIET_MAX).await?;
        }
        if episode.unpromised.is_some() {
            // Until nobody believes any more what the store has forgotten.
            Clock::boot().sleep(self.ttl).await;
        }
        episode.end(now(), before, crew.witness().counts());
        self.episodes.push(episode);
        Ok(())
    }

    async fn end(mut self, crew: Crew, prefix: &str, has_rooms: bool) -> Result<Verdict, Trouble> {
        let before = crew.witness().counts();
        let mut end = Episode::begin("end", None, now());
        let Ended { history, findings, stuck, counts, .. } = crew.stop(HANG).await?;
        // Nobody asks any more: looking for what is left is no gap between grants.
        end.end(now(), before, counts);
        end.stuck = stuck;
        // A fault that was survived by mutexes alone says nothing of readers.
        end.stuck.extend(history.never_given(has_rooms));
        end.orphans = leftovers(&*self.inspect, prefix, self.ttl + HANG / 2).await?;
        self.episodes.push(end);
        Ok(Verdict::new(self.torture.store.name(), self.torture.seed, history, findings, self.episodes))
    }
}

fn now() -> u64 {
    Clock::boot().now().as_nanos()
}
