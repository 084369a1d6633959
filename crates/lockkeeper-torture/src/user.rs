//! `lockkeeper torture`: the same workload on a deployment of the user's, who breaks it himself when told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::spi::{Clock, DynInspect};

use crate::crew::{Crew, Ended, Order, Plan};
use crate::verdict::{Episode, Verdict};
use crate::{Dice, Trouble, leftovers};

/// Nobody waits so long for a lock that works.
const HANG: Duration = Duration::from_secs(120);
/// Of locks that are asked for and given up: what is left of them is still there when it is looked for.
const STORM_TTL: Duration = Duration::from_secs(90);
/// With less nothing can be said of a deployment that is slow.
const STORM_TTL_MIN: Duration = Duration::from_secs(30);

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
    /// The longest that the store takes.
    pub ttl_max: Duration,
    /// Whether what is left behind stays for as long as its process lives, whatever its ttl.
    pub by_session: bool,
    /// Whether the store promises that whoever asks first is served first.
    pub in_order: bool,
    /// Whether the store has readers, writers and permits.
    pub has_rooms: bool,
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
            ttl_max: Duration::MAX,
            by_session: false,
            in_order: false,
            has_rooms: false,
            span: Duration::from_secs(30),
            seed,
        }
    }

    /// How long whatever needs its ttl to go may stay.
    fn quiet_max(&self) -> Duration {
        self.ttl * 2 + HANG / 4
    }

    /// The ttl of a storm's locks, and how long they may stay. The ttl is the longer one, so that what was forgotten is
    /// found; unless the store takes no such ttl, or a session keeps it anyway.
    fn storm(&self) -> (Duration, Duration) {
        let long = STORM_TTL.max(self.ttl * 2).min(self.ttl_max);
        if self.by_session || long < STORM_TTL_MIN {
            return (self.ttl, self.quiet_max());
        }
        (long, long / 2)
    }

    /// For how long the store may keep locks of workers that were killed.
    pub fn longest_ttl(&self) -> Duration {
        self.storm().0
    }

    /// Whether a request that waited in vain breaks a promise: not where the user may have broken his deployment for longer.
    fn nobody_starves(&self) -> bool {
        self.in_order && !self.by_session && self.span < HANG / 2
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
                let (span, advice) = (wish.span, advice(&wish.url));
                let turn = format!("your turn: for {span:?} break what you like, and heal it. {advice}");
                match self.unpromised(&wish.url) {
                    Some(why) => format!("{turn}. That nobody else is let in is not promised then: {why}"),
                    None => turn,
                }
            }
        }
    }

    /// Why two guards may be valid at once, if what the user breaks by our advice takes the promise away.
    fn unpromised(self, url: &str) -> Option<&'static str> {
        if self != Step::Yours {
            return None;
        }
        match scheme(url) {
            "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
                Some("a replica may not have been told of a grant when it takes over")
            }
            "redis" | "rediss" if guard(url).is_none_or(|it| it == "off") => Some(
                "a server that comes back without what it had confirmed gives it again; `restart_guard` in the URL, or \
                 `appendonly yes` with `appendfsync always`, keeps others out",
            ),
            "redlock" | "redlocks" if guard(url) == Some("off") => Some(
                "a server that comes back without its memory votes again at once; leave out `restart_guard=off`",
            ),
            _ if settings(url).any(|it| it == "mode=session") => Some(
                "a lock ends with its connection, and its holder hears of it a moment after the next one has it",
            ),
            _ => None,
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn settings(url: &str) -> impl Iterator<Item = &str> {
    url.split_once('?').map_or("", |it| it.1).split('&')
}

fn guard(url: &str) -> Option<&str> {
    settings(url).find_map(|it| it.strip_prefix("restart_guard="))
}

