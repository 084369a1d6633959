//! The last phase of a struggle: what workers do while they come to an end counts, too.

use std::time::Duration;

use lockkeeper_torture::{Crew, Ended, Plan, Trouble};

/// A hang guard.
const HANG: Duration = Duration::from_secs(120);

/// Every guard that its holder writes under writes once for each of its locks, as long as nobody loses it. So the last writes
/// were counted if there are as many as such locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_writes_are_seen_by_the_witness_and_counted() -> Result<(), Trouble> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut plan = Plan::new(env!("CARGO_BIN_EXE_lockkeeper-nemesis").into(), &url, "end/", 3);
    // Nobody loses a lock, however busy the machine is.
    plan.ttl = Duration::from_secs(15);
    let crew = Crew::start(plan).await?;
    assert_eq!(crew.served(HANG).await, Vec::<String>::new());
    let before = crew.witness().counts();
    let Ended { history, stuck, counts, .. } = crew.stop(HANG).await?;
    assert_eq!(stuck, Vec::<String>::new());
    assert!(history.beliefs.iter().all(|it| it.ended && it.told.is_none()));
    let permits = |key: &str| key.ends_with("/permits");
    let writers = history
        .beliefs
        .iter()
        .filter(|it| it.weight == it.capacity && !it.keys.iter().any(|it| permits(&it.0)));
    let locks: usize = writers.map(|it| it.keys.len()).sum();
    assert_eq!(counts.puts, locks as u64, "at the beginning of the end there were {}", before.puts);
    assert_eq!((counts.lost, counts.fenced_lost), (0, 0));
    Ok(())
}
