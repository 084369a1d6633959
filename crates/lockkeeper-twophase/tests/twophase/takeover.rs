//! A coordinator that was paused and replaced decides nothing, and two who recover at once do no harm.

use lockkeeper_core::{Clock, Locker, Memory, Owner};
use lockkeeper_servers::{Flavour, MysqlOptions};
use lockkeeper_twophase::{Participant, Ruling, TwoPhase, Verdict};

use crate::site::{Bank, HANG, Site};
use crate::worker::{Orders, Worker};

/// A worker that stands still there, and the id of its transaction.
async fn stopped(bank: &Bank, at: &'static str) -> (Worker, String) {
    let orders = Orders { die: Some((at, "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(bank, &orders).hear("id ").await;
    worker.until_stopped().await;
    (worker, id)
}

/// Recover until nobody holds a seat any more. What is left then.
async fn take_over(bank: &Bank) -> Vec<lockkeeper_twophase::Left> {
    let taken = async {
        loop {
            let (left, busy) = bank.setup().await.recover().await.unwrap();
            if busy.is_empty() {
                return left;
            }
            Clock::boot().sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, taken).await.expect("the seat of a paused holder is lost by its ttl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_coordinator_that_was_replaced_decides_nothing() {
    replaced(&Site::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_coordinator_beside_mysql_that_was_replaced_decides_nothing() {
    replaced(&Site::of(MysqlOptions::default()).await).await;
}

/// Take its seat, and do nothing with it: no row says abort, and the fence alone keeps the old one out.
pub(crate) async fn take_the_seat(bank: &Bank, id: &str) {
    let person = bank.setup_with(&Locker::new(Memory::default())).await;
    let told = person.resolve_branch(&id.parse().unwrap(), "nobody", Ruling::Commit, false).await;
    assert!(told.unwrap_err().to_string().contains("no branch at nobody"));
}

async fn replaced<F: Flavour>(site: &Site<F>) {
    let bank = site.bank().await;
    let (worker, id) = stopped(&bank, "AllPrepared").await;
    take_the_seat(&bank, &id).await;
    worker.go_on(&bank);
    let (worker, told) = worker.hear("told ").await;
    drop(worker);
    bank.recover().await;
    // First what the log has noted: that tells more than what its writer was told.
    assert!(!site.check(&bank, "only the seat was taken").await);
    assert_eq!(told, "superseded", "only the fence says so");

    let bank = site.bank().await;
    let (worker, id) = stopped(&bank, "AllPrepared").await;
    let left = take_over(&bank).await;
    assert!(
        left.iter().all(|it| it.participant == "stock"),
        "PostgreSQL lets everybody end a branch: {left:?}"
    );
    assert_eq!(bank.verdict(&id).await, Verdict::Aborted, "nobody can commit it any more");
    worker.go_on(&bank);
    let (worker, told) = worker.hear("told ").await;
    assert_eq!(told, "superseded");
    drop(worker);
    bank.recover().await;
    assert!(!site.check(&bank, "superseded").await);

    // After the decision the successor does what was decided, and the old one can only repeat it.
    let bank = site.bank().await;
    let (worker, id) = stopped(&bank, "Decided").await;
    take_over(&bank).await;
    assert_eq!(bank.verdict(&id).await, Verdict::Committed);
    worker.go_on(&bank);
    let (worker, told) = worker.hear("told ").await;
    assert_eq!(told, "committed");
    drop(worker);
    bank.recover().await;
    assert!(site.check(&bank, "decided before the pause").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_recover_at_once_do_no_harm() {
    let site = Site::start().await;
    for (at, moved) in [("Decided", true), ("AllPrepared", false), ("Decided", true)] {
        let bank = site.bank().await;
        let orders = Orders { die: Some((at, "")), ..Orders::default() };
        assert!(Worker::start(&bank, &orders).end().await.0);
        // Each with a lock store of its own: nothing but the log keeps them apart.
        let recover = async || {
            let setup = TwoPhase::open(&bank.log, &Locker::new(Memory::default())).await.unwrap();
            let setup = setup.participant("orders", Participant::postgres(&bank.postgres).unwrap());
            setup.participant("stock", Participant::mysql(&bank.mysql).unwrap()).recover().await.unwrap()
        };
        tokio::join!(recover(), recover(), recover());
        bank.recover().await;
        assert_eq!(site.check(&bank, at).await, moved);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_office_finishes_what_a_dead_one_left_without_being_asked() {
    let site = Site::start().await;
    let bank = site.bank().await;
    // It has the next seat, because the first is still held when it starts.
    let orders = Orders { die: Some(("Decided", "")), stop: true, ..Orders::default() };
    let (worker, id) = Worker::start(&bank, &orders).hear("id ").await;
    worker.until_stopped().await;
    let office = bank.office().await;
    assert_eq!(office.seat(), 1);
    drop(worker);
    let finished = async {
        while !bank.setup().await.survey().await.unwrap().transactions.is_empty() {
            Clock::boot().sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, finished).await.expect("the sweep takes the seat of the dead");
    assert_eq!(office.verdict(&id.parse().unwrap()).await.unwrap(), Verdict::Committed);
    assert!(site.check(&bank, "swept").await);
}

/// Two in one process, over one locker, in the scope of one owner, as in the body of a locked function.
#[tokio::test]
async fn two_coordinators_of_one_owner_have_a_seat_each_and_nobody_takes_them_for_dead() {
    let (folder, locker) = (tempfile::TempDir::new().unwrap(), Locker::new(Memory::default()));
    let log = format!("sqlite:{}", folder.path().join("2pc.db").display());
    let open = async || TwoPhase::open(&log, &locker).await.unwrap();
    let story = async {
        let (one, other) = (open().await.start().await.unwrap(), open().await.start().await.unwrap());
        assert_eq!((one.seat(), other.seat()), (0, 1), "two coordinators decide from one seat");
        let (_, busy) = open().await.recover().await.unwrap();
        assert_eq!(busy.len(), 2, "the seats of the living are theirs: {busy:?}");
    };
    Owner::new("x").scope(story).await;
}
