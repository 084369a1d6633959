//! What only the thread's inside can show: batches, and a disk that fills up.

use std::future::Future;
use std::path::Path;
use std::task::{Context, Waker};

use lockkeeper_core::backend::{Renewal, Turn};
use lockkeeper_core::{Claim, Key, Label, Load};

use super::*;
use crate::options::{Durability, SqliteOptions};
use crate::verb::{AskLeave, AskRenew, AskTurn};
use crate::wake::{Mood, Watch};

fn claim(key: &str) -> Arc<Claim> {
    Arc::new(
        Claim::new(Key::new(key).unwrap(), Duration::from_secs(60))
            .unwrap()
            .labelled(Arc::new(Label::of_this_process().with(None, Some(&"n".repeat(256))))),
    )
}

fn ask_turn(claim: &Arc<Claim>) -> AskTurn {
    AskTurn::new(claim.clone(), None)
}

/// A thread that is not yet running, so that requests can wait for it together.
fn worker(file: File) -> (Worker, Thread) {
    Thread::with_worker(file).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// How many transactions the write-ahead log holds: a commit marks its last frame with the file's size.
fn commits(path: &Path) -> usize {
    let log = std::fs::read(path.with_file_name("locks.db-wal")).unwrap();
    let page = usize::try_from(u32::from_be_bytes(log[8..12].try_into().unwrap())).unwrap();
    log[32..].chunks_exact(24 + page).filter(|frame| frame[4..8] != [0; 4]).count()
}

#[test]
fn what_waits_together_is_committed_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let file = File::open(SqliteOptions::new(&path)).unwrap();
    let (worker, thread) = worker(file);
    let claims: Vec<_> = (0..100).map(|it| claim(&format!("key {}", it / 2))).collect();
    let before = commits(&path);
    let mut cx = Context::from_waker(Waker::noop());
    let mut turns: Vec<_> = claims.iter().map(|it| Box::pin(worker.ask(ask_turn(it)))).collect();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let server = std::thread::spawn(move || thread.serve());
    let mut held = 0;
    for turn in turns {
        held += usize::from(matches!(block_on(turn).unwrap().turn, Turn::Held(_)));
    }
    assert_eq!(held, 50, "each has its own answer");
    assert_eq!(commits(&path) - before, 1);
    drop(worker);
    server.join().unwrap();
}

#[test]
fn a_renewal_goes_before_all_who_ask_for_more() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let (worker, mut thread) = worker(File::open(options).unwrap());
    let held = claim("held before");
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = Box::pin(worker.ask(ask_turn(&held)));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    thread.turn();
    assert!(matches!(block_on(first).unwrap().turn, Turn::Held(_)));
    // More than fit into two transactions, and then the renewal.
    let crowd: Vec<_> = (0..2 * BATCH_MAX).map(|it| claim(&format!("key {it}"))).collect();
    let mut turns: Vec<_> = crowd.iter().map(|it| Box::pin(worker.ask(ask_turn(it)))).collect();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let asked = Clock::boot().now();
    let mut renewal = Box::pin(worker.ask(AskRenew(held)));
    assert!(renewal.as_mut().poll(&mut cx).is_pending());
    thread.turn();
    let Renewal::Held { sent_at: Some(renewed_at), .. } = block_on(renewal).unwrap() else {
        panic!("it is held");
    };
    let answered =
        turns.iter_mut().map(|it| usize::from(it.as_mut().poll(&mut cx).is_ready())).sum::<usize>();
    assert_eq!(answered, BATCH_MAX - 1, "the rest of the first transaction");
    // And it counts from when it was written.
    assert!(asked <= renewed_at);
}

#[test]
fn one_that_fails_does_not_take_the_others_of_its_batch_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let (worker, thread) = worker(file);
    let good = claim("good");
    let bad = Arc::new((*claim("bad")).clone().load(Load::new(2, 1)));
    let mut cx = Context::from_waker(Waker::noop());
    let mut turns: Vec<_> = [&good, &bad].map(|it| Box::pin(worker.ask(ask_turn(it)))).into();
    for turn in &mut turns {
        assert!(turn.as_mut().poll(&mut cx).is_pending());
    }
    let server = std::thread::spawn(move || thread.serve());
    assert!(block_on(turns.pop().unwrap()).is_err());
    assert!(matches!(block_on(turns.pop().unwrap()).unwrap().turn, Turn::Held(_)));
    drop(turns);
    drop(worker);
    server.join().unwrap();
}

