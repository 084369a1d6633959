//! `lockkeeper torture`: the same workload on a deployment of the user's, who breaks it himself when told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect};

use crate::crew::{Crew, Order, Plan};
use crate::verdict::{Episode, Verdict};
use crate::{Dice, Trouble, leftovers};

/// Nobody waits so long for a lock that works.
const HANG: Duration = Duration::from_secs(120);

/// What to do with a deployment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wish {
    /// The program to start for each worker; it must call [`helper`](crate::helper) first.
    pub program: PathBuf,
    /// The store.
    pub url: String,
    /// How the store is called in the report: the URL without its secrets.
    pub shown: String,
    /// How many processes.
    pub processes: usize,
    /// How many tasks in each.
    pub tasks: usize,
    /// Of the locks.
    pub ttl: Duration,
    /// How long the user has to break something; nothing is asked of him if it is zero.
    pub span: Duration,
    /// Names everything that is left to chance.
    pub seed: u64,
}

impl Wish {
    /// Three processes with eleven tasks each and locks of five seconds; the user has half a minute.
    pub fn new(program: PathBuf, url: &str, shown: &str, seed: u64) -> Self {
        Wish {
            program,
            url: url.to_owned(),
            shown: shown.to_owned(),
            processes: 3,
            tasks: 11,
            ttl: Duration::from_secs(5),
            span: Duration::from_secs(30),
            seed,
        }
    }
}

/// One step of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Calm,
    ClientKill,
    ClientStop,
    CancelStorm,
    Yours,
}

impl Step {
    const ALL: [Step; 5] = [Step::Calm, Step::ClientKill, Step::ClientStop, Step::CancelStorm, Step::Yours];

    fn name(self) -> &'static str {
        match self {
            Step::Calm => "calm",
            Step::ClientKill => "client-kill",
            Step::ClientStop => "client-stop",
            Step::CancelStorm => "cancel-storm",
            Step::Yours => "yours",
        }
    }

    fn words(self, wish: &Wish) -> String {
        match self {
            Step::Calm => "nothing is broken".to_owned(),
            Step::ClientKill => "processes of ours are killed".to_owned(),
            Step::ClientStop => format!("a process of ours stands still for {:?}", wish.ttl * 2),
            Step::CancelStorm => "everybody asks and goes away".to_owned(),
            Step::Yours => {
                format!(
                    "your turn: for {:?} break what you like, and heal it. {}",
                    wish.span,
                    advice(&wish.url)
                )
            }
        }
    }
}

/// What is worth breaking, by the scheme of the URL.
fn advice(url: &str) -> &'static str {
    match url.split(':').next().unwrap_or_default() {
        "redis+sentinel" | "rediss+sentinel" => {
            "Run a failover now: `SENTINEL FAILOVER <service>` on a sentinel"
        }
        "redis+cluster" | "rediss+cluster" => "Run a failover now: `CLUSTER FAILOVER` on a replica",
        "redis" | "rediss" => "Restart the server, or let it stand still: `CLIENT PAUSE 10000`",
        "redlock" | "redlocks" => "Stop or restart one of the servers, not more than a minority",
        "postgres" | "postgresql" => {
            "Restart the server, promote a standby, or end sessions: `pg_terminate_backend`"
        }
        "mysql" | "mariadb" => "Restart the server, or end sessions: `KILL <id>`",
        "etcd" | "etcds" => "Let another lead: `etcdctl move-leader`, or restart one of the servers",
        "zookeeper" | "zookeepers" => "Restart the server that leads",
        _ => "Cut the network, restart what you can",
    }
}

/// Try a deployment step by step, under a prefix of its own. `tell` hears what comes next.
///
/// The locks are those of `store`, which must be the one behind the wish's URL. Nothing stays in it: if something does, the verdict says what.
///
/// # Cancel safety
/// Dropped half-way, the workers are killed; what they held ends with its ttl.
///
/// # Errors
/// If workers cannot be started or never get a lock. A broken promise is no error but a verdict.
pub async fn torture(
    wish: &Wish,
    store: Arc<dyn DynInspect>,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Verdict, Trouble> {
    let prefix = format!("lockkeeper-torture-{:016x}/", wish.seed);
    let mut plan = Plan::new(wish.program.clone(), &wish.url, &prefix, wish.seed);
    (plan.processes, plan.tasks, plan.ttl, plan.storm_ttl) = (wish.processes, wish.tasks, wish.ttl, wish.ttl);
    plan.gentle = true;
    let mut crew = Crew::start(plan).await?;
    let missing = crew.served(HANG).await;
    if !missing.is_empty() {
        return Err("no process was given a lock within two minutes; `lockkeeper doctor` may know why".into());
    }
    let steps: Vec<Step> =
        Step::ALL.into_iter().filter(|it| *it != Step::Yours || !wish.span.is_zero()).collect();
    let mut dice = Dice::seeded(wish.seed ^ 1);
    let mut episodes = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        tell(&format!("step {} of {}: {}", number + 1, steps.len(), step.words(wish)));
        let before = crew.witness().counts();
        let mut episode = Episode::begin(step.name(), None, now());
        strike(*step, wish, &mut crew, &mut dice).await?;
        episode.stuck = crew.served(HANG).await;
        if *step == Step::CancelStorm {
            episode.orphans = leftovers(&*store, &crew.storm_prefix(), wish.ttl * 2 + HANG / 4).await?;
        }
        episode.end(now(), before, crew.witness().counts());
        let stuck = !episode.stuck.is_empty();
        episodes.push(episode);
        if stuck {
            break;
        }
    }
    tell("everybody goes, and the store is looked through for what is left");
    let mut end = Episode::begin("end", None, now());
    let (history, findings, stuck) = crew.stop(HANG).await?;
    end.stuck = stuck;
    end.orphans = leftovers(&*store, &prefix, wish.ttl * 2 + HANG / 4).await?;
    end.span.end = now();
    episodes.push(end);
    Ok(Verdict::new(&wish.shown, wish.seed, history, findings, episodes))
}

async fn strike(step: Step, wish: &Wish, crew: &mut Crew, dice: &mut Dice) -> Result<(), Trouble> {
    let clock = Clock::boot();
    match step {
        Step::Calm => clock.sleep(Duration::from_secs(1)).await,
        Step::ClientKill => {
            for _ in 0..2 {
                clock.sleep(dice.span(Duration::from_millis(500))).await;
                let index = dice.index(crew.size());
                crew.replace(index).await?;
            }
        }
        Step::ClientStop => {
            let index = dice.index(crew.size());
            crew.pause(index)?;
            clock.sleep(wish.ttl * 2).await;
            crew.resume(index)?;
        }
        Step::CancelStorm => {
            crew.tell(Order::Storm).await?;
            clock.sleep(Duration::from_secs(2)).await;
            crew.tell(Order::Work).await?;
        }
        Step::Yours => clock.sleep(wish.span).await,
    }
    Ok(())
}

fn now() -> u64 {
    Clock::boot().now().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_deployment_and_tells_no_secret() {
        let wish = |url: &str| Wish::new("x".into(), url, "shown", 1);
        let words = Step::Yours.words(&wish("redis+sentinel://:secret@a,b/main"));
        assert!(words.contains("SENTINEL FAILOVER") && words.contains("30s") && !words.contains("secret"));
        assert!(Step::Yours.words(&wish("sqlite:x")).contains("break what you like"));
        assert!(Step::ClientStop.words(&wish("sqlite:x")).contains("10s"));
    }
}
