//! Line 16: small durable values, where the store keeps any.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Key;
use lockkeeper_core::backend::Backend;
use lockkeeper_core::memos::{DynMemos, Memo, Swap};
use tokio::task::JoinSet;

use super::harness::Harness;
use super::trial::{Failure, Outcome, Trial, Verdict};

/// Much longer than any case takes.
const LONG: Duration = Duration::from_secs(600);

fn unless_kept(memos: &[Option<Arc<dyn DynMemos>>]) -> Option<Outcome> {
    memos.iter().any(Option::is_none).then_some(Outcome::NotPromised("the store keeps no memos"))
}

/// Two ways to the memos of a store, as two processes have them; or why there are none.
async fn two_ways<H: Harness>(trial: &Trial<H>) -> Result<[Arc<dyn DynMemos>; 2], Outcome> {
    let (here, there) = (trial.connect().await.memos(), trial.connect().await.memos());
    match (here, there) {
        (Some(here), Some(there)) => Ok([here, there]),
        (here, there) => Err(unless_kept(&[here, there]).unwrap_or(Outcome::Shown)),
    }
}

/// A write that must succeed; what comes back is the version.
async fn written(
    memos: &Arc<dyn DynMemos>,
    key: &Key,
    seen: Option<u64>,
    value: &str,
    keep: Duration,
) -> Result<u64, Failure> {
    match memos.swap(key, seen, value.as_bytes(), keep).await? {
        Swap::Done(version) => Ok(version),
        other => Err(Failure::broken(format!("{value:?} was not written over {seen:?}: {other:?}"))),
    }
}

async fn must_be(memos: &Arc<dyn DynMemos>, key: &Key, memo: Option<(u64, &str)>) -> Result<(), Failure> {
    let there = memos.read(key).await?;
    let wanted = memo.map(|(version, value)| Memo::new(version, value.as_bytes().to_vec()));
    if there == wanted {
        return Ok(());
    }
    Err(Failure::broken(format!("{wanted:?} was written, {there:?} is read")))
}