#[test]
fn a_full_disk_is_a_fault_that_passes_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let file = File::open(SqliteOptions::new(&path)).unwrap();
    file.connection().query_row("PRAGMA max_page_count = 20", [], |_| Ok(())).unwrap();
    let (worker, thread) = worker(file);
    let server = std::thread::spawn(move || thread.serve());
    let mut claims = Vec::new();
    let fault = loop {
        let next = claim(&format!("{:0>500}", claims.len()));
        match block_on(worker.ask(ask_turn(&next))) {
            Ok(answer) => assert!(matches!(answer.turn, Turn::Held(_))),
            Err(fault) => break fault,
        }
        claims.push(next);
        assert!(claims.len() < 10_000, "the file grows without bound");
    };
    assert!(fault.is_transient());
    assert!(fault.to_string().contains("disk is full"), "{fault}");
    // Those who hold keep what they have, and can go on and give it up.
    for claim in &claims {
        assert!(matches!(block_on(worker.ask(AskRenew(claim.clone()))).unwrap(), Renewal::Held { .. }));
    }
    for claim in &claims {
        block_on(worker.ask(AskLeave { claim: claim.clone(), spot: None, wanted: false })).unwrap();
    }
    assert!(matches!(block_on(worker.ask(ask_turn(&claims[0]))).unwrap().turn, Turn::Held(_)));
    drop(worker);
    server.join().unwrap();
    assert!(!path.with_file_name("locks.db-wal").exists(), "the last one closes the log");
}

#[test]
fn whoever_leaves_rings_for_all_whom_it_lets_in() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let open = || File::open(options.clone()).unwrap();
    let ((far, other), (near, mut thread)) = (worker(open()), worker(open()));
    let server = std::thread::spawn(move || other.serve());
    let mut cx = Context::from_waker(Waker::noop());
    thread.bell.need(thread.clock.now());
    for (load, fit) in [(Load::MUTEX, 1), (Load::new(1, 2), 2), (Load::new(1, u32::MAX), 8)] {
        let key = format!("{load}");
        let holder =
            Arc::new(far.marked((*claim(&key)).clone().load(Load::new(load.capacity, load.capacity))));
        assert!(matches!(block_on(far.ask(ask_turn(&holder))).unwrap().turn, Turn::Held(_)));
        let mut ids = Vec::new();
        for _ in 0..8 {
            let waiter = Arc::new(near.marked((*claim(&key)).clone().load(load)));
            let mut turn = Box::pin(near.ask(ask_turn(&waiter)));
            assert!(turn.as_mut().poll(&mut cx).is_pending());
            thread.turn();
            assert!(matches!(block_on(turn).unwrap().turn, Turn::Wait { .. }));
            ids.push(waiter.id);
        }
        assert_eq!(thread.bell.rung().count(), 0, "nothing to tell yet");
        block_on(far.ask(AskLeave { claim: holder, spot: None, wanted: true })).unwrap();
        assert_eq!(thread.bell.rung().collect::<Vec<_>>(), ids[..fit], "{load}: all who fit are rung for");
    }
    drop(far);
    server.join().unwrap();
}

#[test]
fn whoever_holds_is_rung_for_by_the_first_who_waits_and_by_who_breaks_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let open = || File::open(options.clone()).unwrap();
    let ((far, other), (near, mut thread)) = (worker(open()), worker(open()));
    let server = std::thread::spawn(move || other.serve());
    thread.bell.need(thread.clock.now());
    let holder = Arc::new(near.marked((*claim("held")).clone()));
    let mut turn = Box::pin(near.ask(ask_turn(&holder)));
    assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    thread.turn();
    assert!(matches!(block_on(turn).unwrap().turn, Turn::Held(_)));
    let impatient = Arc::new(far.marked((*claim("held")).clone().impatient()));
    block_on(far.ask(ask_turn(&impatient))).unwrap();
    assert_eq!(thread.bell.rung().count(), 0, "who does not wait needs nobody");
    for (nth, rings) in [vec![holder.id], vec![], vec![]].into_iter().enumerate() {
        let waiter = Arc::new(far.marked((*claim("held")).clone()));
        assert!(matches!(block_on(far.ask(ask_turn(&waiter))).unwrap().turn, Turn::Wait { .. }));
        assert_eq!(thread.bell.rung().collect::<Vec<_>>(), rings, "waiter {nth}: the holder is told once");
    }
    let broken = block_on(far.ask(crate::admin::Break { key: holder.key.clone(), only: None })).unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(thread.bell.rung().collect::<Vec<_>>(), [holder.id], "who lost it is rung for");
    drop(far);
    server.join().unwrap();
}

