//! Lines 1, 8, 11 and 16 as those meet them who use a locker: jobs, latches, barriers, roles, several locks, readers of a process.
//!
//! What is asked of the store here are its claims and its memos, in the way in which the core combines them.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper_core::backend::{Backend, Order};
use lockkeeper_core::barrier::{Breach, Meeting, Verdict as Said};
use lockkeeper_core::{Error, Leader, Leaders, Locker, Once, Spawn, Task, Wish};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::contender::in_time;
use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict, unless_weighted};

/// How many processes there are.
const PROCESSES: usize = 3;

/// How many tasks of one of them read.
const READERS: u32 = 4;

/// So many times longer than the ttl of other cases: nobody dies here, and nothing may be lost because a machine is slow.
const LONG: u32 = 20;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Lost { .. } => Failure::Stalled(format!("a lock was lost: {error}")),
            error => Failure::broken(format!("a good request was answered with an error: {error}")),
        }
    }
}

/// The background of a locker on the runtime of its case.
#[derive(Debug)]
struct Here(Handle);

impl Spawn for Here {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

async fn locker<H: Harness>(trial: &Trial<H>) -> Locker {
    let backend = trial.connect().await;
    let ttl = (trial.ttl * LONG).min(backend.profile().ttl_max);
    let here = Arc::new(Here(Handle::current()));
    Locker::builder(backend).ttl(ttl).clock(trial.clock.clone()).spawner(here).build()
}

/// Lockers as so many processes have them; or why there are none.
async fn processes<H: Harness>(trial: &Trial<H>) -> Result<Vec<Locker>, Outcome> {
    if trial.connect().await.memos().is_none() {
        return Err(Outcome::NotPromised("the store keeps no memos"));
    }
    let mut lockers = Vec::new();
    for _ in 0..PROCESSES {
        lockers.push(locker(trial).await);
    }
    Ok(lockers)
}

/// The answer, or a failure that names the hang.
async fn soon<H: Harness, T, E>(
    trial: &Trial<H>,
    what: &str,
    answer: impl IntoFuture<Output = Result<T, E>>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    Ok(in_time(&trial.clock, trial.patience, what, answer.into_future()).await??)
}

/// What all of them answer.
async fn all<H: Harness, T: 'static>(
    trial: &Trial<H>,
    what: &str,
    mut tasks: JoinSet<Result<T, Failure>>,
) -> Result<Vec<T>, Failure> {
    let mut answers = Vec::new();
    while let Some(answer) = in_time(&trial.clock, trial.patience, what, tasks.join_next()).await? {
        answers.push(answer.map_err(Failure::broken)??);
    }
    Ok(answers)
}

/// A tick is done by one of all processes, whoever asks at the same time and whoever comes later; if the job fails it is open again.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_tick_is_done_once_by_all_processes<H: Harness>(trial: &Trial<H>) -> Verdict {
    let lockers = match processes(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let (job, inside) = (trial.key.as_str().to_owned(), Arc::new(AtomicU32::new(0)));
    let fails = lockers[0].once(&job, "1").run(async |_| Err::<(), _>(Failure::broken("on purpose")));
    if !matches!(in_time(&trial.clock, trial.patience, "a job", fails).await?, Err(Failure::Broken(it)) if it == "on purpose")
    {
        return Err(Failure::broken("a job failed, and its caller was told otherwise"));
    }
    let mut tasks = JoinSet::new();
    for locker in lockers.iter().cycle().take(2 * PROCESSES) {
        let (once, inside, clock, pause) =
            (locker.once(&job, "1"), inside.clone(), trial.clock.clone(), trial.ttl / 20);
        tasks.spawn(async move {
            once.run(async |_| {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                clock.sleep(pause).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                if others == 0 { Ok(()) } else { Err(Failure::broken("two ran one job at the same time")) }
            })
            .await
        });
    }
    let answers = all(trial, "a job that others run, too", tasks).await?;
    let ran = answers.iter().filter(|it| **it == Once::Ran(())).count();
    let done = answers.iter().filter(|it| **it == Once::Done).count();
    if (ran, done) != (1, answers.len() - 1) {
        return Err(Failure::broken(format!(
            "of all who asked for one tick {ran} ran it and {done} heard that it was done"
        )));
    }
    for (locker, tick, wanted) in [(&lockers[1], "1", Once::Done), (&lockers[2], "2", Once::Ran(()))] {
        let answer =
            soon(trial, "a tick", locker.once(&job, tick).run(async |_| Ok::<_, Failure>(()))).await?;
        if answer != wanted {
            return Err(Failure::broken(format!(
                "of tick {tick} it was said {answer:?} instead of {wanted:?}"
            )));
        }
    }
    Ok(Outcome::Shown)
}