/// What is worth breaking, by the scheme of the URL.
fn advice(url: &str) -> &'static str {
    match scheme(url) {
        "redis+sentinel" | "rediss+sentinel" => {
            "Run a failover now: `SENTINEL FAILOVER <service>` on a sentinel"
        }
        "redis+cluster" | "rediss+cluster" => "Run a failover now: `CLUSTER FAILOVER` on a replica",
        "redis" | "rediss" => "Restart the server, or let it stand still: `CLIENT PAUSE 10000`",
        "redlock" | "redlocks" => "Stop or restart one of the servers, not more than a minority",
        "postgres" | "postgresql" => {
            "Restart the server, promote a synchronous standby, or end sessions: `pg_terminate_backend`"
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
    let (storm_ttl, storm_quiet_max) = wish.storm();
    (plan.processes, plan.tasks, plan.ttl, plan.storm_ttl) =
        (wish.processes, wish.tasks, wish.ttl, storm_ttl);
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
        let mut episode = Episode::begin(step.name(), step.unpromised(&wish.url), now());
        strike(*step, wish, &mut crew, &mut dice).await?;
        episode.stuck = crew.served(HANG).await;
        if *step == Step::CancelStorm {
            episode.orphans = leftovers(&*store, &crew.storm_prefix(), storm_quiet_max).await?;
        }
        if episode.unpromised.is_some() {
            // Until nobody believes any more what the store may have forgotten.
            Clock::boot().sleep(wish.ttl).await;
        }
        episode.end(now(), before, crew.witness().counts());
        let stuck = !episode.stuck.is_empty();
        episodes.push(episode);
        if stuck {
            break;
        }
    }
    tell("everybody goes, and the store is looked through for what is left");
    let (before, mut end) = (crew.witness().counts(), Episode::begin("end", None, now()));
    let Ended { history, findings, stuck, counts } = crew.stop(HANG).await?;
    // Nobody asks any more: looking for what is left is no gap between grants.
    end.end(now(), before, counts);
    end.stuck = stuck;
    let untried = history.never_given(wish.has_rooms);
    end.orphans = leftovers(&*store, &prefix, wish.quiet_max()).await?;
    episodes.push(end);
    let mut verdict = Verdict::new(&wish.shown, wish.seed, history, findings, episodes);
    (verdict.in_order, verdict.untried) = (wish.nobody_starves(), untried);
    Ok(verdict)
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

    #[test]
    fn what_a_failover_takes_away_is_said_before_and_is_no_broken_promise() {
        let wish = |url: &str| Wish::new("x".into(), url, "shown", 1);
        for url in ["redis+sentinel://a/main", "rediss+cluster://a,b", "postgres://a/b?x=y&mode=session"] {
            assert!(Step::Yours.words(&wish(url)).contains("is not promised then: "), "{url}");
            assert!(Step::Calm.unpromised(url).is_none(), "{url}");
        }
        for url in ["redlock://a,b,c", "redlock://a,b,c?restart_guard=1m", "postgres://a/b", "sqlite:x"] {
            assert!(Step::Yours.unpromised(url).is_none(), "{url}");
        }
    }

    #[test]
    fn a_restart_by_our_advice_is_no_broken_promise_where_the_server_may_forget() {
        let wish = |url: &str| Wish::new("x".into(), url, "shown", 1);
        for url in ["redis://a", "rediss://:b@a?timeout=1s", "redis://a?restart_guard=off"] {
            let words = Step::Yours.words(&wish(url));
            assert!(
                words.contains("Restart the server") && words.contains("is not promised then: "),
                "{url}"
            );
            assert!(words.contains("`restart_guard` in the URL"), "{words}");
        }
        assert!(Step::Yours.unpromised("redlock://a,b,c?restart_guard=off").is_some());
        // Whoever asked for the promise is told if it is broken.
        assert!(Step::Yours.unpromised("redis://a?timeout=1s&restart_guard=10s").is_none());
    }

    #[test]
    fn nobody_starves_where_the_line_has_an_order_unless_the_user_breaks_it_for_long() {
        let mut wish = Wish::new("x".into(), "sqlite:x", "shown", 1);
        assert!(!wish.nobody_starves());
        wish.in_order = true;
        assert!(wish.nobody_starves());
        wish.span = HANG;
        assert!(!wish.nobody_starves());
    }

    #[test]
    fn what_was_forgotten_in_a_storm_is_still_there_when_it_is_looked_for() {
        let mut wish = Wish::new("x".into(), "sqlite:x", "shown", 1);
        for ttl in [1, 5, 60].map(Duration::from_secs) {
            wish.ttl = ttl;
            let (storm, quiet) = wish.storm();
            assert!(quiet < storm && ttl <= storm, "{ttl:?}");
        }
        // A store that takes no such ttl is asked for none.
        wish.ttl_max = Duration::from_secs(60);
        assert_eq!(wish.storm(), (wish.ttl_max, wish.ttl_max / 2));
        (wish.ttl, wish.ttl_max) = (Duration::from_secs(5), Duration::from_secs(10));
        assert_eq!(wish.storm().0, wish.ttl);
        // What hangs on a session is not let go by a ttl.
        (wish.ttl_max, wish.by_session) = (Duration::MAX, true);
        assert_eq!(wish.storm().0, wish.ttl);
    }
}