#[test]
fn whoever_begins_to_wait_where_others_ring_does_not_wake_the_thread() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let open = || File::open(options.clone()).unwrap();
    let ((far, other), (near, mut thread)) = (worker(open()), worker(open()));
    let server = std::thread::spawn(move || other.serve());
    thread.bell.need(thread.clock.now());
    let is_called = |thread: &Thread| thread.inbox.requests.try_recv().is_ok();
    let wait = |thread: &mut Thread, key: &str| {
        let holder = Arc::new(far.marked((*claim(key)).clone()));
        assert!(matches!(block_on(far.ask(ask_turn(&holder))).unwrap().turn, Turn::Held(_)));
        let waiter = Arc::new(near.marked((*claim(key)).clone()));
        let mut turn = Box::pin(near.ask(ask_turn(&waiter)));
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        thread.turn();
        let answer = block_on(turn).unwrap();
        let mood = Mood::Waiting { spot: answer.spot.unwrap(), waiting_before: answer.waiting_before };
        let (wake, woken) = tokio::sync::oneshot::channel();
        (Watch::new(waiter, mood, wake, thread.clock.now()), woken, holder)
    };
    let leave = |holder| block_on(far.ask(AskLeave { claim: holder, spot: None, wanted: true })).unwrap();

    let (watch, mut woken, holder) = wait(&mut thread, "rung for");
    near.watch(watch);
    assert!(!is_called(&thread), "it sleeps on");
    leave(holder);
    thread.turn();
    woken.try_recv().unwrap();

    let (watch, mut woken, holder) = wait(&mut thread, "rung for before it watches");
    leave(holder);
    thread.turn();
    near.watch(watch);
    woken.try_recv().unwrap();
    assert!(!is_called(&thread));

    let (watch, mut woken, holder) = wait(&mut thread, "never rung for");
    near.watch(watch);
    for bell in std::fs::read_dir(folder.path().join("locks.db-bells")).unwrap() {
        std::fs::remove_file(bell.unwrap().path()).unwrap();
    }
    leave(holder);
    assert!(woken.try_recv().is_err());
    thread.turn();
    woken.try_recv().expect("the thread looks whenever it wakes");
    thread.turn();
    let (watch, ..) = wait(&mut thread, "not relied on");
    near.watch(watch);
    assert!(is_called(&thread), "until a ring is heard again");
    drop(far);
    server.join().unwrap();
}

#[test]
fn more_are_let_in_at_once_than_the_kernel_keeps_rings_for() {
    const SHARERS: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let open = || File::open(options.clone()).unwrap();
    let ((far, other), (near, mut thread)) = (worker(open()), worker(open()));
    let server = std::thread::spawn(move || other.serve());
    let mut cx = Context::from_waker(Waker::noop());
    thread.bell.need(thread.clock.now());
    let shared = |worker: &Worker, load| Arc::new(worker.marked((*claim("shared")).clone().load(load)));
    let holder = shared(&far, Load::new(u32::MAX, u32::MAX));
    assert!(matches!(block_on(far.ask(ask_turn(&holder))).unwrap().turn, Turn::Held(_)));
    let mut watched = Vec::new();
    for _ in 0..SHARERS {
        let waiter = shared(&near, Load::new(1, u32::MAX));
        let mut turn = Box::pin(near.ask(ask_turn(&waiter)));
        assert!(turn.as_mut().poll(&mut cx).is_pending());
        thread.turn();
        let answer = block_on(turn).unwrap();
        let mood = Mood::Waiting { spot: answer.spot.unwrap(), waiting_before: answer.waiting_before };
        let (wake, woken) = tokio::sync::oneshot::channel();
        near.watch(Watch::new(waiter, mood, wake, thread.clock.now()));
        watched.push(woken);
    }
    thread.turn();
    block_on(far.ask(AskLeave { claim: holder, spot: None, wanted: true })).unwrap();
    thread.turn();
    let woken = watched.iter_mut().filter_map(|it| it.try_recv().ok()).count();
    assert_eq!(woken, SHARERS);
    drop(far);
    server.join().unwrap();
}