/// A latch at which nobody has arrived is closed; it opens with the last of all, however often each arrives, and stays open.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_latch_counts_each_party_once<H: Harness>(trial: &Trial<H>) -> Verdict {
    const PARTIES: u32 = 6;
    let lockers = match processes(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let latch = |at: usize| lockers[at].latch(trial.key.as_str(), PARTIES);
    if soon(trial, "a latch", latch(0).status()).await?.is_open() {
        return Err(Failure::broken("a latch at which nobody has arrived is open"));
    }
    let mut tasks = JoinSet::new();
    // All but the last, each from every process.
    for at in 0..PROCESSES {
        let latch = latch(at);
        tasks.spawn(async move {
            for party in 1..PARTIES {
                latch.arrive(format!("party {party}")).await?;
            }
            Ok(())
        });
    }
    all(trial, "an arrival at a latch", tasks).await?;
    let status = soon(trial, "a latch", latch(1).status()).await?;
    if status.arrived.len() + 1 != usize::try_from(PARTIES).unwrap_or(0) || status.is_open() {
        return Err(Failure::broken(format!(
            "all but one of {PARTIES} have arrived, and it says {status:?}"
        )));
    }
    let mut tasks = JoinSet::new();
    for at in 0..PROCESSES {
        let latch = latch(at);
        tasks.spawn(async move { Ok(latch.wait().await?) });
    }
    soon(trial, "the last arrival", latch(2).arrive("party 0")).await?;
    for status in all(trial, "the opening of a latch", tasks).await? {
        if !status.is_open() {
            return Err(Failure::broken(format!("one who waited went on, but it says {status:?}")));
        }
    }
    if !matches!(latch(0).arrive("party 6").await, Err(Error::Invalid { .. })) {
        return Err(Failure::broken("one more than there may be has arrived"));
    }
    let status = soon(trial, "a latch", latch(1).status()).await?;
    if status.is_open() { Ok(Outcome::Shown) } else { Err(Failure::broken("it opened, and is closed again")) }
}