/// Whoever has not seen the last write does not write, and is told what there is.
///
/// # Errors
/// If the store breaks the contract.
pub async fn whoever_did_not_see_the_last_write_does_not_write<H: Harness>(trial: &Trial<H>) -> Verdict {
    let [here, there] = match two_ways(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let key = &trial.key;
    must_be(&here, key, None).await?;
    let first = written(&here, key, None, "first", LONG).await?;
    must_be(&there, key, Some((first, "first"))).await?;
    for seen in [None, Some(first.wrapping_add(1)), Some(first.wrapping_sub(1)), Some(u64::MAX >> 1)] {
        match there.swap(key, seen, b"stale", LONG).await? {
            Swap::Conflict(Some(memo)) if (memo.version, memo.value.as_slice()) == (first, b"first") => {}
            other => return Err(Failure::broken(format!("one that had seen {seen:?} was told {other:?}"))),
        }
    }
    let second = written(&there, key, Some(first), "second", LONG).await?;
    must_be(&here, key, Some((second, "second"))).await?;
    if !matches!(here.swap(key, Some(first), b"stale", LONG).await?, Swap::Conflict(Some(_))) {
        return Err(Failure::broken("a version that was overwritten is still written over"));
    }
    written(&here, key, Some(second), "", Duration::ZERO).await?;
    must_be(&there, key, None).await?;
    match there.swap(key, Some(second), b"stale", LONG).await? {
        Swap::Conflict(None) => Ok(Outcome::Shown),
        other => Err(Failure::broken(format!("what was removed is written over: {other:?}"))),
    }
}

/// A memo that was removed, or whose time was over, comes back under a version that it never had.
///
/// # Errors
/// If the store breaks the contract.
pub async fn no_version_is_given_twice<H: Harness>(trial: &Trial<H>) -> Verdict {
    let [here, there] = match two_ways(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let mut given = Vec::new();
    for round in 0..4 {
        let memos = if round % 2 == 0 { &here } else { &there };
        let version = written(memos, &trial.key, None, "value", LONG).await?;
        let again = written(memos, &trial.key, Some(version), "again", LONG).await?;
        for version in [version, again] {
            if given.contains(&version) {
                return Err(Failure::broken(format!("version {version} was given twice")));
            }
            given.push(version);
        }
        written(memos, &trial.key, Some(again), "", Duration::ZERO).await?;
    }
    Ok(Outcome::Shown)
}

/// A memo is there as long as its writer said, and then it is gone; each by its own time.
///
/// # Errors
/// If the store breaks the contract.
pub async fn a_memo_is_kept_as_long_as_was_said<H: Harness>(trial: &Trial<H>) -> Verdict {
    let [here, there] = match two_ways(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let (short, long) = (&trial.key, &trial.another_key()?);
    let kept = trial.ttl * 2;
    let lasting = written(&here, long, None, "long", LONG).await?;
    let written_at = trial.clock.now();
    let version = written(&here, short, None, "short", kept).await?;
    loop {
        let asked_at = trial.clock.now();
        let there = there.read(short).await?;
        let now = trial.clock.now();
        match there {
            Some(memo) if memo.version == version => {}
            None if now < written_at.after(kept) => {
                return Err(Failure::broken(format!(
                    "it was gone {:?} before its time",
                    written_at.after(kept) - now
                )));
            }
            None => break,
            Some(other) => return Err(Failure::broken(format!("nobody wrote {other:?}"))),
        }
        if written_at.after(kept + trial.patience) < asked_at {
            return Err(Failure::broken("it is still there long after its time"));
        }
        trial.clock.sleep(trial.ttl / 10).await;
    }
    must_be(&there, long, Some((lasting, "long"))).await?;
    written(&there, short, None, "new", LONG).await?;
    written(&there, long, Some(lasting), "", Duration::ZERO).await?;
    Ok(Outcome::Shown)
}

/// A memo does not hold the lock of its name, and a lock is no memo.
///
/// # Errors
/// If the store breaks the contract.
pub async fn memos_and_locks_of_one_name_do_not_meet<H: Harness>(trial: &Trial<H>) -> Verdict {
    let [memos, _] = match two_ways(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let backend = trial.connect().await;
    let version = written(&memos, &trial.key, None, "value", LONG).await?;
    let mut holder = trial.contender(&backend)?;
    holder.takes_at_once("only a memo has its name").await?;
    must_be(&memos, &trial.key, Some((version, "value"))).await?;
    let other = trial.another_key()?;
    let mut alone = trial.contender_with(&backend, trial.claim()?.of(other.clone()));
    alone.takes().await?;
    must_be(&memos, &other, None).await?;
    written(&memos, &trial.key, Some(version), "", Duration::ZERO).await?;
    holder.must_still_hold("only the memo of its name was removed").await?;
    holder.leaves().await?;
    alone.leaves().await?;
    Ok(Outcome::Shown)
}

/// Many who write at the same time, each after what it has read, lose nothing.
///
/// # Errors
/// If the store breaks the contract.
pub async fn many_writers_lose_nothing<H: Harness>(trial: &Trial<H>) -> Verdict {
    const WRITERS: u32 = 4;
    const EACH: u32 = 10;
    let ways = match two_ways(trial).await {
        Ok(it) => it,
        Err(outcome) => return Ok(outcome),
    };
    let mut writers = JoinSet::new();
    for at in 0..WRITERS {
        let (memos, key) = (ways[usize::try_from(at % 2).unwrap_or(0)].clone(), trial.key.clone());
        writers.spawn(async move {
            for _ in 0..EACH {
                add_one(&memos, &key).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.map_err(Failure::broken)??;
    }
    let there = ways[0].read(&trial.key).await?;
    let sum = there.as_ref().and_then(|it| number(&it.value));
    if sum != Some(WRITERS * EACH) {
        return Err(Failure::broken(format!("{WRITERS} writers added {EACH} each, the sum is {sum:?}")));
    }
    written(&ways[0], &trial.key, there.map(|it| it.version), "", Duration::ZERO).await?;
    Ok(Outcome::Shown)
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

async fn add_one(memos: &Arc<dyn DynMemos>, key: &Key) -> Result<(), Failure> {
    loop {
        let seen = memos.read(key).await?;
        let sum = seen.as_ref().and_then(|it| number(&it.value)).unwrap_or(0) + 1;
        // Others come in between here, if they ever do.
        tokio::task::yield_now().await;
        let version = seen.map(|it| it.version);
        if let Swap::Done(_) = memos.swap(key, version, sum.to_string().as_bytes(), LONG).await? {
            return Ok(());
        }
    }
}