/// Looks what whoever is woken finds, while it is woken. Relaxed: read after the answer that wakes it.
struct Woken {
    desk: Arc<Mutex<Desk>>,
    spins: Arc<Spins>,
    found_free: std::sync::atomic::AtomicBool,
}

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        let is_free = self.desk.try_lock().is_ok() && self.spins.rests.load(Ordering::Relaxed);
        self.found_free.store(is_free, Ordering::Relaxed);
    }
}

#[test]
fn whoever_is_rung_for_finds_nobody_at_the_desk() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("locks.db")).durability(Durability::Full);
    let open = || File::open(options.clone()).unwrap();
    let ((far, other), (near, mut thread)) = (worker(open()), worker(open()));
    let server = std::thread::spawn(move || other.serve());
    thread.bell.need(thread.clock.now());
    let holder = Arc::new(far.marked((*claim("held")).clone()));
    assert!(matches!(block_on(far.ask(ask_turn(&holder))).unwrap().turn, Turn::Held(_)));
    let waiter = Arc::new(near.marked((*claim("held")).clone()));
    let mut turn = Box::pin(near.ask(ask_turn(&waiter)));
    assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    thread.turn();
    let answer = block_on(turn).unwrap();
    let mood = Mood::Waiting { spot: answer.spot.unwrap(), waiting_before: answer.waiting_before };
    let (wake, woken) = tokio::sync::oneshot::channel();
    near.watch(Watch::new(waiter, mood, wake, thread.clock.now()));
    let (desk, spins) = (thread.desk.clone(), thread.spins.clone());
    let seen = Arc::new(Woken { desk, spins, found_free: false.into() });
    let (mut woken, waker) = (std::pin::pin!(woken), Waker::from(seen.clone()));
    assert!(woken.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread.turn();
    block_on(far.ask(AskLeave { claim: holder, spot: None, wanted: true })).unwrap();
    thread.turn();
    assert!(woken.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(), "it was rung for");
    assert!(seen.found_free.load(Ordering::Relaxed), "woken while others are at the desk");
    drop(far);
    server.join().unwrap();
}

/// A thread that has served somebody and rests now, though nobody runs it.
fn resting(options: SqliteOptions) -> (Worker, Thread) {
    let (worker, mut thread) = worker(File::open(options).unwrap());
    let (mut cx, first) = (Context::from_waker(Waker::noop()), claim("first"));
    let mut turn = Box::pin(worker.ask(ask_turn(&first)));
    assert!(turn.as_mut().poll(&mut cx).is_pending());
    thread.turn();
    assert!(turn.as_mut().poll(&mut cx).is_ready());
    drop(turn);
    thread.spins.rests.store(true, Ordering::Relaxed);
    (worker, thread)
}

/// Whether the caller ran it itself.
fn is_at_once<V: crate::work::Verb>(worker: &Worker, verb: V) -> bool {
    let asked = std::pin::pin!(worker.ask(verb));
    asked.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_caller_runs_its_verb_itself_while_the_thread_rests_and_nothing_waits_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    for durability in [Durability::Normal, Durability::Full] {
        let (worker, mut thread) = resting(SqliteOptions::new(&path).durability(durability));
        let mine = claim("mine");
        let leave = |wanted| AskLeave { claim: mine.clone(), spot: None, wanted };
        assert_eq!(is_at_once(&worker, ask_turn(&mine)), durability == Durability::Normal, "a grant");
        thread.turn();
        for wanted in [false, true] {
            thread.spins.rests.store(true, Ordering::Relaxed);
            let waits_for_disk = durability == Durability::Full && wanted;
            assert_eq!(is_at_once(&worker, leave(wanted)), !waits_for_disk, "{durability:?}, {wanted}");
        }
    }
}