/// All who meet at a barrier hear the same of a round: that it opened with the last, or that one of them did not wait.
///
/// # Errors
/// If the store breaks the contract.
pub async fn all_at_a_barrier_hear_one_verdict<H: Harness>(trial: &Trial<H>) -> Verdict {
    let lockers = match processes(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let parties = u32::try_from(PROCESSES).unwrap_or(0);
    for round in 1..=4_u64 {
        // In each second round one of them stays away, and another does not wait for it.
        let breaks = round % 2 == 0;
        let mut tasks = JoinSet::new();
        for (at, locker) in lockers.iter().enumerate().skip(usize::from(breaks)) {
            let (barrier, patience) = (locker.barrier(trial.key.as_str(), parties), trial.ttl / 2);
            let hasty = breaks && at == 1;
            tasks.spawn(async move {
                let party = format!("party {at}");
                Ok(if hasty {
                    barrier.wait_at_most(party, patience).await
                } else {
                    barrier.wait(party).await
                }?)
            });
        }
        let said: Vec<Meeting> = all(trial, "the verdict of a round", tasks).await?;
        let wanted = if breaks { Said::Broken(Breach::TimedOut) } else { Said::Open };
        // Whoever comes when the hasty one has gone begins the next round, and waits for it in vain; it is not of this one.
        if said.iter().any(|it| (it.round, it.verdict) != (round, wanted)) {
            return Err(Failure::broken(format!(
                "round {round} should be heard to end with {wanted:?}, and was with {said:?}"
            )));
        }
    }
    Ok(Outcome::Shown)
}

async fn news<H: Harness>(trial: &Trial<H>, leaders: &mut Leaders) -> Result<Option<Leader>, Failure> {
    soon(trial, "news of who leads", leaders.next()).await
}

/// One leads at a time, in a term larger than all before; everybody sees who it is, and that nobody leads when it has gone.
///
/// # Errors
/// If the store breaks the contract.
pub async fn one_leads_and_everybody_sees_who<H: Harness>(trial: &Trial<H>) -> Verdict {
    let lockers = match processes(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let (role, mut last) = (trial.key.as_str(), 0);
    let mut leaders = lockers[2].leaders(role)?;
    if news(trial, &mut leaders).await?.is_some() {
        return Err(Failure::broken("somebody is seen to lead where nobody ever stood"));
    }
    for value in ["one", "two", "three"] {
        let leads = soon(trial, "the role", lockers[0].campaign(role, value).win()).await?;
        let term = leads.term().get();
        if term <= last {
            return Err(Failure::broken(format!("term {term} follows {last}")));
        }
        last = term;
        let seen = news(trial, &mut leaders).await?;
        if seen.as_ref().map(|it| (it.value.as_str(), it.term.get())) != Some((value, term)) {
            return Err(Failure::broken(format!("{value:?} leads in term {term}, and {seen:?} is seen")));
        }
        let campaign = lockers[1].campaign(role, "another").wait_at_most(trial.ttl / 4);
        match campaign.win().await {
            Err(Error::TimedOut { .. }) => {}
            Ok(_) if leads.is_valid() => return Err(Failure::broken("two lead at the same time")),
            Ok(_) => return Err(Failure::Stalled("the role was lost".to_owned())),
            Err(error) => return Err(error.into()),
        }
        soon(trial, "resigning", leads.resign()).await?;
        if let Some(seen) = news(trial, &mut leaders).await? {
            return Err(Failure::broken(format!("whoever led has resigned, and {seen:?} is seen")));
        }
    }
    Ok(Outcome::Shown)
}

/// Several locks are had together or not at all: of a request that does not get all, nothing is left.
///
/// # Errors
/// If the store breaks the contract.
pub async fn several_are_had_together_or_none<H: Harness>(trial: &Trial<H>) -> Verdict {
    let (here, there) = (locker(trial).await, locker(trial).await);
    let names = ["a", "b", "c"].map(|it| format!("{}/{it}", trial.key));
    let taken = soon(trial, "a free lock", there.lock(&names[1])).await?;
    if soon(trial, "a try", here.lock_all(&names).attempt()).await?.is_some() {
        return Err(Failure::broken("all of several were given although another holds one of them"));
    }
    let wait = here.lock_all(names.iter().map(Wish::lock)).wait_at_most(trial.ttl / 2);
    match in_time(&trial.clock, trial.patience, "several locks", wait.into_future()).await? {
        Err(Error::TimedOut { .. }) => {}
        Ok(_) if taken.is_valid() => {
            return Err(Failure::broken("all of several were given although another holds one of them"));
        }
        Ok(_) => return Err(Failure::Stalled("a lock was lost".to_owned())),
        Err(error) => return Err(error.into()),
    }
    for name in [&names[0], &names[2]] {
        // What was taken is given back in the background; whoever keeps it renews it, and waits longer than anybody's patience.
        let guard =
            soon(trial, "the end of what a request took that did not get all", there.lock(name)).await?;
        soon(trial, "a release", guard.release()).await?;
    }
    // Where it stood in line it leaves in the background as well.
    trial.clock.sleep(trial.ttl / 4).await;
    if soon(trial, "a try", here.try_lock(&names[1])).await?.is_some() && taken.is_valid() {
        return Err(Failure::broken("a request that did not get all released what another holds"));
    }
    soon(trial, "a release", taken.release()).await?;
    let guard = soon(trial, "several free locks", here.lock_all(&names)).await?;
    for name in &names {
        if soon(trial, "a try", there.try_lock(name)).await?.is_some() && guard.is_valid() {
            return Err(Failure::broken(format!("{name} is held by two")));
        }
    }
    soon(trial, "a release", guard.release()).await?;
    Ok(Outcome::Shown)
}

/// Readers of a process who never cease, and join each other without a word to the store, do not keep a writer out for ever.
///
/// # Errors
/// If the store breaks the contract.
pub async fn readers_that_never_cease_let_a_writer_in<H: Harness>(trial: &Trial<H>) -> Verdict {
    let profile = trial.connect().await.profile();
    if let Some(outcome) = unless_weighted(profile) {
        return Ok(outcome);
    }
    if profile.order == Order::Barging {
        return Ok(Outcome::NotPromised("the profile says Order::Barging"));
    }
    let (here, there) = (locker(trial).await, locker(trial).await);
    let (reading, mut begun) = tokio::sync::watch::channel(0);
    let mut reads = JoinSet::new();
    for nth in 0..READERS {
        let (locker, name, clock, pause) =
            (here.clone(), trial.key.clone(), trial.clock.clone(), trial.ttl / 25);
        let reading = reading.clone();
        reads.spawn(async move {
            // One after the other, so that others read whenever one has gone.
            clock.sleep(pause * nth / READERS).await;
            loop {
                let reader = locker.read(name.as_str()).await?;
                reading.send_modify(|it| *it += 1);
                clock.sleep(pause).await;
                drop(reader);
            }
            #[allow(unreachable_code, reason = "it says what a loop without end answers")]
            Ok::<(), Error>(())
        });
    }
    for round in 1..=2 {
        let all_read = begun.wait_for(|it| round * READERS <= *it);
        in_time(&trial.clock, trial.patience, "a reader", all_read).await?.map_err(Failure::broken)?;
        let guard =
            soon(trial, "the turn of a writer among readers", there.write(trial.key.as_str())).await?;
        reading.send_replace(round * READERS);
        soon(trial, "a release", guard.release()).await?;
    }
    if let Some(ended) = reads.try_join_next() {
        ended.map_err(Failure::broken)??;
    }
    reads.shutdown().await;
    Ok(Outcome::Shown)
}