#[test]
fn whatever_takes_time_is_left_to_the_thread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let (worker, mut thread) = resting(SqliteOptions::new(&path).durability(Durability::Normal));
    let mine = claim("mine");
    let tries = || is_at_once(&worker, ask_turn(&mine));
    let rests = || thread.spins.rests.store(true, Ordering::Relaxed);
    // Somebody has the desk.
    let desk = thread.desk.clone();
    let taken = locked(&desk);
    assert!(!tries());
    drop(taken);
    // Another process writes.
    rests();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(!tries());
    other.execute_batch("COMMIT").unwrap();
    // The path means another file.
    rests();
    std::fs::rename(&path, folder.path().join("away.db")).unwrap();
    assert!(!tries());
    std::fs::rename(folder.path().join("away.db"), &path).unwrap();
    // What was sent before comes first.
    assert!(!tries());
    thread.turn();
    thread.spins.rests.store(true, Ordering::Relaxed);
    assert!(
        is_at_once(&worker, AskLeave { claim: mine, spot: None, wanted: false }),
        "nothing is in the way"
    );
}

#[test]
fn those_who_wait_in_the_same_process_hear_of_what_a_caller_did_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let (worker, mut thread) = resting(SqliteOptions::new(&path).durability(Durability::Normal));
    let (holder, waiter) = (claim("one"), claim("one"));
    assert!(is_at_once(&worker, ask_turn(&holder)));
    let answer = block_on(worker.ask(ask_turn(&waiter))).unwrap();
    let (wake, mut woken) = tokio::sync::oneshot::channel();
    let mood = Mood::Waiting { spot: answer.spot.unwrap(), waiting_before: answer.waiting_before };
    worker.watch(Watch::new(waiter.clone(), mood, wake, thread.clock.now()));
    thread.turn();
    assert!(woken.try_recv().is_err());
    thread.spins.rests.store(true, Ordering::Relaxed);
    assert!(is_at_once(&worker, AskLeave { claim: holder, spot: None, wanted: true }));
    assert!(thread.next(false).is_ok(), "it is called");
    thread.turn();
    assert!(woken.try_recv().is_ok());
}

#[test]
fn the_log_does_not_grow_though_callers_never_copy_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let file = File::open(SqliteOptions::new(&path).durability(Durability::Normal)).unwrap();
    let (worker, thread) = worker(file);
    let server = std::thread::spawn(move || thread.serve());
    for _ in 0..2000 {
        let claim = claim("again and again");
        assert!(matches!(block_on(worker.ask(ask_turn(&claim))).unwrap().turn, Turn::Held(_)));
        block_on(worker.ask(AskLeave { claim, spot: None, wanted: false })).unwrap();
    }
    let log = std::fs::metadata(path.with_file_name("locks.db-wal")).unwrap().len();
    assert!(log < 8 << 20, "{log} bytes after 4000 transactions");
    drop(worker);
    server.join().unwrap();
}

#[test]
fn no_statement_is_planned_anew_because_a_value_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(SqliteOptions::new(folder.path().join("locks.db"))).unwrap();
    let read = "SELECT seq FROM lockkeeper_claim WHERE key = ?1 ORDER BY seq";
    for at in 0..10 {
        assert!(!file.connection().prepare_cached(read).unwrap().exists([format!("key {at}")]).unwrap());
    }
    let read = file.connection().prepare_cached(read).unwrap();
    assert_eq!(read.get_status(rusqlite::StatementStatus::RePrepare), 0);
}

#[test]
fn the_first_number_of_a_block_waits_for_the_disk_whatever_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let (worker, mut thread) = resting(SqliteOptions::new(&path).durability(Durability::Normal));
    let rests = || thread.spins.rests.store(true, Ordering::Relaxed);
    rests();
    assert!(is_at_once(&worker, ask_turn(&claim("before"))), "nothing waits for the disk");
    let end = "UPDATE lockkeeper_store SET counter = (counter / ?1 + 1) * ?1 - 1";
    rusqlite::Connection::open(&path).unwrap().execute(end, [crate::schema::BLOCK]).unwrap();
    rests();
    assert!(!is_at_once(&worker, ask_turn(&claim("begins"))), "a block begins before it is on disk");
    thread.turn();
    thread.spins.rests.store(true, Ordering::Relaxed);
    assert!(is_at_once(&worker, ask_turn(&claim("after"))), "the others of the block wait for nothing");
}
